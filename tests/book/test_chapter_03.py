"""What chapter 03 says of a loop that clips before it unscales: the losses that torch's own loop gives."""

import torch

from memkit.program import make_small_gpt, text_batches


def losses(make_optimizer, unscales: bool, steps: int = 28) -> list[float]:
    """The losses of the FP16 loop of section 3.1, with and without ``unscale_`` before the clipping."""
    model = make_small_gpt(seed=0)
    optimizer, scaler, seen = make_optimizer(model.parameters()), torch.amp.GradScaler("cpu"), []
    for inputs, targets in text_batches(steps):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(inputs, targets)
        scaler.scale(loss).backward()
        if unscales:
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        seen.append(loss.item())
    return seen


def test_adamw_hides_a_forgotten_unscale_for_fifteen_steps_and_then_jumps():
    def adamw(parameters):
        return torch.optim.AdamW(parameters, lr=3e-3)

    right, wrong = losses(adamw, True), losses(adamw, False)
    assert all(abs(a / b - 1) < 0.03 for a, b in zip(wrong[:15], right[:15], strict=True))
    assert max(wrong[15:]) > 9
    assert max(right[15:]) < 4


def test_sgd_hardly_learns_without_unscale():
    def sgd(parameters):
        return torch.optim.SGD(parameters, lr=0.3)

    right, wrong = losses(sgd, True), losses(sgd, False)
    assert right[0] - right[-1] > 1
    assert abs(wrong[0] - wrong[-1]) < 0.1
