"""Plans for cards that multiply no bfloat16, and the page that plans are printed on."""

from dataclasses import replace

import pytest
import torch
from fitting.test_plans import CARD, FOUND, HALF_BY_TORCH, Blocks

from memkit.fitting.plan_code import KINDS, code_of, plain_code
from memkit.fitting.plans import find_plans
from memkit.hardware.cards import CARDS
from memkit.program.transformer import Transformer, random_batches
from memkit.setup.models import LLAMA_2_7B, TINY_LLAMA


@pytest.mark.parametrize("plan", HALF_BY_TORCH[:3], ids=lambda plan: plan.name)
def test_a_loop_in_float16_trains(plan):
    """The printed code on the CPU, with real values: its scale holds, and one step lowers the loss of its batch."""
    torch.manual_seed(0)
    model = Transformer(replace(plan.setup, recomputation="none", device="cpu"))
    batch = random_batches(plan.setup.model, replace(plan.setup, device="cpu"))()
    names = {"model": Blocks(model), "batches": iter([batch] * 9)}
    exec(plain_code(plan).replace('"cuda"', '"cpu"'), names)
    first, *_, last = (names["step"]() for _ in range(4))
    assert "GradScaler" in plain_code(plan) and names["scaler"].get_scale() == 2**16
    assert last < first


def test_a_card_without_bfloat16_gets_plans_in_float16_alone():
    """Compute capability 8.0 is the first with bfloat16; a GradScaler refuses what is float16 when it steps."""
    for num_cards in (1, 4):
        found = find_plans(TINY_LLAMA, CARDS["T4"], tokens_per_step=2048, seq_len=128, num_cards=num_cards)
        assert found.fitting and all(plan.scales_loss for plan in found.plans)
        texts = [code_of(plan, kind) for plan in found.plans for kind in KINDS]
        assert not [text for text in texts if "bf16" in text.replace("bf16=False", "") or "bfloat16" in text]
        assert {plan.setup.optimizer.place for plan in found.plans} == {"after backward"}


@pytest.mark.parametrize(("name", "multiplies"), [("T4", False), ("V100 16 GB", False), ("A10", True)])
def test_a_card_without_bfloat16_is_named(name, multiplies):
    """Compute capability 8.0 is the first with bfloat16: ``torch.cuda.is_bf16_supported``."""
    found = find_plans(TINY_LLAMA, CARDS[name], tokens_per_step=2048, seq_len=2048)
    assert (CARDS[name].compute_capability >= (8, 0)) == multiplies
    assert ("GradScaler" in str(found)) != multiplies


def test_the_page_of_plans_is_narrow_and_holds_every_plan_of_the_front():
    found = find_plans(LLAMA_2_7B, CARD, tokens_per_step=16384, seq_len=2048, num_cards=8)
    for plans in (FOUND, found):
        text = plans.table()
        assert max(map(len, str(plans).splitlines())) <= 100 and all(plan.cut in text for plan in plans.front)
        assert all(plan.name in text.html and plan.kept in text for plan in plans.front)
