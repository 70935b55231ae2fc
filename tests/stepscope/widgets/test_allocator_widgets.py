"""The allocator lab without a browser: every control, and a card that fails."""

import pytest

from memkit.units import MIB, format_bytes
from stepscope.allocator.film import STORIES, Film, holes_story
from stepscope.widgets.allocator_lab import AllocatorLab, film_of


@pytest.fixture
def lab():
    return AllocatorLab(limited=False, story="rounding and pools", step=0)


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("expandable", [False, True])
def test_every_step_shows_what_the_film_shows(lab, story, expandable):
    lab.set(story=story, step=0, expandable=expandable)
    film = film_of(story, expandable, None)
    assert lab.panel.controls["step"].slider.max == len(STORIES[story]()) == len(film)
    for step in range(len(film) + 1):
        lab.panel.controls["step"].value = step
        still = film.state(step)
        assert lab.error == "" and lab.state["step"] == step
        assert lab.summary == f"Event {step} of {len(film)}: {still.words}."
        assert f"{format_bytes(still.allocated_bytes)} allocated" in lab.shown.words[1]
        assert f"{format_bytes(still.reserved_bytes)} reserved" in lab.shown.words[1]
        assert len(lab.shown.table) == 1 + len(still.rows)


def test_a_small_card_fails_in_the_words_of_the_allocator(lab):
    lab.set(story="holes", step=14, limited=True, card_mib=96)
    still = Film(holes_story(), capacity_bytes=96 * MIB).state(14)
    assert still.failure and lab.shown.words[-1] == still.failure
    assert "the largest hole has 8.00 MiB" in lab.shown.words[1]
    lab.set(limited=False)
    assert "out of memory" not in " ".join(lab.shown.words)


def test_expandable_segments_reserve_less_for_a_growing_sequence(lab):
    reserved = {}
    for expandable in (False, True):
        lab.set(story="a growing sequence", step=99, expandable=expandable)
        reserved[expandable] = (
            film_of("a growing sequence", expandable, None).state(13).reserved_bytes
        )
        assert format_bytes(reserved[expandable]) in lab.shown.words[1]
    assert reserved[True] < reserved[False] / 2


def test_the_lab_opens_on_a_full_card_that_fails():
    lab = AllocatorLab()
    dies = Film(STORIES["a training step"](), capacity_bytes=96 * MIB).state(56).index
    assert lab.state == {
        "story": "a training step",
        "step": dies,
        "expandable": False,
        "limited": True,
        "card_mib": 96,
    }
    assert dies == 34 and f"Event {dies} of 56" in lab.summary
    assert "out of memory" in lab.summary and len(lab.shown.table) > 4


def test_slider_box_and_picture_end_where_the_story_does():
    lab = AllocatorLab()
    step = lab.panel.controls["step"]

    def ends():
        return (
            step.slider.max,
            step.slider.value,
            step.box.value,
            lab.state["step"],
            lab.shown.chart.alt.split()[2],
        )

    assert ends() == (34, 34, 34, 34, "34")
    step.box.value = 50
    assert lab.error == "" and ends() == (34, 34, 34, 34, "34")
    lab.panel.controls["limited"].value = False
    assert ends() == (56, 34, 34, 34, "34")
    step.slider.value = 56
    assert ends() == (56, 56, 56, 56, "56")
    lab.panel.controls["limited"].value = True
    assert ends() == (34, 34, 34, 34, "34")
