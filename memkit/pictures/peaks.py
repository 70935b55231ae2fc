"""Peaks side by side, part by part, and a card's line: optimizers, ways to fine-tune, cuts of a batch, ranks."""

from collections.abc import Mapping, Sequence

from memkit.pictures.axes import Scale, point
from memkit.pictures.svg import GREY, LOOKS, Chart
from memkit.pictures.timeline import axis_top, card_line, memory_axis, short, stacked_bar
from memkit.timeline import PARTS, Instant
from memkit.units import format_bytes


def name_parts(chart: Chart, left: float, top: float) -> None:
    """Swatch and name of every part, from the top of a bar down."""
    parts = [(LOOKS[part], part.replace("_", " ")) for part in reversed(PARTS)]
    chart.legend(parts, left, top, chart.width - left, 12, row=27)


def choices_figure(
    peaks: Mapping[str, Instant],
    title: str,
    subtitle: str = "",
    capacity_bytes: int = 0,
    chosen: int = -1,
    above: Sequence[str] = (),
    foot: str = "",
) -> Chart:
    """A stacked bar for each peak, its bytes above, its name of up to two lines below; a triangle marks the chosen.

    ``above`` is a second line above each bar, and ``foot`` says what the texts are; ``chosen`` is an index, -1 for
    none. A bar's ``data-pick`` is its number.

    Raises: ValueError: nothing to draw.
    """
    if not peaks:
        raise ValueError("choices_figure needs at least one peak")
    top = axis_top(max(peak.total_bytes for peak in peaks.values()), capacity_bytes)
    chart = Chart(800, 390, title, subtitle)
    y, x = (
        Scale(low=0, high=top, start=310, end=70),
        Scale(low=-0.65, high=len(peaks) - 0.35, start=92, end=640),
    )
    memory_axis(chart, y, 92, 640)
    tops, told = [], []
    for number, (name, peak) in enumerate(peaks.items()):
        flat, size = name.replace("\n", " "), format_bytes(peak.total_bytes)
        stacked_bar(chart, peak, x(number), 0.72 * (x(1) - x(0)), y, flat, data={"pick": number})
        tops.append(
            (x(number), y(peak.total_bytes) - 3, "\n".join([short(peak.total_bytes), *above[number:][:1]]))
        )
        mark = ", chosen" if number == chosen else ""
        told.append(f"{flat}{mark}: {size}, {above[number]}" if above else f"{flat} {size}")
    card_line(chart, y, capacity_bytes, 92, 640)
    lines = (
        1
        + bool(above)
        + chart.place(
            tops,
            [(*at, text.replace(" ", "\n", 1)) for *at, text in tops],
            size=11.5,
            at="bottom",
            boxed=bool(above),
        )
    )
    if chosen >= 0:
        point(chart, x(chosen), y(list(peaks.values())[chosen].total_bytes) - 10 - 14 * lines, "v", "currentColor", 5)
    chart.row([(x(number), name) for number, name in enumerate(peaks)], y.start + 5, 11.5)
    chart.words(92, 376, foot, 12, shade=GREY)
    name_parts(chart, 660, 100)
    chart.alt = f"{title}. {subtitle}. {foot or 'Stacked bars'}: {'; '.join(told)}."
    return chart
