"""Memory over time: the drawn heights are the profiler's own bytes, and the steps are told apart."""

from dataclasses import replace

import pytest
from drawn import check_narrow, words_of

from book.small_gpt import SMALL_GPT
from memkit import OptimizerConfig, TrainingSetup, estimate_memory, measure_memory, training_build
from memkit.pictures.timeline import over_time_figure, steps_of
from memkit.timeline import Event, Instant, MemoryTimeline

SETUP = TrainingSetup(
    model=SMALL_GPT,
    seq_len=32,
    device="cpu",
    grad_accum_steps=3,
    optimizer=OptimizerConfig(implementation="fused"),
)


@pytest.fixture(scope="module")
def measured():
    return measure_memory(training_build(SETUP), device="cpu")


@pytest.mark.parametrize("step", [1, 2])
def test_the_highest_moment_is_the_profiler_s_peak_of_the_step(measured, step):
    heights, phases, peak = steps_of(measured, step)
    wanted = max(i.total_bytes for i in measured.for_step(step).instants if i.name != "init")
    assert sum(height[peak] for height in heights.values()) == wanted
    names = [name for name, _, _ in phases]
    assert names[:6] == ["forward", "backward"] * 3 and names[6] == "optimizer"


def test_gradients_stand_through_every_forward_but_the_first(measured):
    heights, phases, _ = steps_of(measured, 2)
    lows = [
        min(heights["gradients"][start:end]) for name, start, end in phases if name == "forward"
    ]
    whole = measured.at("backward", step=2).gradients
    assert lows[0] < 0.01 * whole and lows[1:] == [whole, whole]


def test_the_alt_text_names_every_panel_and_its_peak(measured):
    figure = over_time_figure({"three": measured, "again": measured}, title="Twice")
    assert figure.alt.startswith("Twice, stacked by part") and "three: the peak" in figure.alt
    assert "again: the peak" in figure.alt and words_of(figure).count("optimizer") >= 2


@pytest.mark.parametrize("marks_peak", [True, False])
def test_a_phone_has_its_own_picture_of_it(measured, marks_peak):
    panels = {"one step of a small model, as measured": measured, "another": measured}
    title = "Three micro-batches and a step, twice, from event to event"
    limit = ("a card", measured.peak_bytes)
    check_narrow(over_time_figure(panels, title=title, limit=limit, marks_peak=marks_peak))


def test_what_has_no_part_is_temporary():
    events = (Event(1, 8, phase="forward"), Event(1, -8, phase="forward"))
    timeline = MemoryTimeline(
        instants=(Instant(name="init", total_bytes=1),), source="traced", events=events
    )
    assert steps_of(timeline, 1)[0]["temporary"] == [8, 0]


@pytest.mark.parametrize("rest", [("optimizer",), ("zero_grad",), ()])
def test_what_a_loop_drops_late_belongs_to_its_backward_in_every_step(rest):
    turns = [
        (step, phase) for step in (1, 2) for phase in ("forward", "backward", "forward", *rest)
    ]
    events = tuple(
        Event(8 * step, size, phase=phase, step=step) for step, phase in turns for size in (8, -8)
    )
    timeline = MemoryTimeline(
        instants=(Instant(name="init", total_bytes=1),), source="traced", events=events
    )
    assert [name for name, _, _ in steps_of(timeline, None)[1]] == [
        "forward",
        "backward",
        *rest,
    ] * 2


def test_bad_input_is_named(measured):
    with pytest.raises(ValueError, match="at least one"):
        over_time_figure({})
    with pytest.raises(ValueError, match="step=3 is not among the 2 steps"):
        over_time_figure({"three": measured}, step=3)
    empty = MemoryTimeline(instants=(Instant(name="init", total_bytes=1),), source="traced")
    with pytest.raises(ValueError, match="this traced timeline carries no events"):
        over_time_figure({"none": empty})


def test_the_formula_knows_the_same_peak(measured):
    formula = estimate_memory(replace(SETUP))
    assert formula.for_step(2).peak_bytes == pytest.approx(
        measured.for_step(2).peak_bytes, rel=0.001
    )
