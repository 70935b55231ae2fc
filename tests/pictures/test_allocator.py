"""The lab's film, its picture and the bands: what is drawn is what the allocator holds."""

import io

import numpy as np
import pytest
from PIL import Image

from memkit.allocator.caching import CachingAllocator
from memkit.allocator.config import AllocatorConfig
from memkit.allocator.film import Film
from memkit.allocator.stories import STORIES, growing_story, holes_story, rounding_story, step_story
from memkit.pictures.allocator import MAX_ROWS, allocations_figure, allocator_picture, describe
from memkit.pictures.bands import stack_bands
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


def test_words_say_where_the_memory_came_from():
    film = Film(rounding_story(), EXPANDABLE)
    assert film.still(1).words == "loss wants 4 B, gets 512 B: maps 2.00 MiB"
    assert film.still(2).words.endswith("from a cached block")
    assert (
        Film(rounding_story()).still(4).words == "w1 wants 3.00 MiB, gets 3.00 MiB: cudaMalloc of 20.00 MiB"
    )


def pixels(picture) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(picture.png())).convert("RGB"))


def test_the_picture_moves_in_place_and_equals_a_fresh_one():
    film = Film(step_story(), capacity_bytes=160 * MIB)
    picture = allocator_picture(film)
    artists = len(picture.moving)
    first = pixels(picture)
    assert not np.array_equal(first, pixels(picture.redraw(film.still(9), len(film))))
    assert np.array_equal(pixels(picture), pixels(allocator_picture(film, 9)))
    assert np.array_equal(first, pixels(picture.redraw(film.still(len(film)), len(film))))
    assert len(picture.moving) == artists


def test_boxes_are_as_wide_as_blocks():
    film = Film(holes_story())
    picture = allocator_picture(film, 8)
    path = picture.part_patches["activations"].get_path()
    widths = {v[0] for v in path.vertices}
    offsets = {p.offset for row in film.still(8).rows for p in row.pieces if not p.is_free}
    assert offsets <= widths
    assert max(widths) == max(
        p.offset + p.size for row in film.still(8).rows for p in row.pieces if not p.is_free
    )


def test_more_segments_than_rows_are_counted():
    events = [Event(number, 12 * MIB) for number in range(MAX_ROWS + 5)]
    picture = allocator_picture(Film(events))
    assert picture.row_names[-1].get_text() == "6 more"
    assert "19 segments" in picture.alt


def test_the_words_for_who_does_not_see_the_picture():
    film = Film(holes_story(), capacity_bytes=90 * MIB)
    text = describe(film.still(len(film)), len(film))
    assert text.startswith(
        "After event 14 of 14: fits nowhere wants 24.00 MiB: out of memory, 10.00 MiB left"
    )
    assert "4 segments, 38.00 MiB allocated, 80.00 MiB reserved, largest hole 8.00 MiB" in text


# ---------------------------------------------------------------- bands

BAND_EVENTS = (
    Event(0, 100, "weights", "init"),
    Event(1, 30, "activations", "forward"),
    Event(2, 50, "activations", "forward", where="model.py:7"),
    Event(1, -30, "activations", "backward"),
    Event(3, 10, "temporary", "backward"),
    Event(2, -50, "activations", "backward"),
)


def test_bands_lie_on_those_before_them_and_drop_when_one_below_is_freed():
    stacked = stack_bands(BAND_EVENTS)
    by_block = {band.event.block: band for band in stacked.bands}
    assert stacked.totals == (100, 130, 180, 150, 160, 110)
    assert stacked.rest == (0,) * 6
    assert [by_block[2].bottom_at(x) for x in (1, 2, 3, 4.9, 5)] == [None, 130, 100, 100, None]
    assert [by_block[3].bottom_at(x) for x in (4, 5)] == [150, 100]
    assert stacked.at(4, 120).event.where == "model.py:7"
    assert stacked.at(0, 99.9).event.block == 0
    assert stacked.at(0, 100) is None


def test_small_blocks_are_summed():
    stacked = stack_bands(BAND_EVENTS, max_bands=2)
    assert {band.event.block for band in stacked.bands} == {0, 2}
    assert stacked.rest == (0, 30, 30, 0, 10, 10)


def test_bands_never_overlap_and_reach_the_total():
    events = step_story()
    stacked = stack_bands(events)
    for index in range(len(events)):
        alive = [band for band in stacked.bands if band.start <= index < band.end]
        spans = sorted((band.bottom_at(index), band.num_bytes) for band in alive)
        height = 0
        for bottom, size in spans:
            assert bottom == height
            height += size
        assert height == stacked.totals[index]


def test_the_figure_of_bands_names_the_peak():
    trace = MemoryTimeline(
        instants=(Instant(name="end", total_bytes=0),), source="traced", events=tuple(step_story())
    )
    picture = allocations_figure(trace)
    assert pixels(picture).std() > 10
    peak = max(stack_bands(trace.events).totals)
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
