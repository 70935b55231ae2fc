"""The lab's film, and its picture: what is drawn is what the allocator holds."""

from statistics import fmean

import pytest
from drawn import labels_of, marks_of, words_of

from memkit.timeline import Event
from memkit.units import MIB
from stepscope.allocator.caching import AllocatorConfig
from stepscope.allocator.film import (
    STORIES,
    Film,
    growing_story,
    holes_story,
    rounding_story,
    step_story,
)
from stepscope.pictures import MAX_ROWS, allocator_picture

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
        state = film.state(index)
        pieces = [piece for row in state.rows for piece in row.pieces]
        for row in state.rows:
            ends = [piece.offset + piece.size for piece in row.pieces]
            assert [piece.offset for piece in row.pieces] == [0, *ends[:-1]]
            assert ends[-1] == row.size
        used = [piece for piece in pieces if not piece.is_free]
        assert state.reserved_bytes == sum(piece.size for piece in pieces)
        assert state.allocated_bytes == sum(piece.size for piece in used)
        assert sorted(live.values()) == sorted(piece.size - piece.rest_bytes for piece in used)
        assert state.largest_hole_bytes == max((p.size for p in pieces if p.is_free), default=0)
    assert not state.failure


def test_what_is_no_film_is_refused():
    with pytest.raises(ValueError, match="index=57 is outside 0 to 56"):
        Film(step_story()).state(57)
    with pytest.raises(ValueError, match="at least one event"):
        Film([])


def test_the_stories_show_what_they_promise():
    rounding = Film(rounding_story())
    small, w, embedding, y = rounding.state(len(rounding)).rows
    assert small.is_small and not w.is_small
    assert [piece.size for piece in small.pieces[:1]] == [512]
    assert embedding.pieces[0].rest_bytes == 1 * MIB
    assert y.pieces[0].rest_bytes == MIB // 2

    holes = Film(holes_story(), capacity_bytes=90 * MIB)
    last = holes.state(len(holes))
    assert "out of memory" in last.words and "Tried to allocate 24.00 MiB" in last.failure
    assert last.hole_bytes > 24 * MIB > last.largest_hole_bytes
    assert holes.states[-1] is last

    plain, growing = Film(growing_story()), Film(growing_story(), EXPANDABLE)
    assert plain.state(len(plain)).reserved_bytes == (24 + 20 + 24 + 28 + 32 + 36 + 40) * MIB
    assert growing.state(len(growing)).reserved_bytes == 80 * MIB


@pytest.mark.parametrize("name", STORIES)
@pytest.mark.parametrize("index", [0, 5, None])
def test_what_is_drawn_is_what_the_allocator_holds(name, index):
    film = Film(STORIES[name](), capacity_bytes=96 * MIB)
    state = film.state(len(film) if index is None else index)
    chart = allocator_picture(film, index)
    pieces = [piece for row in state.rows[:MAX_ROWS] for piece in row.pieces]
    blocks = [(int(mark.data["bytes"]), mark.data["part"]) for mark in marks_of(chart, "part")]
    assert blocks == [
        (piece.size, piece.part or "not attributed") for piece in pieces if not piece.is_free
    ]
    holes = [int(mark.data["hole"]) for mark in marks_of(chart, "hole")]
    assert holes == [piece.size for piece in pieces if piece.is_free]
    widest = max(row.size for number in range(len(film) + 1) for row in film.state(number).rows)
    for mark in marks_of(chart, "part"):
        assert mark.at("width") == pytest.approx(684 * int(mark.data["bytes"]) / widest, abs=0.11)
    totals = [
        int(mark.data["bytes"]) for mark in marks_of(chart, "bytes") if "part" not in mark.data
    ]
    assert totals == [state.allocated_bytes, state.reserved_bytes]


@pytest.mark.parametrize("name", STORIES)
def test_a_block_s_name_stands_in_its_bar(name):
    chart = allocator_picture(Film(STORIES[name]()))
    bars = [(mark.tip.partition(": ")[0], mark) for mark in marks_of(chart, "part")]
    below = max(
        bar.at("y") + bar.at("height") for _, bar in bars
    )  # there the legend has a name too
    named = [each for each in labels_of(chart) if each.text in dict(bars) and each.box[1] < below]
    assert named
    for label in named:
        across, down = fmean(label.box[::2]), fmean(label.box[1::2])
        assert any(
            label.text == text
            and 0 < across - bar.at("x") < bar.at("width")
            and 0 < down - bar.at("y") < bar.at("height")
            for text, bar in bars
        ), label


def test_more_segments_than_rows_are_counted():
    events = [Event(number, 12 * MIB) for number in range(MAX_ROWS + 5)]
    chart = allocator_picture(Film(events))
    assert "6 more" in words_of(chart) and "19 segments" in chart.alt
