"""The seconds by which plans are ordered: each term against a roofline computed by hand, or a published run."""

from dataclasses import replace

import pytest

from memkit.cards import CARDS
from memkit.formula.parameters import count_parameters
from memkit.models import LLAMA_2_7B
from memkit.recipes import AUTOCAST_BF16, FP32, FUSED_ADAMW, PURE_BF16, OptimizerConfig
from memkit.strategies import FULL, SAVE_PRODUCTS, every, groups, sequential
from stepscope.experts import QWEN_3_30B_A3B
from stepscope.optimizers import OPTIMIZERS
from stepscope.planner.plan import seconds_by_term
from stepscope.setup import AdapterConfig, Job, Layout, linear_layers

CARD = CARDS["RTX 4090"]
P, TOKENS, STEPS = 6_738_415_616, 2048, 4
HEAD = 32000 * 4096
PCIE, HBM, TENSOR, HOST = 31.5e9, 1008e9, 165.2e12, 89.6e9
"""RTX 4090: PCIe 4.0 × 16 (16 GT/s, 128 of 130 bits), 384 bits of GDDR6X at 21 Gb/s, bf16 tensor cores with float32
sums (NVIDIA Ada whitepaper 1.1, table 2). A host with two channels of DDR5-5600."""
SETUP = Job(
    model=LLAMA_2_7B,
    precision=PURE_BF16,
    optimizer=FUSED_ADAMW,
    seq_len=TOKENS,
    grad_accum_steps=STEPS,
)


def terms(layout: Layout | None = None, **choices) -> dict[str, float]:
    return seconds_by_term(replace(SETUP, **choices), CARD, layout)


ON_HOST = {"place": "on the host", "optimizer": OptimizerConfig(implementation="foreach")}


def test_the_parameters_are_the_published_ones():
    assert count_parameters(LLAMA_2_7B) == P


def test_passes_take_six_flops_a_parameter_and_token_and_recomputation_two_more():
    """Kaplan et al. 2020: C = 6 N D; with full recomputation 8 N D, but for the head, which is outside the blocks."""
    once = 6 * P * TOKENS * STEPS / TENSOR
    assert terms() == {"passes": pytest.approx(once, rel=0.01)}
    again = terms(recomputation=FULL)["passes"] / terms()["passes"]
    # the last product of a block stops early: a sixth of them
    flops_again = (2 * (P - 2 * HEAD)) / (6 * (P - HEAD))
    assert again - 1 == pytest.approx(flops_again, rel=0.25) and again - 1 < flops_again
    half, spared = (
        terms(recomputation=way)["passes"] / terms()["passes"] - 1
        for way in (every(2), sequential(32))
    )
    assert half == pytest.approx((again - 1) / 2) and spared == pytest.approx((again - 1) * 31 / 32)


def test_few_tokens_wait_for_the_weights():
    """Each weight is read three times in 2 bytes: 40 ms on this card, whatever the batch is."""
    one = seconds_by_term(replace(SETUP, seq_len=16, grad_accum_steps=1), CARD)["passes"]
    assert one == pytest.approx(3 * 2 * P / HBM, rel=0.01)
    wide = replace(SETUP, seq_len=16, grad_accum_steps=1, precision=FP32)
    assert seconds_by_term(wide, CARD)["passes"] == pytest.approx(3 * 4 * P / HBM, rel=0.01)


def test_float32_does_without_tensor_cores():
    """The same whitepaper: 82.6 TFLOP/s; TF32 is off in torch unless somebody allows it."""
    assert terms(precision=FP32)["passes"] == pytest.approx(
        6 * P * TOKENS * STEPS / 82.6e12, rel=0.01
    )
    # a T4's tensor cores do not multiply it: 8.1 TFLOP/s
    in_bf16 = seconds_by_term(SETUP, CARDS["T4"])["passes"]
    assert in_bf16 == pytest.approx(6 * P * TOKENS * STEPS / 8.1e12, rel=0.01)


def test_only_the_last_block_of_a_group_stops_early():
    """A block's last product, 4,096 x 11,008 of its 202 million weights, is not run again; of a group's only one is."""
    block, down = 4096 * (4 * 4096 + 3 * 11008), 4096 * 11008
    one, four = (
        terms(recomputation=way)["passes"] / terms()["passes"] - 1 for way in (FULL, groups(4))
    )
    assert four / one == pytest.approx((block - down / 4) / (block - down), rel=0.02)


def test_a_token_pays_for_the_experts_that_it_uses():
    """Qwen3-30B-A3B's own card: 30.5 billion parameters, of which 3.3 are activated. Blocks with one small MLP in place
    of experts cost less to run again. The experts are no ``nn.Linear``, so bitsandbytes puts none in 4 bits."""
    model = QWEN_3_30B_A3B
    assert count_parameters(model) == pytest.approx(30.5e9, rel=0.005)
    assert terms(model=model)["passes"] == pytest.approx(
        6 * 3.3e9 * TOKENS * STEPS / TENSOR, rel=0.02
    )
    few = replace(model, num_layers=4, intermediate_size=64)
    cheap, dear = (
        terms(model=replace(few, dense_layers=dense), recomputation=every(2))["passes"]
        for dense in ((0, 2), (1, 3))
    )
    assert cheap < 0.97 * dear
    lora = AdapterConfig(rank=16, targets=("query",), base="nf4")
    outside = 48 * 2048 * (2 * 4096 + 2 * 512 + 128) + 2 * 151_936 * 2048
    seconds = terms(model=model, adapter=lora)
    passes = 3 * seconds["passes"] / terms(model=model)["passes"]
    assert seconds["unpacking"] == pytest.approx(STEPS * passes * outside * 2.5 / HBM, rel=0.01)


def test_qlora_unpacks_its_weights_in_every_pass_of_every_micro_batch():
    lora = AdapterConfig(rank=16, targets=linear_layers(LLAMA_2_7B))
    plain, four = terms(adapter=lora), terms(adapter=replace(lora, base="nf4"))
    passes = 3 * plain["passes"] / terms()["passes"]
    # forward, and the gradients of what comes in, but not of frozen weights
    assert 2 < passes < 2.2
    assert four["passes"] == plain["passes"] and set(plain) == {"passes"}
    assert four["unpacking"] == pytest.approx(STEPS * passes * P * (0.5 + 2) / HBM, rel=0.01)


def test_a_policy_that_saves_products_saves_none_of_4_bit_weights():
    """All of a block runs again but its last product, where the recomputation stops: 2 FLOPs a weight and token."""
    short = {"seq_len": 512, "recomputation": SAVE_PRODUCTS}  # attention is 2 % of it
    lora = AdapterConfig(rank=16, targets=("query",))
    four = replace(lora, base="nf4")
    plain = terms(adapter=four, seq_len=512)["passes"]
    assert terms(adapter=lora, **short)["passes"] == plain
    weights = P - 2 * HEAD - 32 * 4096 * 11_008
    again = terms(adapter=four, **short)["passes"] - plain
    assert again == pytest.approx(2 * weights * 512 * STEPS / TENSOR, rel=0.03)


def test_paged_states_come_and_go_in_every_step():
    paged = OptimizerConfig(record=OPTIMIZERS["paged AdamW"], implementation="fused")
    assert terms(optimizer=paged)["paged"] == pytest.approx(2 * 8 * P / PCIE, rel=0.01)


def test_an_optimizer_on_the_host_gets_gradients_of_each_micro_batch_and_sends_weights_once():
    """Its own step reads a gradient and reads and writes a weight and two moments, all in bf16."""
    found = terms(**ON_HOST)
    assert found["host"] == pytest.approx((STEPS * 2 + 2) * P / PCIE, rel=0.01)
    assert found["host step"] == pytest.approx((2 + 2 * 2 + 2 * 4) * P / HOST, rel=0.01)


def test_a_published_step_on_the_host_lies_between_its_link_and_all_of_it():
    """torchao's README (03cf0ade): 1.1 billion parameters in bf16, 1.27 s on the card, 1.52 s with states off it."""
    found = terms(**ON_HOST, grad_accum_steps=1)
    link, all_of_it = (
        1.1e9 / P * seconds for seconds in (found["host"], found["host"] + found["host step"])
    )
    assert link < 1.52 - 1.27 < all_of_it


@pytest.mark.parametrize(("stage", "whole"), [(0, 2 * 4), (1, 3 * 4), (2, 2 * 2), (3, 3 * 2)])
def test_ranks_send_what_the_zero_paper_says(stage, whole):
    """Ψ of weights gathered, Ψ of gradients reduced, N − 1 of N parts each (Rajbhandari et al. 2020, section 7); the
    embedding, the norm and the head are gathered once. DDP sends float32 gradients, FSDP2 gathers and reduces bf16."""
    sharded = stage > 1
    layout = Layout(stage=stage, dp_size=8, param_dtype="bfloat16" if sharded else None)
    found = terms(layout, precision=FP32 if sharded else AUTOCAST_BF16, grad_accum_steps=1)
    assert found["links"] == pytest.approx(whole * P * 7 / 8 / (PCIE / 2), rel=0.03)
    # in 16 bits, whatever the shards are
    assert found["passes"] == pytest.approx(6 * P * TOKENS / TENSOR, rel=0.01)


def test_cards_with_links_of_their_own_send_over_them():
    """H100 SXM: 18 links of NVLink 4, 25 GB/s each way (NVIDIA H100 whitepaper), of which NCCL reaches four fifths."""
    found = seconds_by_term(SETUP, CARDS["H100 SXM"], Layout(stage=0, dp_size=8))["links"]
    assert found == pytest.approx(STEPS * 2 * 2 * P * 7 / 8 / (0.8 * 18 * 25e9), rel=0.01)


def test_a_bridge_of_two_cards_carries_nothing_for_eight():
    """H100 PCIe: three bridges of 100 GB/s each way join two cards; PCIe 5.0 x16 has 63 GB/s (NVIDIA's data sheet)."""
    for dp_size, rate in ((2, 0.8 * 300e9), (8, 0.5 * 63.02e9)):
        layout = Layout(stage=0, dp_size=dp_size)
        found = seconds_by_term(SETUP, CARDS["H100 PCIe"], layout)["links"]
        assert found == pytest.approx(STEPS * 2 * 2 * P * (dp_size - 1) / dp_size / rate, rel=0.01)


@pytest.mark.parametrize(("stage", "crossings"), [(2, 2), (3, 3)])
def test_shards_on_the_host_come_once_or_twice_and_their_gradients_go_once(stage, crossings):
    found = terms(Layout(stage=stage, dp_size=8, offloads=True), precision=PURE_BF16)
    wide = terms(
        Layout(stage=stage, dp_size=8, offloads=True, param_dtype="bfloat16"), precision=FP32
    )
    # cast only once they are on the card
    assert wide["shards"] == pytest.approx(2 * found["shards"])
    assert found["shards"] == pytest.approx(STEPS * crossings * 2 * P / 8 / PCIE, rel=0.01)
    assert found["host step"] == pytest.approx((2 + 2 * 2 + 2 * 4) * P / HOST, rel=0.01)
