"""AdamW on 16-bit weights: torch's AdamW in float32, ml_dtypes' rounding and exact expectations as oracles."""

import ml_dtypes
import numpy as np
import pytest
import torch

from memkit.low_precision import WRITES, SixteenBitAdamW, add_with_memory


def weights(num=512, seed=0):
    return torch.randn(num, generator=torch.Generator().manual_seed(seed)) * 0.02


def stepped(make, weight, num_steps=5):
    weight = torch.nn.Parameter(weight.clone())
    optimizer = make([weight])
    for step in range(num_steps):
        generator = torch.Generator().manual_seed(step)
        weight.grad = torch.randn(weight.shape, generator=generator).to(weight.dtype)
        optimizer.step()
    return weight.detach().float(), optimizer.state[weight]


def test_the_master_copy_walks_as_torchs_float32_adamw_does():
    """Gradients are BF16 in both, so the float32 copies are the same walk; the weight is its rounding."""
    start = weights().bfloat16()
    ours, state = stepped(lambda p: SixteenBitAdamW(p, write="master"), start)
    copy = torch.nn.Parameter(start.float())
    torchs = torch.optim.AdamW([copy], foreach=False)
    for step in range(5):
        copy.grad = (
            torch.randn(copy.shape, generator=torch.Generator().manual_seed(step))
            .bfloat16()
            .float()
        )
        torchs.step()
    torch.testing.assert_close(state["master"], copy.detach(), rtol=2e-6, atol=1e-8)
    rounded = state["master"].numpy().astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(ours.numpy(), rounded)


def test_nearest_stands_still_where_the_cures_move():
    start = torch.full((2000,), 1.0, dtype=torch.bfloat16)

    def walk(write):
        weight = torch.nn.Parameter(start.clone())
        optimizer = SixteenBitAdamW([weight], lr=1e-4, weight_decay=0.0, write=write)
        for _ in range(200):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
        return weight.detach().float().mean().item()

    found = {write: walk(write) for write in WRITES}
    assert found["nearest"] == 1.0
    for write in ("kahan", "master"):  # 200 steps of 1e-4
        assert found[write] == pytest.approx(0.98, abs=2e-3), write


def test_kahan_keeps_what_rounding_took():
    weight, lost = torch.ones(1, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.bfloat16)
    for _ in range(100):
        add_with_memory(weight, lost, torch.tensor([1e-3]))
    assert (weight.double() + lost.double()).item() == pytest.approx(1.1, abs=1e-3)


@pytest.mark.parametrize(
    "write, dtypes",
    [
        ("nearest", {"exp_avg": 2, "exp_avg_sq": 2}),
        ("kahan", {"exp_avg": 2, "exp_avg_sq": 2, "lost": 2}),
        ("master", {"exp_avg": 4, "exp_avg_sq": 4, "master": 4}),
    ],
)
def test_the_states_have_the_bytes_of_the_recipe(write, dtypes):
    _, state = stepped(lambda p: SixteenBitAdamW(p, write=write), weights().bfloat16(), 1)
    sizes = {
        name: value.element_size()
        for name, value in state.items()
        if isinstance(value, torch.Tensor)
    }
    assert sizes == dtypes


def test_an_unknown_write_is_refused():
    with pytest.raises(ValueError, match="write='up' is not one of nearest, kahan, master"):
        SixteenBitAdamW([torch.nn.Parameter(torch.ones(1))], write="up")
