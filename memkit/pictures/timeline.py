"""One drawing for any timeline, whether a formula, a trace or a measurement made it.

A bar is an instant of the training step, its pieces are the parts. No picture here tells anything by colour
alone: a part has a colour, a hatch and a name.
"""

from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.ticker import LinearLocator

from memkit.pictures.picture import GREY, INK, Picture, Ticks, bare, hatched, mix
from memkit.pictures.stamped_bars import StampedBars, rectangles
from memkit.timeline import PARTS, Instant, MemoryTimeline, provenance_line, where
from memkit.units import format_bytes


def describe(timeline: MemoryTimeline, title: str) -> str:
    """The bars in one sentence, for who does not see them."""
    peak, last = timeline.peak, timeline.instants[-1]
    return (
        f"{title} ({provenance_line(timeline)}): stacked bars for {len(timeline.instants)} instants. "
        f"The tallest, {format_bytes(peak.total_bytes)}, is the {where(peak)}; "
        f"the last, {where(last)}, has {format_bytes(last.total_bytes)}."
    )


def tick_words(num_bytes: int) -> str:
    """A tick's bytes with no more digits than it needs.

    >>> tick_words(2**30), tick_words(3 * 2**39), tick_words(21 * 2**26)
    ('1 GiB', '1.5 TiB', '1.3125 GiB')
    """
    number, unit = format_bytes(num_bytes, 4).split()
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"


def short(num_bytes: int) -> str:
    """Bytes in three or four digits, for the top of a narrow bar.

    >>> short(97 * 2**20 + 2**19), short(949 * 2**20)
    ('97.5 MiB', '949 MiB')
    """
    text = format_bytes(num_bytes, 1)
    return text if len(text.split()[0]) < 5 else format_bytes(num_bytes, 0)


LOOK = {
    "weights": ("#0072B2", ""),
    "gradients": ("#D55E00", "///"),
    "optimizer_states": ("#E69F00", "..."),
    "activations": ("#009E73", "\\\\\\"),
    "temporary": ("#CC79A7", "xxx"),
    "not attributed": ("#999999", "---"),
}
"""Colour and hatch of each part, everywhere in the book, from the bottom of a bar to its top."""

PALE = 0.25  # how much of its colour a faded bar keeps
MAX_BARS = 16
"""More bars than this cannot be labelled at 800 pixels; then only the last step is drawn."""


def drawn_instants(timeline: MemoryTimeline) -> list[Instant]:
    """The instants that get a bar: of micro-batches the first and last; the last step alone, if crowded."""
    last = max(i.micro_batch for i in timeline.instants)
    chosen = [i for i in timeline.instants if i.micro_batch in (1, last)]
    if len(chosen) > MAX_BARS:
        step = max(i.step for i in chosen)
        chosen = [i for i in chosen if i.step == step]
    return chosen


def axis_top(peak_bytes: int, capacity_bytes: int | None = None) -> int:
    """Top of the memory axis: 4, 5, 6 or 7 times a power of two, with an eighth of room above the peak.

    There is room above the card too, if that is near. So quarters of the axis are round in bytes.

    >>> axis_top(100), axis_top(100, 240), axis_top(100, 100_000)
    (128, 320, 128)
    """
    needed = max(peak_bytes, 4) * 9 // 8 + 1
    if capacity_bytes and capacity_bytes <= 2.5 * needed:
        needed = max(needed, capacity_bytes * 9 // 8)
    unit = 1 << max((needed - 1).bit_length() - 3, 2)
    return -(-needed // unit) * unit


def stacked_patches(axes) -> dict[tuple[str, bool], PathPatch]:
    """One empty patch per part, for all of its bars at once: plain, and pale (``True``)."""
    made = {}
    for part, (_, hatch) in LOOK.items():
        for is_pale in (False, True):
            colour = mix(LOOK[part][0], PALE if is_pale else 1)
            patch = hatched(StampedBars, rectangles(), facecolor=colour, linewidth=0.8, hatch=hatch, zorder=2)
            made[part, is_pale] = axes.add_patch(patch)
    return made


def stack(patches: dict, instants: list[Instant], places: list[float], width: float, pale_after: int) -> None:
    """Lay the parts of every instant on top of one another; bars after index ``pale_after`` are pale."""
    boxes = {key: [] for key in patches}
    for index, (instant, x) in enumerate(zip(instants, places, strict=True)):
        left, right, bottom = x - width / 2, x + width / 2, 0
        for part in LOOK:
            value = getattr(instant, part) or 0 if part in PARTS else instant.unattributed_bytes
            top = bottom + value
            if value:
                boxes[part, index > pale_after].append((left, bottom, right, top))
            bottom = top
    for key, placed in boxes.items():
        patches[key].set(path=rectangles(placed), visible=bool(placed))


def memory_axis(axes) -> None:
    """Ticks at quarters of the axis, written in bytes with their unit, and a light grid."""
    axes.yaxis.set_major_locator(LinearLocator(5))
    axes.yaxis.set_major_formatter(lambda num_bytes, _: tick_words(round(num_bytes)))
    bare(axes, "", "memory allocated", grid="y", hides=("top", "right", "left"), axis="y", length=0)
    axes.spines["bottom"].set_color(GREY)
    axes.set_xticks([])


class MemoryAxis:
    """A memory axis whose end moves; its four quarters stay where they are."""

    def __init__(self, picture: Picture, axes):
        memory_axis(axes)
        axes.yaxis.set_label_coords(-0.13, 0.5)
        self.axes, self.ticks = axes, Ticks(picture, axes, "y", 5)

    def end_at(self, top: int) -> None:
        """Let the axis end at ``top`` bytes."""
        self.axes.set_ylim(0, top)
        self.ticks.show((top * quarter // 4, tick_words(top * quarter // 4)) for quarter in range(5))


def name_parts(side, top: float, row: float) -> dict[str, tuple]:
    """Swatch, name and height of every part, in the order of the stack; below them what no part accounts for."""
    made = {}
    for number, part in enumerate((*reversed(PARTS), "not attributed")):
        (colour, hatch), y = LOOK[part], top - row * number
        swatch = hatched(Rectangle, (0, y - 0.066), 0.13, 0.07, facecolor=colour, hatch=hatch)
        name = side.text(0.18, y + 0.01, part.replace("_", " "), fontsize=9.5, va="top", color=INK)
        made[part] = side.add_patch(swatch), name, y
    return made


class TimelinePicture(Picture):
    """Stacked bars, one per instant; beside them the parts of the selected instant in words and bytes."""

    def __init__(self):
        super().__init__()
        self.plot = self.add_axes((0.11, 0.2, 0.645, 0.635))
        self.memory = MemoryAxis(self, self.plot)
        self.side = self.surface((0.78, 0, 0.22, 1))
        self.layout, self.names, self.totals = None, [], []
        self.bars = stacked_patches(self.plot)
        for patch in self.bars.values():
            self.move(patch)
        outline = {"facecolor": "none", "edgecolor": GREY, "linewidth": 1.2, "linestyle": (0, (2, 2)), "zorder": 3}
        self.ghost = self.move(self.plot.add_patch(PathPatch(Path([(0, 0)]), visible=False, **outline)))
        self.pointer = self.stamp(0, 0, self.plot, fontsize=9, ha="center", va="bottom", text="▼")
        self.card_name = self.stamp(0, 0, self.plot, fontsize=9, va="bottom", has_box=True)
        self.card_name.set_transform(self.plot.get_yaxis_transform())
        self.card = self.move(self.plot.axhline(0, color=INK, linewidth=1.4, linestyle=(0, (5, 3))))
        self.title = self.heading(0.955)
        self.subtitle = self.stamp(0.012, 0.898, fontsize=9, va="center", color=GREY)
        self._write_side()

    def _write_side(self) -> None:
        """The legend in words, with room for the bytes of the selected instant."""
        text = {"fontsize": 9.5, "va": "top", "color": INK, "linespacing": 1.3}
        self.side_title = self.stamp(0, 0.97, self.side, fontweight="bold", **text)
        self.side_names = name_parts(self.side, top=0.85, row=0.108)
        self.side_values = {
            part: self.stamp(0.18, y - 0.032, self.side, **{**text, "color": GREY})
            for part, (*_, y) in self.side_names.items()
        }
        self.side_total = self.stamp(0, 0.185, self.side, **text)
        self.side_card = self.stamp(0, 0.135, self.side, **{**text, "color": GREY})

    def redraw(
        self, timeline: MemoryTimeline, selected: Instant | None = None, capacity_bytes: int | None = None,
        card_name: str = "card", title: str = "Memory through a training step", fades_later: bool = False,
        before: MemoryTimeline | None = None,
    ) -> "TimelinePicture":  # fmt: skip
        """Show ``timeline``; the parts of ``selected`` (the peak, if not given) are written out beside it.

        ``capacity_bytes`` draws the card as a line; ``fades_later`` pales the instants after the selected
        one; ``before`` is another timeline, whose bars are outlined.
        """
        instants = drawn_instants(timeline)
        selected = selected if selected in instants else max(instants, key=lambda i: i.total_bytes)
        index = instants.index(selected)
        top = axis_top(max(i.total_bytes for i in instants), capacity_bytes)
        has_rest = any(i.unattributed_bytes for i in instants)
        layout = (has_rest, *((i.name, i.step, i.micro_batch) for i in instants))
        if layout != self.layout:
            self.layout = layout
            self._arrange(instants)
            for artist in (*self.side_names["not attributed"][:2], self.side_values["not attributed"]):
                artist.set_visible(has_rest)
            self.side_total.set_y(0.185 if has_rest else 0.275)
            self.side_card.set_y(self.side_total.get_position()[1] - 0.05)
        self.memory.end_at(top)
        self._draw_card(instants, capacity_bytes, top)
        stack(self.bars, instants, self.places, 0.88, index if fades_later else len(instants))
        self._outline(instants, before, top // 250)
        break_line, height = ("\n", 0.09) if len(instants) > 8 else (" ", 0.05)
        for text, x, instant in zip(self.totals, self.places, instants, strict=True):
            y = instant.total_bytes + top * 0.01
            if self.card.get_visible() and instant.total_bytes <= capacity_bytes < y + top * height:
                y = capacity_bytes + top * 0.01
            text.set(position=(x, y), text=short(instant.total_bytes).replace(" ", break_line))
            if x == self.places[index]:
                self.pointer.set_position((x, y + top * height))
        self._write_words(timeline, selected, capacity_bytes, card_name, title)
        self.alt = describe(timeline, title)
        return self

    def _outline(self, instants: list[Instant], before: MemoryTimeline | None, least: int) -> None:
        """The bars of the timeline before, where their height differs by more than ``least`` bytes."""
        known = {(i.name, i.step, i.micro_batch): i.total_bytes for i in drawn_instants(before)} if before else {}
        paths = []
        for x, instant in zip(self.places, instants, strict=True):
            height = known.get((instant.name, instant.step, instant.micro_batch), instant.total_bytes)
            if abs(height - instant.total_bytes) > least:
                paths.append(Path([(x - 0.44, 0), (x - 0.44, height), (x + 0.44, height), (x + 0.44, 0)]))
        self.ghost.set_visible(bool(paths))
        if paths:
            self.ghost.set_path(Path.make_compound_path(*paths))

    def _arrange(self, instants: list[Instant]) -> None:
        """Place the bars in groups by phase and name them below the axis."""
        self.forget_background()
        for artist in self.names + self.totals:
            artist.remove()
        self.moving = [artist for artist in self.moving if artist not in self.totals]
        is_crowded = len(instants) > 11
        small = 8 if is_crowded else 8.5
        self.places, self.names, groups, x = [], [], {}, 0.0
        for instant in instants:
            phase, _, moment = instant.name.partition(" ")
            key = (phase, instant.step, instant.micro_batch)
            x += 0.3 if groups and key not in groups else 0
            groups.setdefault(key, []).append(x)
            self.places.append(x)
            self._name([x], -0.02, "" if phase in ("init", "zero_grad") else moment or "end", GREY, small)
            x += 1
        is_split = len({i.micro_batch for i in instants}) > 1
        for (phase, _, batch), places in groups.items():
            name = f"{phase}\nbatch {batch}" if is_split and phase in ("forward", "backward") else phase
            is_broken = is_crowded and phase == "zero_grad"
            self._name(
                places, -0.02 if is_broken else -0.075, "zero_\ngrad" if is_broken else name, INK, small
            )
        for step in sorted({i.step for i in instants}):
            named = zip(self.places, instants, strict=True)
            places = [x for x, i in named if i.step == step and i.name != "init"]
            y = -0.215 if is_split else -0.165
            if places:
                ends, at = [places[0] - 0.44, places[-1] + 0.44], self.plot.get_xaxis_transform()
                line = {"color": GREY, "linewidth": 1, "clip_on": False, "transform": at}
                self.names += self.plot.plot(ends, [y, y], **line)
                self._name(places, y - 0.015, f"step {step}", INK, 9)
        style = {"fontsize": 8.5, "ha": "center", "va": "bottom", "color": INK, "linespacing": 0.95}
        self.totals = [self.stamp(0, 0, self.plot, **style) for _ in instants]
        self.plot.set_xlim(-0.65, x - 0.35)

    def _name(self, places: list[float], y: float, text: str, colour: str, size: float) -> None:
        at = self.plot.get_xaxis_transform()
        style = {"fontsize": size, "color": colour, "ha": "center", "va": "top"}
        self.names.append(self.plot.text(sum(places) / len(places), y, text, transform=at, **style))

    def _draw_card(self, instants: list[Instant], capacity_bytes: int | None, top: int) -> None:
        """The card's line, named at the end of the axis where the bars leave more room."""
        is_near = capacity_bytes is not None and capacity_bytes < top
        self.card.set_visible(is_near)
        self.card_name.set_visible(is_near)
        if is_near:
            self.card.set_ydata([capacity_bytes] * 2)
            left, right = (
                min(abs(i.total_bytes - capacity_bytes) for i in end) for end in (instants[:4], instants[-4:])
            )
            is_left = left > right
            self.card_name.set(position=(0.005 if is_left else 0.995, capacity_bytes + top * 0.008))
            self.card_name.set_ha("left" if is_left else "right")

    def _write_words(self, timeline, selected: Instant, capacity_bytes, card_name: str, title: str) -> None:
        card = "" if capacity_bytes is None else f"{card_name}: {format_bytes(capacity_bytes, 1)}"
        self.title.set_text(title)
        self.subtitle.set_text(provenance_line(timeline))
        self.card_name.set_text(card)
        self.side_card.set_text(card)
        is_peak = selected.total_bytes == timeline.peak_bytes
        self.side_title.set_text(f"{'Peak of the step' if is_peak else 'This instant'}:\n{where(selected)}")
        for part, text in self.side_values.items():
            value = getattr(selected, part) if part in PARTS else selected.unattributed_bytes
            text.set_text(format_bytes(value))
        self.side_total.set_text(f"total: {format_bytes(selected.total_bytes)}")
