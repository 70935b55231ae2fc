"""The loop to take away: its gradient is the big batch's, in every corner."""

import copy

import pytest
import torch
from torch.nn import functional as F

from book.small_gpt import make_small_gpt, text_batches
from memkit.program.accumulation import IGNORED, train_window, windows


def uneven_window(num_micro_batches: int, seed: int = 0) -> list:
    """Micro-batches of different lengths, a few targets of each padded."""
    chance = torch.Generator().manual_seed(seed)
    window = []
    for number in range(num_micro_batches):
        length = int(torch.randint(3, 41, (), generator=chance))
        inputs, targets = next(text_batches(1, batch_size=2, seq_len=length, seed=seed + number))
        targets = targets.clone()
        targets[0, : number % 3] = IGNORED
        window.append((inputs, targets))
    return window


def full_batch_gradient(model, window) -> torch.Tensor:
    """The gradient of the mean loss over all target tokens, written without any micro-batch's mean."""
    sums, count = 0, 0
    for inputs, targets in window:
        logits = logits_of(model, inputs)
        sums = sums + F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum", ignore_index=IGNORED)
        count += int((targets != IGNORED).sum())
    (sums / count).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def logits_of(model, inputs):
    """The model's head, caught on its way to the loss."""
    caught = []
    handle = model.head.register_forward_hook(lambda _module, _inputs, output: caught.append(output))
    model(inputs, inputs)
    handle.remove()
    return caught[0]


class Keeper(torch.optim.SGD):
    """An optimizer that keeps the gradient that it is given."""

    def step(self, closure=None):
        self.given = torch.cat([p.grad.flatten().clone() for group in self.param_groups for p in group["params"]])


@pytest.mark.parametrize("num_micro_batches", [1, 2, 4, 8])
def test_the_gradient_is_the_full_batch_s(num_micro_batches):
    window = uneven_window(num_micro_batches)
    model = make_small_gpt(dtype=torch.float64)
    wanted = full_batch_gradient(copy.deepcopy(model), window)
    optimizer = Keeper(model.parameters(), lr=0.0)
    train_window(model, optimizer, window, max_norm=float("inf"))
    assert ((optimizer.given - wanted).abs().max() / wanted.abs().max()).item() < 1e-12


def test_clipping_is_done_once_on_the_window_s_gradient():
    window, model = uneven_window(4), make_small_gpt(dtype=torch.float64)
    wanted = full_batch_gradient(copy.deepcopy(model), window)
    optimizer = Keeper(model.parameters(), lr=0.0)
    train_window(model, optimizer, window, max_norm=0.1)
    assert optimizer.given.norm().item() == pytest.approx(0.1, rel=1e-5)
    assert F.cosine_similarity(optimizer.given, wanted, dim=0).item() == pytest.approx(1, abs=1e-12)


def test_a_loss_scale_changes_nothing():
    window, model = uneven_window(3), make_small_gpt()
    twin = copy.deepcopy(model)
    plain, scaled = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, twin))
    loss = train_window(model, plain, window)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    assert train_window(twin, scaled, window, scaler=scaler) == pytest.approx(loss, rel=1e-6)
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_a_partial_window_is_trained_and_leaves_no_gradient():
    batches = list(text_batches(5, batch_size=2, seq_len=16))
    model = make_small_gpt()
    optimizer = torch.optim.AdamW(model.parameters())
    losses = [train_window(model, optimizer, window) for window in windows(batches, 2)]
    assert len(losses) == 3 and optimizer.state[model.head.weight]["step"].item() == 3
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_loss_is_the_mean_over_tokens():
    window, model = uneven_window(4), make_small_gpt(dtype=torch.float64)
    with torch.no_grad():
        each = [(model(i, t).item(), int((t != IGNORED).sum())) for i, t in window]
    wanted = sum(loss * count for loss, count in each) / sum(count for _, count in each)
    assert train_window(model, Keeper(model.parameters(), lr=0.0), window) == pytest.approx(wanted, rel=1e-12)
