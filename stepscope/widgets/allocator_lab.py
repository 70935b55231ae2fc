"""The allocator lab: play a trace through CUDA's caching allocator, one event at a time."""

from functools import lru_cache
from typing import ClassVar

from memkit.units import MIB, format_bytes
from memkit.widgets.explorer import Choice, Explorer, Number, Switch, View
from stepscope.allocator.caching import AllocatorConfig
from stepscope.allocator.film import STORIES, AllocatorState, Film
from stepscope.pictures import allocator_picture

OPENING, CARD_MIB = "a training step", 96
"""The lab opens on a step that dies on a card of so many MiB, with free bytes of no use."""


@lru_cache(maxsize=8)
def film_of(story: str, expandable: bool, card_mib: int | None) -> Film:
    """The film of a story on a card, or on one without an end."""
    capacity = None if card_mib is None else card_mib * MIB
    return Film(tuple(STORIES[story]()), AllocatorConfig(expandable_segments=expandable), capacity)


class AllocatorLab(Explorer, verdict=(85,), status=(112, 425)):
    """Play a short story through the allocator and see its segments, blocks and holes.

    ``step`` counts events from 0, the empty card. ``card_mib`` is the card's size in MiB if ``limited``; else the card
    has no end.
    """

    plays: ClassVar = {"step": 700}
    """Numbers that a button moves to their end by itself, and the milliseconds of a step."""

    def __init__(self, **values):
        end = film_of(OPENING, False, CARD_MIB).states[-1].index
        self.controls = {
            "story": Choice("Story", list(STORIES), OPENING),
            "step": Number("Event", end, low=0, high=end),
            "expandable": Switch("expandable segments", False),
            "limited": Switch("limited card", True),
            "card_mib": Number("Card, MiB", CARD_MIB, low=8, high=256, step=8),
        }
        super().__init__(**values)

    @property
    def panel(self):
        """The kit's, with a button that plays."""
        is_new = self._panel is None
        panel = super().panel
        if is_new:
            row = panel.children[0]
            row.children += tuple(play_of(panel, *item) for item in self.plays.items())
        return panel

    def followed(self, changes: dict) -> dict:
        """Beyond the last event that happens, that event."""
        state = {**self.state, **changes}
        card = state["card_mib"] if state["limited"] else None
        end = film_of(state["story"], state["expandable"], card).states[-1].index
        return {**changes, "step": min(state["step"], end)}

    def view(self, story: str, step: int, expandable: bool, limited: bool, card_mib: int) -> View:
        """The allocator after ``step`` events; beyond the story's end, its end."""
        film = film_of(story, expandable, card_mib if limited else None)
        state, end = film.state(min(step, len(film))), film.states[-1].index
        rows = [("segment", "size", "in use", "blocks", "largest hole")]
        for number, row in enumerate(state.rows, start=1):
            used = [piece.size for piece in row.pieces if not piece.is_free]
            hole = max((piece.size for piece in row.pieces if piece.is_free), default=0)
            sizes = format_bytes(row.size), format_bytes(sum(used)), str(len(used))
            rows.append((str(number), *sizes, format_bytes(hole) if hole else "–"))
        chart, ends = allocator_picture(film, state.index, room=8), {"step": end}
        return View(chart=chart, words=words(state, len(film)), table=rows, ends=ends)


def play_of(panel, name: str, interval: int):
    """A button that moves a number's slider to its end by itself, a step each ``interval`` ms."""
    import ipywidgets as widgets

    slider, auto = panel.controls[name].slider, widgets.Layout(width="auto")
    play = widgets.Play(
        value=slider.value, max=slider.max, interval=interval, show_repeat=False, layout=auto
    )
    widgets.jslink((slider, "max"), (play, "max"))
    widgets.link((play, "value"), (slider, "value"))
    return play


def words(state: AllocatorState, num_events: int) -> tuple[str, ...]:
    """What happened, and what the two totals mean now."""
    first = f"Event {state.index} of {num_events}: {state.words}."
    totals = f"{format_bytes(state.allocated_bytes)} allocated, {format_bytes(state.reserved_bytes)} reserved."
    free, hole = format_bytes(state.hole_bytes), format_bytes(state.largest_hole_bytes)
    if state.failure:
        means = "Nothing is free inside segments."
        if state.hole_bytes:
            means = f"{free} are free inside segments, but the largest hole has {hole}."
        return first, f"{totals} {means}", state.failure
    means = "Every reserved byte is in use."
    if state.hole_bytes:
        means = f"{free} are free inside segments, largest hole {hole}."
    return first, f"{totals} {means}"
