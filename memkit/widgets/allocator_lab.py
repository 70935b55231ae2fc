"""The allocator lab: play a trace through CUDA's caching allocator, one event at a time."""

from collections.abc import Sequence
from typing import ClassVar

from memkit.allocator.config import AllocatorConfig
from memkit.allocator.film import Film, Still
from memkit.allocator.stories import STORIES
from memkit.pictures.allocator import FilmScale, scale_of, still_figure
from memkit.timeline import Event, MemoryTimeline
from memkit.units import MIB, format_bytes
from memkit.widgets.explorer import Choice, Explorer, Number, Switch, View

OWN = "your trace"
OPENING, CARD_MIB = "a training step", 96
"""The lab opens on a step that dies on a card of so many MiB, with free bytes of no use."""
MAX_EVENTS = 2_000
"""More events than this cannot be told apart on a slider, and drawing the scale looks at all of them."""

MAX_FILMS = 8
"""Films that are kept."""


class AllocatorLab(Explorer):
    """Play a short story, or a trace of your own, through the allocator and see its segments, blocks and holes.

    ``what`` is a ``MemoryTimeline`` with events, or events; ``step`` counts them from 0, the empty card.
    ``card_mib`` is the card's size in MiB if ``limited``; else the card has no end.

    Raises: ValueError: ``what`` has no events, or more than ``MAX_EVENTS``.
    """

    plays: ClassVar = {"step": 700}

    def __init__(self, what: MemoryTimeline | Sequence[Event] | None = None, **values):
        self.stories = {name: tuple(story()) for name, story in STORIES.items()}
        if what is not None:
            events = tuple(what.events if isinstance(what, MemoryTimeline) else what)
            if not 0 < len(events) <= MAX_EVENTS:
                raise ValueError(f"what={type(what).__name__} has {len(events)} events; 1 to {MAX_EVENTS} fit")
            self.stories = {OWN: events, **self.stories}
        self.films: dict[tuple, tuple[Film, FilmScale, int]] = {}
        first, is_limited = (OPENING, True) if what is None else (OWN, False)
        end = self.film(first, False, is_limited, CARD_MIB)[2]
        self.controls = {
            "story": Choice("Story", list(self.stories), first),
            "step": Number("Event", end, low=0, high=end),
            "expandable": Switch("expandable segments", False),
            "limited": Switch("limited card", is_limited),
            "card_mib": Number("Card, MiB", CARD_MIB, low=8, high=256, step=8),
        }
        super().__init__(**values)

    def film(self, story: str, expandable: bool, limited: bool, card_mib: int) -> tuple[Film, FilmScale, int]:
        """The film of a story, its scale, and the last event that happens; the last ``MAX_FILMS`` films are kept."""
        key = story, expandable, card_mib if limited else None
        if key not in self.films:
            while len(self.films) >= MAX_FILMS:
                del self.films[next(iter(self.films))]
            capacity = card_mib * MIB if limited else None
            film = Film(self.stories[story], AllocatorConfig(expandable_segments=expandable), capacity)
            self.films[key] = film, scale_of(film), film.still(len(film)).index
        return self.films[key]

    def followed(self, changes: dict) -> dict:
        """Beyond the last event that happens, that event."""
        state = {**self.state, **changes}
        return {**changes, "step": min(state.pop("step"), self.film(**state)[2])}

    def view(self, story: str, step: int, expandable: bool, limited: bool, card_mib: int) -> View:
        """The allocator after ``step`` events; beyond the story's end, its end."""
        film, scale, end = self.film(story, expandable, limited, card_mib)
        still = film.still(min(step, end))
        rows = [("segment", "size", "in use", "blocks", "largest hole")]
        for number, row in enumerate(still.rows, start=1):
            used = [piece for piece in row.pieces if not piece.is_free]
            hole = max((piece.size for piece in row.pieces if piece.is_free), default=0)
            sizes = (row.size, sum(piece.size for piece in used))
            rows.append((str(number), *map(format_bytes, sizes), str(len(used)), format_bytes(hole) if hole else "–"))
        said = words(still, len(film))
        return View(chart=still_figure(film, still.index, scale), words=said, table=rows, ends={"step": end})


def words(still: Still, num_events: int) -> tuple[str, ...]:
    """What happened, and what the two totals mean now."""
    first = f"Event {still.index} of {num_events}: {still.words}."
    totals = f"{format_bytes(still.allocated_bytes)} allocated, {format_bytes(still.reserved_bytes)} reserved."
    if still.failure:
        if not still.hole_bytes:
            return first, f"{totals} Nothing is free inside segments.", still.failure
        free = f"{format_bytes(still.hole_bytes)} are free inside segments"
        largest = f"the largest hole has {format_bytes(still.largest_hole_bytes)}"
        return first, f"{totals} {free}, but {largest}.", still.failure
    if not still.hole_bytes:
        return first, f"{totals} Every reserved byte is in use."
    largest = f"largest hole {format_bytes(still.largest_hole_bytes)}"
    return first, f"{totals} {format_bytes(still.hole_bytes)} are free inside segments, {largest}."
