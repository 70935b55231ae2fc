"""The lab's film, its picture and the bands: what is drawn is what the allocator holds."""

import pytest
from drawn import marks_of, words_of

from memkit.allocator.caching import CachingAllocator
from memkit.allocator.config import AllocatorConfig
from memkit.allocator.film import Film
from memkit.allocator.stories import STORIES, growing_story, holes_story, rounding_story, step_story
from memkit.pictures.allocator import MAX_ROWS, allocator_picture
from memkit.pictures.bands import allocations_figure, stack_bands
from memkit.timeline import Event, Instant, MemoryTimeline
from memkit.units import MIB

EXPANDABLE = AllocatorConfig(expandable_segments=True)


@pytest.mark.parametrize("name", STORIES)
@pytest.mark.parametrize("config", [None, EXPANDABLE])
def test_every_still_tiles_its_segments_and_adds_up(name, config):
    events = STORIES[name]()
    film = Film(events, config)
    live: dict[int, int] = {}
    for index in range(len(film) + 1):
        if index:
            event = events[index - 1]
            live = {**live, event.block: event.num_bytes} if event.num_bytes > 0 else live
            if event.num_bytes < 0:
                assert -event.num_bytes == live.pop(event.block)
        still = film.still(index)
        pieces = [piece for row in still.rows for piece in row.pieces]
        for row in still.rows:
            ends = [piece.offset + piece.size for piece in row.pieces]
            assert [piece.offset for piece in row.pieces] == [0, *ends[:-1]]
            assert ends[-1] == row.size
        used = [piece for piece in pieces if not piece.is_free]
        assert still.reserved_bytes == sum(piece.size for piece in pieces)
        assert still.allocated_bytes == sum(piece.size for piece in used)
        assert sorted(live.values()) == sorted(piece.size - piece.rest_bytes for piece in used)
        assert still.largest_hole_bytes == max((p.size for p in pieces if p.is_free), default=0)
    assert not still.failure


def test_going_back_shows_what_was_there_before():
    film = Film(step_story())
    forward = [film.still(index) for index in range(len(film) + 1)]
    assert [film.still(index) for index in reversed(range(len(film) + 1))] == forward[::-1]
    with pytest.raises(ValueError, match="index=57 is outside 0 to 56"):
        film.still(57)
    with pytest.raises(ValueError, match="at least one event"):
        Film([])


def test_the_stories_show_what_they_promise():
    rounding = Film(rounding_story())
    small, w, embedding, y = rounding.still(len(rounding)).rows
    assert small.is_small and not w.is_small
    assert [piece.size for piece in small.pieces[:1]] == [512]
    assert embedding.pieces[0].rest_bytes == 1 * MIB
    assert y.pieces[0].rest_bytes == MIB // 2

    holes = Film(holes_story(), capacity_bytes=90 * MIB)
    last = holes.still(len(holes))
    assert "out of memory" in last.words and "Tried to allocate 24.00 MiB" in last.failure
    assert last.hole_bytes > 24 * MIB > last.largest_hole_bytes
    assert holes.still(holes.position).index == last.index

    plain, growing = Film(growing_story()), Film(growing_story(), EXPANDABLE)
    assert plain.still(len(plain)).reserved_bytes == (24 + 20 + 24 + 28 + 32 + 36 + 40) * MIB
    assert growing.still(len(growing)).reserved_bytes == 80 * MIB


@pytest.mark.parametrize("name", STORIES)
@pytest.mark.parametrize("index", [0, 5, None])
def test_what_is_drawn_is_what_the_allocator_holds(name, index):
    film = Film(STORIES[name](), capacity_bytes=96 * MIB)
    still = film.still(len(film) if index is None else index)
    chart = allocator_picture(film, index)
    pieces = [piece for row in still.rows[:MAX_ROWS] for piece in row.pieces]
    blocks = [(int(mark.data["bytes"]), mark.data["part"]) for mark in marks_of(chart, "part")]
    assert blocks == [(piece.size, piece.part or "not attributed") for piece in pieces if not piece.is_free]
    holes = [int(mark.data["hole"]) for mark in marks_of(chart, "hole")]
    assert holes == [piece.size for piece in pieces if piece.is_free]
    widest = max(row.size for number in range(len(film) + 1) for row in film.still(number).rows)
    for mark in marks_of(chart, "part"):
        assert mark.at("width") == pytest.approx(684 * int(mark.data["bytes"]) / widest, abs=0.11)
    totals = [int(mark.data["bytes"]) for mark in marks_of(chart, "bytes") if "part" not in mark.data]
    assert totals == [still.allocated_bytes, still.reserved_bytes]


def test_more_segments_than_rows_are_counted():
    events = [Event(number, 12 * MIB) for number in range(MAX_ROWS + 5)]
    chart = allocator_picture(Film(events))
    assert "6 more" in words_of(chart) and "19 segments" in chart.alt


# ---------------------------------------------------------------- bands

BAND_EVENTS = (
    Event(0, 100, "weights", "init"),
    Event(1, 30, "activations", "forward"),
    Event(2, 50, "activations", "forward", where="model.py:7"),
    Event(1, -30, "activations", "backward"),
    Event(3, 10, "temporary", "backward"),
    Event(2, -50, "activations", "backward"),
)


def bottom_at(band, index: int) -> int:
    """A band's lower edge after an event."""
    return [low for start, low in zip(band.xs, band.ys, strict=True) if start <= index][-1]


def test_bands_lie_on_those_before_them_and_drop_when_one_below_is_freed():
    bands, totals, rest = stack_bands(BAND_EVENTS)
    by_block = {band.event.block: band for band in bands}
    assert totals == [100, 130, 180, 150, 160, 110] and rest == [0] * 6
    assert [bottom_at(by_block[2], index) for index in (2, 3, 4)] == [130, 100, 100]
    assert [bottom_at(by_block[3], index) for index in (4, 5)] == [150, 100]


def test_small_blocks_are_summed():
    bands, _, rest = stack_bands(BAND_EVENTS, max_bands=2)
    assert {band.event.block for band in bands} == {0, 2}
    assert rest == [0, 30, 30, 0, 10, 10]


def test_bands_never_overlap_and_reach_the_total():
    events = step_story()
    bands, totals, _ = stack_bands(events)
    for index in range(len(events)):
        alive = [band for band in bands if band.start <= index < band.end]
        spans = sorted((bottom_at(band, index), band.event.num_bytes) for band in alive)
        height = 0
        for bottom, size in spans:
            assert bottom == height
            height += size
        assert height == totals[index]


def test_the_figure_of_bands_names_the_peak():
    trace = MemoryTimeline(
        instants=(Instant(name="end", total_bytes=0),), source="traced", events=tuple(step_story())
    )
    picture = allocations_figure(trace)
    bands, totals, _ = stack_bands(trace.events)
    assert [int(mark.data["bytes"]) for mark in marks_of(picture, "bytes")] == [b.event.num_bytes for b in bands]
    peak = max(totals)
    allocator = CachingAllocator()
    addresses = {}
    for event in trace.events:
        if event.num_bytes > 0:
            addresses[event.block] = allocator.malloc(event.num_bytes)
        else:
            allocator.free(addresses[event.block])
    assert allocator.peak["requested"] == peak
    assert f"{peak / MIB:.2f} MiB" in picture.alt
    with pytest.raises(ValueError, match="no events"):
        allocations_figure(MemoryTimeline(instants=trace.instants, source="formula"))
