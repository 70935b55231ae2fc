"""The spike of chapter 06's film, against the published experiment."""

import pytest

from memkit.low_precision.trials import SPIKE_STEP, spike_steps


def test_the_spike_clips_three_quarters_and_is_forgotten_after_the_history():
    """The published experiment: a spike of 16 clips 74 % with an error of 75.8 %; current scaling 2.65 %."""
    steps = spike_steps(16.0)
    assert steps[SPIKE_STEP].clipped_share == pytest.approx(0.74, abs=0.04)
    assert steps[SPIKE_STEP].error == pytest.approx(0.758, abs=0.02)
    assert all(step.current_error == pytest.approx(0.0265, abs=0.001) for step in steps)
    assert steps[-1].fits == pytest.approx(steps[SPIKE_STEP].amax)
    short = spike_steps(16.0, 4)
    assert short[SPIKE_STEP + 4].fits == pytest.approx(steps[SPIKE_STEP].amax) and short[SPIKE_STEP + 5].fits < 8


def test_enough_margin_lets_the_spike_pass():
    assert spike_steps(16.0, 1024, 5)[SPIKE_STEP].clipped_share == 0
