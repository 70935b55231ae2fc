"""What lesson 03 and its *Further* say of loops and of gradients, by torch's own loop: losses, shares of gradients."""

import re

import numpy as np
import pytest
import torch
from cells import texts_of

from book.small_gpt import make_small_gpt, text_batches, train
from memkit import OptimizerConfig, TrainingSetup, estimate_memory, models, recipes


def losses(make_optimizer, unscales: bool, steps: int = 28) -> list[float]:
    """The losses of the FP16 loop, with and without ``unscale_`` before the clipping."""
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


def test_the_answers_of_the_loss_scaling_lab():
    assert re.search(r"1\. From 2³ and from 2¹⁴\.\n2\. At about 2²²", texts_of("03")["lab-explore"])
    base = make_small_gpt(seed=0)
    train(base, torch.optim.AdamW(base.parameters(), lr=3e-3), text_batches(150))
    flowing, layers = [], (torch.nn.Linear, torch.nn.LayerNorm)

    def watch(module, inputs, output):
        output.register_hook(lambda gradient: flowing.append(gradient.flatten()))

    for module in base.modules():
        if isinstance(module, layers):
            module.register_forward_hook(watch)
    base(*next(text_batches(1, batch_size=32, seq_len=128, seed=3))).backward()
    activations = torch.cat(flowing)[::97].numpy()
    weights = torch.cat([p.grad.flatten() for p in base.parameters()]).numpy()

    def held(values, power):
        return torch.tensor(values[values != 0] * np.float32(2) ** power).to(torch.float16).abs()

    flushed = {power: (held(activations, power) == 0).double().mean() for power in (2, 3)}
    tiny = {
        power: (sizes > 0).logical_and(sizes < 2**-14).double().mean()
        for power, sizes in ((power, held(activations, power)) for power in (13, 14))
    }
    assert flushed[2] > 0.1 > flushed[3] and tiny[13] > 0.1 > tiny[14]
    assert not held(weights, 20).isinf().any() and held(weights, 23).isinf().any()


@pytest.mark.parametrize(
    "name", ["QWEN_2_05B", "LLAMA_32_1B", "LLAMA_32_3B", "LLAMA_3_8B", "MISTRAL_7B", "LLAMA_2_70B"]
)
def test_autocast_saves_once_the_micro_batch_has_more_tokens_than_the_hidden_size(name):
    """The rule to take home, on models other than the GPT-2 block that it was derived on."""
    model = getattr(models, name)

    def share(tokens_per_unit: int) -> float:
        peaks = [
            estimate_memory(
                TrainingSetup(
                    model=model,
                    precision=precision,
                    optimizer=OptimizerConfig(implementation="fused"),
                    attention="flash",
                    seq_len=model.hidden_size,
                    micro_batch_size=tokens_per_unit,
                )
            ).peak_bytes
            for precision in (recipes.AUTOCAST_BF16, recipes.FP32)
        ]
        return peaks[0] / peaks[1]

    assert 0.94 < share(1) < 1
    assert 0.84 < share(2) < 0.93
    assert 0.74 < share(4) < 0.86
