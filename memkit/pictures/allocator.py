"""A picture of the allocator: segments as rows, blocks in them, holes between, and the two totals.

The picture is made once and moved from still to still, so that a slider may play a film. Nothing is told by
colour alone: a part has a hatch, a hole is white, the unasked rest of a block is dotted, a new block has a
dark frame.
"""

from collections.abc import Sequence

from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path

from memkit.allocator.film import Film, Row, Still
from memkit.pictures.bands import Band, stack_bands
from memkit.pictures.picture import FAINT, GREY, INK, OKABE_ITO, Picture, hatched, mix
from memkit.pictures.stamped_bars import rectangles
from memkit.pictures.timeline import LOOK
from memkit.timeline import Event, MemoryTimeline
from memkit.units import MIB, format_bytes

MAX_ROWS = 14
MAX_NAMES = 80  # of blocks wide enough to carry one
BAR_HEIGHT = 0.68
UNKNOWN = "not attributed"
REST_COLOUR = mix("#999999", 0.5)


class AllocatorPicture(Picture):
    """Segments by address from top to bottom; ``redraw(still)`` moves it to another moment.

    ``widest_bytes`` is the length of the longest segment, ``scale_bytes`` the end of the two totals' scale,
    ``num_rows`` how many segments are drawn.
    """

    def __init__(self, widest_bytes: int, scale_bytes: int, num_rows: int, capacity_bytes: int | None = None):
        super().__init__(8.0, 1.72 + 0.245 * num_rows)
        self.widest_bytes, self.scale_bytes, self.num_rows = widest_bytes, scale_bytes, num_rows
        bottom, top = 1.0 / self.get_figheight(), 1 - 0.52 / self.get_figheight()
        self.heading = self._line(0.16, 10.5, "bold")
        self.said = self._line(0.38, 9, "normal")
        self.plot = self.add_axes((0.12, bottom, 0.85, top - bottom))
        self.plot.set(xlim=(0, widest_bytes), ylim=(num_rows - 0.4, -0.6))
        self._axis(self.plot, widest_bytes)
        self.part_patches = {part: self._patch(*LOOK[part]) for part in LOOK}
        self.rest_patch = self._patch(REST_COLOUR, "....")
        self.hole_patch = self._patch("white", "", edgecolor=GREY)
        self.new_patch = self._patch("none", "", edgecolor=INK, linewidth=1.8)
        self.row_names = [self._text(self.plot, 8.5, "right") for _ in range(num_rows)]
        self.block_names = [self._text(self.plot, 7.5, "center", has_box=True) for _ in range(MAX_NAMES)]
        self.capacity_bytes = capacity_bytes
        self._totals(capacity_bytes)
        named = [(part.replace("_", " "), *look) for part, look in LOOK.items() if part != UNKNOWN]
        _swatches(self, [*named, ("unasked rest", REST_COLOUR, "...."), ("hole", "white", "")])

    def _line(self, inches_from_top: float, size: float, weight: str):
        y = 1 - inches_from_top / self.get_figheight()
        return self.stamp(0.012, y, fontsize=size, fontweight=weight, va="center")

    def _axis(self, plot, widest: int) -> None:
        step = max(MIB, 1 << max(widest // 8 - 1, 1).bit_length())
        ticks = range(0, widest + 1, step)
        plot.set_xticks(list(ticks), [format_bytes(t, 0) for t in ticks], fontsize=7.5, color=GREY)
        plot.set_yticks([])
        plot.tick_params(length=0, pad=2)
        plot.spines[["top", "right", "left"]].set_visible(False)
        plot.spines["bottom"].set_color(FAINT)

    def _patch(self, colour, hatch: str, edgecolor: object = "white", linewidth: float = 0.7):
        patch = self.moving_bars(self.plot, colour, hatch, linewidth=linewidth, clip_on=False)
        patch.set_edgecolor(edgecolor)
        return patch

    def _text(self, plot, size: float, ha: str, has_box: bool = False):
        return self.stamp(0, 0, plot, has_box=has_box, fontsize=size, ha=ha, va="center")

    def _totals(self, capacity_bytes: int | None) -> None:
        """Two bars below the segments: what blocks use, what segments hold, and the card's line."""
        height = self.get_figheight()
        place = (0.12, 0.35 / height, 0.52, 0.36 / height)
        self.totals = self.surface(place, xlim=(0, self.scale_bytes), ylim=(1.5, -0.5))
        self.bars, self.sums = [], []
        looks = (("allocated", OKABE_ITO[5], ""), ("reserved", OKABE_ITO[7], "///"))
        for row, (name, colour, hatch) in enumerate(looks):
            self.totals.text(
                -0.015 * self.scale_bytes, row, name, fontsize=9, ha="right", va="center", color=INK
            )
            self.bars.append(self.moving_bars(self.totals, colour, hatch, linewidth=0))
            self.sums.append(self._text(self.totals, 9, "left"))
            self.sums[row].set_position((self.scale_bytes * 1.03, row))
        if capacity_bytes is not None:
            look = {"color": OKABE_ITO[1], "linewidth": 2, "linestyle": (0, (3, 1.5)), "clip_on": False}
            self.totals.axvline(capacity_bytes, **look)

    def redraw(self, still: Still, num_events: int) -> "AllocatorPicture":
        """Move every artist to another still."""
        self.heading.set_text(f"event {still.index} of {num_events}")
        self.said.set_text(still.words if len(still.words) <= 124 else still.words[:122] + " …")
        rows = still.rows if len(still.rows) <= self.num_rows else still.rows[: self.num_rows - 1]
        boxes: dict[str, list] = {part: [] for part in LOOK}
        rest, holes, frames, labels = [], [], [], []
        for y, row in enumerate(rows):
            for piece in row.pieces:
                end, high, low = piece.offset + piece.size, y - BAR_HEIGHT / 2, y + BAR_HEIGHT / 2
                box = (piece.offset, high, end, low)
                if piece.is_free:
                    holes.append(box)
                    continue
                boxes[piece.part if piece.part in boxes else UNKNOWN].append(box)
                if piece.rest_bytes > self.widest_bytes / 400:
                    rest.append((end - piece.rest_bytes, high, end, low))
                if piece.is_new:
                    frames.append(box)
                if piece.size > self.widest_bytes * (0.011 * len(piece.label) + 0.006):
                    labels.append((piece.offset + (piece.size - piece.rest_bytes) / 2, y, piece.label))
        for part, patch in self.part_patches.items():
            patch.set_path(rectangles(boxes[part]))
        self.rest_patch.set_path(rectangles(rest))
        self.hole_patch.set_path(rectangles(holes))
        self.new_patch.set_path(rectangles(frames))
        self._place(
            self.row_names, [(-self.widest_bytes * 0.012, y, _row_name(row)) for y, row in enumerate(rows)]
        )
        if len(rows) < len(still.rows):
            self.row_names[-1].set_position((-self.widest_bytes * 0.012, self.num_rows - 1))
            self.row_names[-1].set_text(f"{len(still.rows) - len(rows)} more")
        self._place(self.block_names, labels)
        for row, (bar, value) in enumerate(zip(self.bars, (still.allocated_bytes, still.reserved_bytes), strict=True)):
            bar.set_path(rectangles([(0, row - 0.36, value, row + 0.36)]))
        card = f" of the card's {format_bytes(self.capacity_bytes)}" if self.capacity_bytes else ""
        hole = f", largest hole {format_bytes(still.largest_hole_bytes)}" if still.hole_bytes else ""
        self.sums[0].set_text(format_bytes(still.allocated_bytes) + hole)
        self.sums[1].set_text(format_bytes(still.reserved_bytes) + card)
        self.alt = describe(still, num_events)
        return self

    def _place(self, texts: list, entries: Sequence[tuple[float, float, str]]) -> None:
        for text, (x, y, words) in zip(texts, [*entries, *[(0, 0, "")] * len(texts)], strict=False):
            text.set_position((x, y))
            text.set_text(words)


def allocator_picture(film: Film, index: int | None = None) -> AllocatorPicture:
    """A picture of a film, at its end or after ``index`` events; its axes fit the whole film."""
    stills = [film.still(i) for i in range(len(film) + 1)]
    widest = max((row.size for still in stills for row in still.rows), default=MIB)
    scale = max(*(still.reserved_bytes for still in stills), film.capacity_bytes or 0, MIB)
    num_rows = min(max(3, *(len(still.rows) for still in stills)), MAX_ROWS)
    picture = AllocatorPicture(widest, scale, num_rows, film.capacity_bytes)
    return picture.redraw(film.still(len(film) if index is None else index), len(film))


def describe(still: Still, num_events: int) -> str:
    """The still in words, for who does not see it."""
    segments = "1 segment" if len(still.rows) == 1 else f"{len(still.rows)} segments"
    return (
        f"After event {still.index} of {num_events}: {still.words}. {segments}, "
        f"{format_bytes(still.allocated_bytes)} allocated, {format_bytes(still.reserved_bytes)} reserved, "
        f"largest hole {format_bytes(still.largest_hole_bytes)}."
    )


def _row_name(row: Row) -> str:
    kind = "small" if row.is_small else "large"
    return f"{format_bytes(row.size, 0)} {'grows' if row.is_expandable else kind}"


def _swatches(picture: Picture, entries: Sequence[tuple[str, object, str]]) -> None:
    """A line of named swatches at the bottom of a picture."""
    side = picture.surface((0.0, 0.0, 1.0, 0.3 / picture.get_figheight()), xlim=(0, 100))
    x = 1.2
    for name, colour, hatch in entries:
        swatch = hatched(Rectangle, (x, 0.3), 2, 0.45, facecolor=colour, hatch=hatch, linewidth=0.7)
        swatch.set_edgecolor(GREY if colour == "white" else "white")
        side.add_patch(swatch)
        side.text(x + 2.5, 0.52, name, fontsize=8, va="center", color=INK)
        x += 4.0 + 0.97 * len(name)


def allocations_figure(
    timeline: MemoryTimeline, max_bands: int = 500, title: str = "Every allocation of the step"
) -> Picture:
    """Blocks as bands over the events, stacked as PyTorch's visualiser stacks them; the smaller ones as one area.

    Raises: ValueError: the timeline carries no events.
    """
    if not timeline.events:
        raise ValueError(f"this {timeline.source} timeline carries no events to draw")
    stacked = stack_bands(timeline.events, max_bands)
    top, num_events = max(max(stacked.totals), 1), len(timeline.events)
    picture = Picture(8.0, 4.2)
    plot = picture.add_axes((0.11, 0.155, 0.87, 0.745))
    plot.set(xlim=(0, num_events), ylim=(0, top * 1.04))
    unit = 1 << max(top // 4, 1).bit_length() - 1
    ticks = range(0, top + 1, unit)
    plot.set_yticks(ticks, [format_bytes(tick, 1).replace(".0 ", " ") for tick in ticks], fontsize=8)
    plot.tick_params(length=0, colors=GREY, labelsize=8)
    plot.spines[["top", "right", "left"]].set_visible(False)
    plot.spines["bottom"].set_color(FAINT)
    for part, (colour, hatch) in LOOK.items():
        own = [b for b in stacked.bands if (b.event.part if b.event.part in LOOK else UNKNOWN) == part]
        if own:
            plot.add_artist(hatched(PathPatch, band_path(own), facecolor=colour, hatch=hatch, linewidth=0))
            tall = [band for band in own if band.num_bytes > top / 100]
            plot.add_artist(PathPatch(band_path(tall), facecolor="none", edgecolor="white", linewidth=0.4))
    steps = range(num_events)
    large = [total - rest for total, rest in zip(stacked.totals, stacked.rest, strict=True)]
    floor = large
    for part, heights in stacked.rest_by_part.items():
        ceiling = [low + high for low, high in zip(floor, heights, strict=True)]
        colour = mix(LOOK.get(part, LOOK[UNKNOWN])[0], 0.5)
        plot.fill_between(steps, floor, ceiling, step="post", color=colour, linewidth=0)
        floor = ceiling
    plot.step(steps, stacked.totals, where="post", color=INK, linewidth=0.9)
    _mark_phases(plot, timeline.events, top)
    picture.text(0.012, 0.965, title, fontsize=11, fontweight="bold", va="center", color=INK)
    there = {band.event.part or UNKNOWN for band in stacked.bands}
    named = [(part.replace("_", " "), *look) for part, look in LOOK.items() if part in there]
    _swatches(picture, [*named, ("pale: smaller blocks of a part", REST_COLOUR, "")])
    peak = stacked.totals.index(top)
    where = timeline.events[peak]
    picture.alt = (
        f"{title}: {num_events} events, {len(stacked.bands)} largest blocks as bands. The peak of {format_bytes(top)} "
        f"is at event {peak}, {where.where or where.op or 'line not recorded'}."
    )
    return picture


def band_path(bands: Sequence[Band]) -> Path:
    """The outlines of bands as one path: along the lower edge, and back along the upper one."""
    vertices, codes = [(0, 0)], [Path.MOVETO]
    for band in bands:
        ends = [*band.xs[1:], band.end]
        lower = [(x, y) for a, b, y in zip(band.xs, ends, band.ys, strict=True) for x in (a, b)]
        upper = [(x, y + band.num_bytes) for x, y in reversed(lower)]
        vertices += [*lower, *upper, lower[0]]
        codes += [Path.MOVETO, *[Path.LINETO] * (2 * len(lower) - 1), Path.CLOSEPOLY]
    return Path(vertices, codes)


def _mark_phases(plot, events: Sequence[Event], top: int) -> None:
    """A tick where a phase begins, with its name where there is room."""
    starts = [i for i, e in enumerate(events) if i == 0 or e.phase != events[i - 1].phase]
    ends = [*starts[1:], len(events)]
    plot.set_xticks([])
    for start, end in zip(starts, ends, strict=True):
        if events[start].phase and (end - start) / len(events) > 0.035:
            plot.axvline(start, color=FAINT, linewidth=0.8, zorder=0)
            name = events[start].phase
            is_wide = (end - start) / len(events) > 0.012 * len(name)
            slanted = {} if is_wide else {"rotation": 20, "ha": "right"}
            look = {"fontsize": 8, "ha": "center", "va": "top", "color": INK, **slanted}
            plot.text((start + end) / 2, -top * 0.02, name, **look)
