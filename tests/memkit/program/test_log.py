"""The log of a run by hand: which instants a step has, and what a second set of the weights is known by."""

import pytest

from memkit.program.log import Log, timeline_of


@pytest.mark.parametrize("rises", [False, True])
def test_the_end_of_a_step_has_a_peak_only_where_something_rises(rises):
    log = Log()
    log.allocate(8, "empty")
    log.mark("init")
    log.start_step(1)
    kept = log.allocate(4, "mm")
    log.start_backward()
    log.end_backward()
    log.free(kept)
    if rises:
        log.free(log.allocate(64, "clone"))
    log.end_step()
    names = ["init", "forward peak", "forward", "backward peak", "backward"]
    names += ["zero_grad peak"] * rises + ["zero_grad"]
    assert [i.name for i in timeline_of(log, "traced", "cpu").instants] == names


@pytest.mark.parametrize(
    "trained, others, part",
    [
        ((8, 16), (16, 8), "weights"),
        ((8, 16), (16, 32), "weights"),  # in float32 beside 16 bits
        ((8, 16), (8, 8), "activations"),
        ((8,), (8,), "activations"),  # a batch may be as large as a single weight
    ],
)
def test_a_second_set_of_the_weights_is_known_by_its_sizes(trained, others, part):
    log = Log()
    weights = {log.allocate(size, "empty") for size in trained}
    log.trained |= weights
    log.weights |= weights
    held = [log.allocate(size, "clone") for size in others]
    log.mark("init")
    log.start_step(1)
    log.start_backward()
    log.end_backward()
    log.end_step()
    assert {log.parts()[block] for block in held} == {part}
