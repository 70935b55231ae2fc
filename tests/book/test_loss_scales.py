"""Loss scaling against torch's GradScaler and torch's own defaults."""

import pytest
import torch

from book.loss_scales import FixedScale, play_scaler


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
