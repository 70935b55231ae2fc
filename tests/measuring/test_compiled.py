"""The compiler's graphs against the closed FLOPs of a block, its plain gradients, and the bytes at both ends."""

import pytest
import torch

from memkit.measuring.compiled import compiled_step
from memkit.program.doors import tensors_in
from memkit.program.transformer import Block
from memkit.recomputation.costs import block_products
from memkit.setup.models import TINY_GPT2
from memkit.setup.training import TrainingSetup

SETUP = TrainingSetup(model=TINY_GPT2, micro_batch_size=2, seq_len=64, attention="stored", device="cpu")


@pytest.fixture(scope="module")
def steps():
    block = Block(SETUP)
    shared = {"mask": torch.ones(64, 64, dtype=torch.bool).triu_(1)}
    x = torch.randn(2, 64, 256, requires_grad=True)
    block(x, shared).sum().backward()
    plain, x.grad = x.grad, None
    found = {}
    for budget in (1.0, 0.5, 0.0):
        found[budget] = compiled_step(lambda: block(x, shared), budget, [*block.parameters(), *tensors_in(shared)])
        torch.testing.assert_close(x.grad, plain)
        x.grad = None
    return found, x


def test_flops_without_and_with_all_of_the_forward_again(steps):
    found, _ = steps
    forward = sum(product.flops for product in block_products(SETUP))
    assert (found[1.0].forward_flops, found[1.0].backward_flops) == (forward, 2 * forward)
    assert 2 * forward < found[0.5].backward_flops < found[0.0].backward_flops < 3 * forward
    down = block_products(SETUP)[-1].flops
    assert found[0.0].backward_flops == 3 * forward - down  # the last product of the block is not needed again


def test_a_budget_of_zero_keeps_the_input_alone(steps):
    found, x = steps
    assert found[0.0].stored_bytes == x.nbytes
    assert found[0.0].stored_bytes < found[0.5].stored_bytes < found[1.0].stored_bytes


def test_a_budget_above_one_is_refused():
    with pytest.raises(ValueError, match=r"budget=1.5 is outside 0 to 1"):
        compiled_step(lambda: torch.ones(1), 1.5)
