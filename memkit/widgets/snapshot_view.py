"""A memory snapshot as a stacked timeline, offline: pick an allocation and read the line of the model that made it."""

from pathlib import Path

from memkit.allocator.replays import Replay
from memkit.allocator.snapshot_reader import read_snapshot
from memkit.fitting.diagnosis import lines_of
from memkit.pictures.bands import Band, allocations_figure, stack_bands
from memkit.timeline import MemoryTimeline
from memkit.units import format_bytes
from memkit.widgets.explorer import Choice, Explorer, Number, View

ORDERS = ("largest first", "in order of allocation")
NUM_LINES = 10


class SnapshotView(Explorer):
    """Every allocation of a run as a band: as high as its bytes, as long as its life.

    ``source`` is a traced or replayed timeline, a snapshot, or the file of one (read without running it).
    Choose a band by its number, or click it.

    Raises: ValueError: the source carries no events.
    """

    def __init__(
        self,
        source: MemoryTimeline | Replay | dict | str | Path,
        title: str = "Every allocation",
        max_bands: int = 500,
        **values,
    ):
        if not isinstance(source, (MemoryTimeline, Replay)):
            source = read_snapshot(source)
        self.timeline = source if isinstance(source, MemoryTimeline) else source.timeline
        self.bands = stack_bands(self.timeline.events, max_bands)
        self.chart = allocations_figure(self.timeline, title=title, stacked=self.bands)
        self.described = self.chart.alt
        self.ranked = {
            ORDERS[0]: sorted(self.bands.bands, key=lambda band: (-band.num_bytes, band.start)),
            ORDERS[1]: list(self.bands.bands),
        }
        self.lines = lines_at_peak(self.timeline, self.bands.totals)
        self.controls = {
            "allocation": Number("Allocation", 1, low=1, high=len(self.bands.bands)),
            "order": Choice("Order", list(ORDERS), ORDERS[0]),
        }
        super().__init__(**values)

    def view(self, allocation: int, order: str) -> View:
        """The picture with one allocation framed, and what is known of it."""
        number, bands = allocation, self.ranked[order]
        if number > len(bands):
            raise ValueError(f"allocation={number} is past the last of {len(bands)} bands")
        band = bands[number - 1]
        self.chart.marked = self.bands.bands.index(band)
        words = self.words(band)
        place = f"Allocation {number} of {len(bands)}, {order}: {words[0]}"
        self.chart.alt = f"{self.described} Framed: {words[0]}"
        return View(chart=self.chart, words=(place, *words[1:]), table=self.lines)

    def words(self, band: Band) -> tuple[str, ...]:
        """Size and part, the line and operation that made it, and its life."""
        born, events = band.event, self.timeline.events
        part = (born.part or "of a part that is not recorded").replace("_", " ")
        size = f"{format_bytes(band.num_bytes)}, {part}."
        made = f"Made by {born.where or 'a line not recorded'}" + (f", in {born.op}." if born.op else ".")
        life = f"Allocated at event {band.start}" + (f", in {born.phase}" if born.phase else "")
        if band.end >= len(events):
            return size, made, f"{life}; never freed here."
        died = events[band.end].phase
        return size, made, f"{life}; freed at event {band.end}" + (f", in {died}." if died else ".")

    def pick(self, mark: str) -> None:
        """Choose the band that was clicked."""
        band = self.bands.bands[int(mark)]
        self.set(allocation=self.ranked[self.value["order"]].index(band) + 1)


def lines_at_peak(timeline: MemoryTimeline, totals: tuple[int, ...]) -> tuple[tuple[str, ...], ...]:
    """The lines that made what stands at the peak, as rows of a table, the largest first."""
    lines = lines_of(timeline.events.live_at(totals.index(max(totals))))
    return ("at the peak, by line", "part", "blocks", "bytes"), *(line.row for line in lines[:NUM_LINES])
