"""Loss scaling against numpy's float16, torch's GradScaler and torch's own defaults."""

import numpy as np
import pytest
import torch

from book.loss_scales import FixedScale, play_scaler
from memkit.low_precision import FLUSHED_BELOW, OVERFLOWS_FROM, scale_gradients

RNG = np.random.default_rng(3)
GRADIENTS = np.exp2(RNG.uniform(-45, -2, 5000)) * RNG.choice([-1, 1], 5000)


def test_the_borders_are_numpys_float16():
    assert np.float16(FLUSHED_BELOW) == 0 < np.float16(np.nextafter(FLUSHED_BELOW, 1))
    assert np.isfinite(np.float16(np.nextafter(OVERFLOWS_FROM, 0)))
    with np.errstate(over="ignore"):
        assert np.isinf(np.float16(OVERFLOWS_FROM))


@pytest.mark.parametrize("power", [0, 8, 16, 24, 32])
def test_shares_are_counted_as_torch_holds_the_values(power):
    scaled = torch.tensor(GRADIENTS * 2.0**power, dtype=torch.float64)
    held = scaled.to(torch.float16)
    found = scale_gradients(GRADIENTS, 2.0**power)
    assert found.flushed == pytest.approx((held == 0).double().mean().item())
    assert found.overflowing == pytest.approx(held.isinf().double().mean().item())
    tiny = (held != 0) & (held.abs() < torch.finfo(torch.float16).smallest_normal)
    assert found.subnormal == pytest.approx(tiny.double().mean().item(), abs=2e-3)
    assert found.is_skipped == bool(held.isinf().any())
    finite = ~held.isinf()
    error = (held.double() - scaled).abs()[finite] / scaled.abs()[finite]
    # torch rounds twice, by way of float32
    assert found.value_error == pytest.approx(error.mean().item(), rel=1e-6)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan")])
def test_a_scale_that_is_none_is_refused(scale):
    with pytest.raises(ValueError, match="is not a positive number"):
        scale_gradients(GRADIENTS, scale)


def test_gradients_that_are_all_zero_are_refused():
    with pytest.raises(ValueError, match="nothing to scale"):
        scale_gradients(np.zeros(3), 1.0)


def test_the_player_is_a_loop_with_torchs_scaler():
    """The same decisions as a written-out reading of the documentation."""
    limit, interval = 2.0**17.5, 10
    scale, clean, wanted, skips = 2.0**16, 0, [], []
    for step in range(100):
        wanted.append(scale)
        if scale > limit:
            skips.append(step)
            scale, clean = scale / 2, 0
        else:
            clean += 1
            if clean == interval:
                scale, clean = scale * 2, 0
    found = play_scaler(100, lambda step, scale: scale > limit, growth_interval=interval)
    assert found == (wanted, skips)


def test_persistent_overflow_ends_at_zero_without_a_word():
    scales, skipped = play_scaler(200, lambda step, scale: True)
    assert len(skipped) == 200 and scales[-1] == 0


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("scale", [1.0, 1024.0, 3.0])
def test_a_fixed_scale_steps_as_a_gradscaler_that_never_grows(scale, clips):
    """GradScaler itself is the oracle: the scaled loss, the gradients after unscale_ and the weights of five steps."""
    seen = []
    for scaler in (
        FixedScale(scale),
        torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=1000),
    ):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(5):
            optimizer.zero_grad()
            loss = scaler.scale(model(torch.randn(8, 4)).square().mean())
            loss.backward()
            if clips:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            seen.append(
                [
                    loss.item(),
                    *(p.detach().clone() for p in model.parameters()),
                    model.weight.grad.clone(),
                ]
            )
    for ours, theirs in zip(seen[:5], seen[5:], strict=True):
        assert ours[0] == pytest.approx(theirs[0], rel=1e-6)  # theirs divides by a reciprocal
        for mine, other in zip(ours[1:], theirs[1:], strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-7)


def test_a_fixed_scale_lets_infinities_through():
    weight = torch.nn.Parameter(torch.zeros(()))
    optimizer, scaler = torch.optim.SGD([weight], lr=1.0), FixedScale(2.0)
    weight.grad = torch.full((), torch.inf)
    scaler.step(optimizer)
    assert weight.item() == -torch.inf
