"""The loss scaling lab without a browser: built, moved, refused; the picture's shares are the function's."""

import numpy as np
import pytest

from memkit.low_precision.loss_scaling import scale_gradients
from memkit.widgets.loss_scaling_lab import MAX_POWER, MAX_VALUES, LossScalingLab, thinned

GRADIENTS = np.exp2(np.random.default_rng(0).normal(-21, 5, 30_000)).astype(np.float32)


@pytest.fixture
def lab():
    return LossScalingLab({"activations": GRADIENTS, "weights": GRADIENTS[:100] * 64})


@pytest.mark.parametrize("power", [0, 1, 8, 16, MAX_POWER])
def test_a_move_shows_the_shares(lab, power):
    lab.set(power=power)
    found = scale_gradients(thinned(GRADIENTS), 2.0**power)
    assert not lab.error
    assert f"{found.flushed:.2%}" in lab.shown.chart.alt and f"{found.overflowing:.2%}" in lab.shown.chart.alt
    assert ("skips this step" in lab.shown.words[0]) == found.is_skipped


def test_thinning_keeps_the_shares_and_the_largest():
    thin = thinned(GRADIENTS)
    assert thin.size == MAX_VALUES and thin[-1] == GRADIENTS.max()
    whole = scale_gradients(GRADIENTS, 256).flushed
    assert scale_gradients(thin, 256).flushed == pytest.approx(whole, abs=1e-3)


def test_no_gradients_are_refused():
    with pytest.raises(ValueError, match="no gradients"):
        LossScalingLab({})
