"""The allocator lab without a browser: every control, nonsense; and the bands of a run's allocations."""


import pytest
import torch
from drawn import marks_of

from memkit.allocator.film import Film
from memkit.allocator.stories import STORIES, holes_story
from memkit.allocator.trace_replay import replay_trace
from memkit.pictures.bands import allocations_figure, stack_bands
from memkit.timeline import Event, Instant, MemoryTimeline
from memkit.tracing.trace import trace_memory
from memkit.units import MIB, format_bytes
from memkit.widgets.allocator_lab import MAX_EVENTS, MAX_FILMS, OWN, AllocatorLab


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


NEEDLE = [Event(0, 100, "weights"), *(Event(n, 1, "activations") for n in range(1, 40)), Event(40, 900, "temporary"),
          Event(40, -900), *(Event(n, -1) for n in range(1, 40))]


def test_a_needle_has_a_margin_in_which_a_click_means_it():
    chart = allocations_figure(MemoryTimeline(instants=(Instant(name="end", total_bytes=0),), source="traced", events=[
        Event(100 * number + e.block, e.num_bytes, e.part) for number in range(30) for e in NEEDLE
    ]))
    margins = {mark.data["bytes"]: mark.attributes.get("stroke-width") for mark in marks_of(chart, "pick")}
    assert margins["900"] == "6" and margins["100"] is None


def test_the_small_blocks_are_told_apart_by_part():
    bands = stack_bands(NEEDLE, max_bands=4)
    assert {part for part, heights in bands.rest_by_part.items() if any(heights)} == {"activations"}
    for rest, *heights in zip(bands.rest, *bands.rest_by_part.values(), strict=True):
        assert rest == sum(heights)
