"""Proofs of group O, rules of thumb and tables of what fits where: each row with the words that it leaves out."""

from dataclasses import replace

from claims.test_claims_a import parameters_of

from book.claims import rounds_to
from memkit.cards import CARDS
from memkit.fit import planned_room
from memkit.models import LLAMA_2_7B, LLAMA_2_13B, LLAMA_32_1B, LLAMA_32_3B, ModelConfig
from memkit.recipes import PURE_BF16, OptimizerConfig
from memkit.units import GIB
from stepscope.planner.plan import TrainingPlan, plan_of
from stepscope.setup import TARGETS, AdapterConfig, Job, Layout

A100_40, A100_80, RTX = "A100 SXM 40 GB", "A100 SXM 80 GB", "RTX 4090"
LORA = AdapterConfig(rank=16)
QLORA = replace(LORA, base="nf4")


LLAMA_2_70B_CHECKPOINT_BYTES = 137_953_316_864
"""``total_size`` of model.safetensors.index.json of meta-llama/Llama-2-70b-hf: 16-bit weights, and beside them 64
float32 frequencies of the rotary embedding for each of 80 layers, which are no parameters."""


def planned(model: ModelConfig, card: str, layout: Layout | None = None, **choices) -> TrainingPlan:
    """Fused AdamW in pure bf16, every block run again, one sequence of 512 tokens, unless told otherwise."""
    usual = {"precision": PURE_BF16, "recomputation": "full", "seq_len": 512}
    setup = Job(
        model=model, optimizer=OptimizerConfig(implementation="fused"), **{**usual, **choices}
    )
    return plan_of(setup, CARDS[card], layout)


def settle_lora(
    figures, model: ModelConfig, also: dict[str, int] | None = None, **printed: int
) -> None:
    """LoRA on a card of the row's size, of which the answer tells rank and tokens, nothing run again and all."""
    assert {name: figures[name] for name in printed} == printed
    assert parameters_of(model) == figures["parameters"]
    choices = {"adapter": replace(LORA, rank=figures["rank"]), "seq_len": figures["tokens"]}
    peaks = {
        name: planned(model, A100_40, **choices, recomputation=way).peak_bytes
        for name, way in (("kept", "none"), ("again", "full"))
    }
    peaks, room = peaks | (also or {}), planned_room(figures["card_gb"] * 10**9)
    assert all(
        rounds_to(size / GIB, figures[name]) for name, size in (peaks | {"room": room}).items()
    )
    figures.settle(**{name: size < room for name, size in peaks.items()})


def test_C390(figures):
    wide = replace(LORA, rank=8, targets=TARGETS[1:])
    way = {"seq_len": 2048, "recomputation": "none"}
    peak = planned(LLAMA_32_1B, RTX, adapter=wide, **way).peak_bytes
    settle_lora(figures, LLAMA_32_1B, {"linear": peak}, rank=8, tokens=2048, card_gb=8)


def test_C391(figures):
    settle_lora(figures, LLAMA_32_3B, rank=16, tokens=2048, card_gb=16)


def test_C414(figures):
    plans = [
        planned(model, RTX, adapter=QLORA, seq_len=figures["tokens"])
        for model in (LLAMA_2_7B, LLAMA_2_13B)
    ]
    assert figures["tokens"] == 2048 and CARDS[RTX].label_gb == figures["card_gb"]
    small, large = (plan.peak_bytes / GIB for plan in plans)
    assert rounds_to(small, figures["small_gib"]) and rounds_to(large, figures["large_gib"])
    figures.settle(small=plans[0].fits, large=plans[1].fits)
