"""The rounding lab: add a small number again and again, in a narrow format, in four ways."""

import numpy as np

from memkit.formats.reading import number_text, parse_number
from memkit.formats.records import FORMATS, FloatFormat
from memkit.formats.rounding import round_to
from memkit.formats.running_sums import MAX_MANTISSA_BITS, num_moving_terms, sticking_point, sums_by_method
from memkit.formats.single import neighbours_of
from memkit.pictures.axes import round_ticks
from memkit.pictures.lines import LINE_LOOKS, Line, lines_figure
from memkit.pictures.svg import Chart
from memkit.widgets.explorer import Choice, Entry, Explorer, Number, View

NAMES = tuple(
    name
    for name, fmt in FORMATS.items()
    if isinstance(fmt, FloatFormat) and fmt.has_zero and fmt.mantissa_bits <= MAX_MANTISSA_BITS
)
MAX_TERMS, MAX_SEED, MAX_POINTS = 50_000, 10**6, 300


class RoundingLab(Explorer):
    """Format, term, number of additions and a seed → the running sum in four ways, beside the exact one."""

    def followed(self, changes: dict) -> dict:
        """A term may be given as a number or as text."""
        is_number = isinstance(changes.get("term"), (int, float)) and not isinstance(changes["term"], bool)
        return {**changes, "term": repr(changes["term"])} if is_number else changes

    def view(
        self,
        format=Choice("Format", NAMES, "bfloat16"),
        term=Entry("Term", "0.001"),
        num_terms=Number("Additions", 4096, low=16, high=8192, step=16),
        seed=Number("Seed of chance", 0, low=0, high=99),
    ) -> View:
        """The sums as lines, and what became of them."""
        number = parse_number(term, "term")
        if num_terms > MAX_TERMS:
            raise ValueError(f"num_terms={num_terms} is above {MAX_TERMS}, the most that is drawn at once")
        if seed > MAX_SEED:
            raise ValueError(f"seed={seed} is above {MAX_SEED}")
        totals = running_totals(number, num_terms, format, seed)
        ends = {name: float(total[-1]) for name, total in totals.items()}
        table = [("sum", "total", "off by", "last moved at")]
        for name, total in totals.items():
            moved = "–" if name == "exact" else str(num_moving_terms(total))
            table.append((name, number_text(ends[name]), off_by(ends[name], ends["exact"]), moved))
        return View(
            chart=running_sum_figure(totals, format),
            words=(fate(format, totals), *why(format, totals), others(totals)),
            table=table,
        )


def running_totals(term: float, num_terms: int, format: str, seed: int = 0) -> dict[str, np.ndarray]:
    """The total after each addition of ``term``: exact, and in each way to add."""
    rounded = float(round_to(float(term), format, overflow="saturate"))
    return {"exact": rounded * np.arange(1, num_terms + 1)} | sums_by_method(term, num_terms, format, seed)


def running_sum_figure(totals: dict[str, np.ndarray], format: str) -> Chart:
    """The totals as lines; a sum that has stuck says after how many additions."""
    num_terms = totals["exact"].size
    kept = np.unique(np.linspace(0, num_terms - 1, min(num_terms, MAX_POINTS)).astype(int))
    lines, ends = [], []
    for (name, total), look in zip(totals.items(), LINE_LOOKS, strict=True):
        moving = num_moving_terms(total)
        stops = f", stuck after {moving}" if name == "nearest" and moving < num_terms else ""  # the same sum for ever
        end = number_text(float(total[-1])) + stops
        ends.append(f"{name} {end}")
        lines.append(Line(name=name, xs=(kept + 1).tolist(), ys=total[kept].tolist(), look=look, note=end))
    low = min(0.0, *(float(total.min()) for total in totals.values()))
    high = max(0.0, *(float(total.max()) for total in totals.values()))
    room = 0.05 * (high - low) or 1.0
    up = [(tick, number_text(tick, 4)) for tick in round_ticks(low, high + room)]
    across = [(tick, f"{tick:,.0f}") for tick in round_ticks(0, num_terms) if tick == int(tick)]
    term = number_text(float(totals["exact"][0]))
    ends_of_axis = (low - room * (low < 0), high + room)
    title = f"{num_terms} × {term} in {format}"
    chart, *_ = lines_figure(title, lines, across, up, ends_of_axis, "additions", "total")
    chart.alt = f"The sum of {num_terms} terms of {term} in {format}: {'; '.join(ends)}."
    return chart


def off_by(total: float, exact: float) -> str:
    """The error of a total as a share of the exact one."""
    if total == exact:
        return "exact"
    return f"{abs(total - exact) / abs(exact):.2%}" if exact else "all of it"


def fate(format: str, totals: dict[str, np.ndarray]) -> str:
    """What rounding to nearest makes of the sum."""
    total, exact = float(totals["nearest"][-1]), float(totals["exact"][-1])
    moving, num_terms = num_moving_terms(totals["nearest"]), totals["nearest"].size
    if exact == 0:
        return f"The term is 0 in {format}, and so is every sum."
    if moving < num_terms:
        after = f"sticks at {number_text(total)} after {moving} of {num_terms} additions"
    else:
        after = f"reaches {number_text(total)} and still moves"
    return f"Rounded to nearest in {format}, the sum {after}; exact, it is {number_text(exact)}."


def why(format: str, totals: dict[str, np.ndarray]) -> tuple[str, ...]:
    """The step at the last total against the term, and where the sum will stick if it has not."""
    fmt = FORMATS[format]
    term, total = abs(float(totals["exact"][0])), abs(float(totals["nearest"][-1]))
    if term == 0:
        return (f"The smallest positive value of {format} is {number_text(fmt.smallest_subnormal)}.",)
    if total >= fmt.max:
        return (f"{number_text(fmt.max)} is the end of {format}: the sum saturates.",)
    step = neighbours_of(total, fmt)[1] - total
    steps = f"The next value beyond {number_text(total)} is {number_text(step)} away"
    if num_moving_terms(totals["nearest"]) < totals["nearest"].size:
        return (f"{steps}, and a term of {number_text(term)} is at most half of that: it is rounded away.",)
    end = sticking_point(term, fmt)
    later = f"the sum will stick at {number_text(end)}" if end < fmt.max else f"{format} ends before it sticks"
    later = "from here on the sum sticks" if end == total else later
    return (f"{steps}; the term is {number_text(term)}: {later}.",)


def others(totals: dict[str, np.ndarray]) -> str:
    """What the three cures give."""
    exact = float(totals["exact"][-1])
    cures = [name for name in totals if name not in ("exact", "nearest")]
    ends = {name: float(totals[name][-1]) for name in cures}
    told = (f"{name} {number_text(end)} ({off_by(end, exact)})" for name, end in ends.items())
    return f"The cures, and how far each is off: {'; '.join(told)}."
