"""The allocator lab and the snapshot view without a browser: every control, nonsense, clicks; a panel never dies."""


import pytest
import torch
from drawn import marks_of

from memkit.allocator.film import Film
from memkit.allocator.snapshot_writer import predicted_snapshot, write_snapshot
from memkit.allocator.stories import STORIES, holes_story
from memkit.allocator.trace_replay import replay_trace
from memkit.pictures.bands import stack_bands
from memkit.timeline import Event, Instant, MemoryTimeline
from memkit.tracing.trace import trace_memory
from memkit.units import MIB, format_bytes
from memkit.widgets.allocator_lab import MAX_EVENTS, MAX_FILMS, OWN, AllocatorLab
from memkit.widgets.snapshot_view import ORDERS, SnapshotView, lines_at_peak


def build():
    model = torch.nn.Sequential(torch.nn.Linear(1000, 4000), torch.nn.GELU(), torch.nn.Linear(4000, 10))
    model = model.to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        model(torch.randn(512, 1000, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@pytest.fixture(scope="module")
def trace() -> MemoryTimeline:
    return trace_memory(build)


@pytest.fixture
def lab():
    return AllocatorLab(limited=False, story="rounding and pools", step=0)


@pytest.fixture
def view(trace):
    return SnapshotView(trace)


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("expandable", [False, True])
def test_every_step_shows_what_the_film_shows(lab, story, expandable):
    lab.set(story=story, step=0, expandable=expandable)
    film = lab.film(story, expandable, False, 96)[0]
    assert lab.panel.controls["step"].slider.max == len(STORIES[story]()) == len(film)
    for step in range(len(film) + 1):
        lab.panel.controls["step"].value = step
        still = film.still(step)
        assert lab.error == "" and lab.value["step"] == step
        assert lab.summary == f"Event {step} of {len(film)}: {still.words}."
        assert f"{format_bytes(still.allocated_bytes)} allocated" in lab.shown.words[1]
        assert f"{format_bytes(still.reserved_bytes)} reserved" in lab.shown.words[1]
        assert len(lab.shown.table) == 1 + len(still.rows)


def test_a_small_card_fails_in_the_words_of_the_allocator(lab):
    lab.set(story="holes", step=14, limited=True, card_mib=96)
    still = Film(holes_story(), capacity_bytes=96 * MIB).still(14)
    assert still.failure and lab.shown.words[-1] == still.failure
    assert "the largest hole has 8.00 MiB" in lab.shown.words[1]
    lab.set(limited=False)
    assert "out of memory" not in " ".join(lab.shown.words)


def test_expandable_segments_reserve_less_for_a_growing_sequence(lab):
    reserved = {}
    for expandable in (False, True):
        lab.set(story="a growing sequence", step=99, expandable=expandable)
        reserved[expandable] = lab.film("a growing sequence", expandable, False, 96)[0].still(13).reserved_bytes
        assert format_bytes(reserved[expandable]) in lab.shown.words[1]
    assert reserved[True] < reserved[False] / 2


def test_typing_many_cards_keeps_few_films(lab):
    for card_mib in range(8, 8 * 2 * MAX_FILMS, 8):
        lab.set(limited=True, card_mib=card_mib)
    assert len(lab.films) == MAX_FILMS
    assert lab.error == "" and lab.value["card_mib"] == 8 * (2 * MAX_FILMS - 1)


def test_the_lab_opens_on_a_full_card_that_fails():
    lab = AllocatorLab()
    dies = Film(STORIES["a training step"](), capacity_bytes=96 * MIB).still(56).index
    assert lab.value == {"story": "a training step", "step": dies, "expandable": False, "limited": True, "card_mib": 96}
    assert dies == 34 and f"Event {dies} of 56" in lab.summary
    assert "out of memory" in lab.summary and len(lab.shown.table) > 4


def test_slider_box_and_picture_end_where_the_story_does():
    lab = AllocatorLab()
    step = lab.panel.controls["step"]

    def ends():
        return step.slider.max, step.slider.value, step.box.value, lab.value["step"], lab.shown.chart.alt.split()[2]

    assert ends() == (34, 34, 34, 34, "34")
    step.box.value = 50
    assert lab.error == "" and ends() == (34, 34, 34, 34, "34")
    lab.panel.controls["limited"].value = False
    assert ends() == (56, 34, 34, 34, "34")
    step.slider.value = 56
    assert ends() == (56, 56, 56, 56, "56")
    lab.panel.controls["limited"].value = True
    assert ends() == (34, 34, 34, 34, "34")



def test_a_trace_of_your_own_plays(trace):
    lab = AllocatorLab(trace, step=len(trace.events))
    assert lab.value["story"] == OWN
    assert format_bytes(replay_trace(trace).reserved[-1]) in lab.shown.words[1]


@pytest.mark.parametrize("count", [0, MAX_EVENTS + 1])
def test_a_trace_that_does_not_fit_the_slider_is_refused(count):
    with pytest.raises(ValueError, match=f"{count} events; 1 to {MAX_EVENTS}"):
        AllocatorLab([Event(i, 512) for i in range(count)])


# The view


def test_the_largest_allocation_comes_first_with_the_line_that_made_it(view, trace):
    largest = max((event for event in trace.events if event.num_bytes > 0), key=lambda e: e.num_bytes)
    assert f"{format_bytes(largest.num_bytes)}, {largest.part.replace('_', ' ')}." in view.summary
    assert view.shown.words[1] == f"Made by {largest.where}, in {largest.op}."
    assert "test_allocator_widgets.py:" in view.shown.words[1]


@pytest.mark.parametrize("order", ORDERS)
def test_every_allocation_can_be_selected_and_told(view, order):
    view.set(order=order)
    for number in range(1, len(view.bands.bands) + 1):
        view.panel.controls["allocation"].value = number
        band = view.ranked[order][number - 1]
        assert view.error == "" and view.value["allocation"] == number
        assert view.shown.words[0].endswith(view.words(band)[0])
        assert band.event.where in view.shown.words[1]
        assert f"Allocated at event {band.start}, in {band.event.phase}" in view.shown.words[2]
    sizes = [band.num_bytes for band in view.ranked[ORDERS[0]]]
    assert sizes == sorted(sizes, reverse=True)
    births = [band.start for band in view.ranked[ORDERS[1]]]
    assert births == sorted(births)


@pytest.mark.parametrize("order", ORDERS)
def test_a_click_selects_the_band_that_was_meant(view, order):
    view.set(order=order)
    marks = marks_of(view.shown.chart, "pick")
    assert len(marks) == len(view.bands.bands) >= 5
    for mark, band in zip(marks, view.bands.bands, strict=True):
        view.pick(mark.data["pick"])
        assert view.ranked[order][view.value["allocation"] - 1] is band
        assert format_bytes(band.num_bytes) in mark.tip and band.event.where in mark.tip


def test_a_needle_is_a_band_too(trace):
    """The largest block of a step may live for two events only; it must be there to be clicked."""
    view = SnapshotView(trace, max_bands=20)
    largest = max(event.num_bytes for event in trace.events)
    assert view.ranked[ORDERS[0]][0].num_bytes == largest
    peak = view.bands.totals.index(max(view.bands.totals))
    assert view.bands.rest[peak] < 0.1 * view.bands.totals[peak]


def test_the_frame_is_drawn_around_the_selected_band_alone_and_the_picture_is_not_sent_again(view):
    view.set(allocation=1)
    sent, first = [], view.panel.frame.value
    view.panel.picture.observe(sent.append, "value")
    view.set(allocation=2)
    band = view.bands.bands.index(view.ranked[ORDERS[0]][1])
    assert f'[data-pick="{band}"]' in view.panel.frame.value != first and sent == []
    assert f'[data-pick="{band}"]' in view.shown.chart.svg(stands_alone=True), "the twin has no frame"


def test_a_replay_a_snapshot_and_its_file_show_the_same(trace, tmp_path):
    result = replay_trace(trace)
    snapshot = predicted_snapshot(result)
    path = write_snapshot(snapshot, tmp_path / "run.pickle")
    panels = [SnapshotView(source) for source in (result, snapshot, path)]
    sizes = [[band.num_bytes for band in panel.ranked[ORDERS[0]]] for panel in panels]
    assert sizes[0] == sizes[1] == sizes[2]
    assert all("test_allocator_widgets.py:" in panel.shown.words[1] for panel in panels)
    assert "not recorded" in panels[1].shown.words[0]  # a snapshot has no parts


def test_the_table_lists_what_stands_at_the_peak():
    events = (
        Event(0, 100, "weights", "init", where="model.py:1"),
        Event(1, 40, "activations", "forward", where="model.py:2"),
        Event(2, 60, "activations", "forward", where="model.py:2"),
        Event(1, -40, "activations", "backward"),
        Event(3, 50, "gradients", "backward", where="model.py:3"),
    )
    end = Instant(name="end", total_bytes=0)
    timeline = MemoryTimeline(instants=(end,), source="traced", events=events)
    view = SnapshotView(timeline)
    assert view.lines == lines_at_peak(timeline, view.bands.totals)
    assert view.lines[1:] == (
        ("model.py:1", "weights", "1", "100 B"),
        ("model.py:2", "activations", "1", "60 B"),
        ("model.py:3", "gradients", "1", "50 B"),
    )
    assert view.shown.words[2] == "Allocated at event 0, in init; never freed here."


def test_a_source_without_events_is_refused(trace):
    with pytest.raises(ValueError, match="no events"):
        SnapshotView(trace.for_step(1))


# Both


def test_the_page_tells_the_kernel_which_mark_is_meant(view):
    [helper] = [child for child in view.panel.children if type(child).__name__ == "KeyHelper"]
    helper._handle_custom_msg({"pick": "2"}, [])
    assert view.ranked[ORDERS[0]][view.value["allocation"] - 1] is view.bands.bands[2]


NEEDLE = [Event(0, 100, "weights"), *(Event(n, 1, "activations") for n in range(1, 40)), Event(40, 900, "temporary"),
          Event(40, -900), *(Event(n, -1) for n in range(1, 40))]


def test_a_needle_has_a_margin_in_which_a_click_means_it():
    view = SnapshotView(MemoryTimeline(instants=(Instant(name="end", total_bytes=0),), source="traced", events=tuple(
        event for number in range(30) for event in (Event(100 * number + e.block, e.num_bytes, e.part) for e in NEEDLE)
    )))
    margins = {mark.data["bytes"]: mark.attributes.get("stroke-width") for mark in marks_of(view.shown.chart, "pick")}
    assert margins["900"] == "6" and margins["100"] is None


def test_the_small_blocks_are_told_apart_by_part():
    bands = stack_bands(NEEDLE, max_bands=4)
    assert {part for part, heights in bands.rest_by_part.items() if any(heights)} == {"activations"}
    for rest, *heights in zip(bands.rest, *bands.rest_by_part.values(), strict=True):
        assert rest == sum(heights)
