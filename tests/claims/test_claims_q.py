"""Proofs of group Q: models with experts, sequences of a million tokens, models that learn from their own answers."""

from functools import cache
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from cells import after_setup, texts_of
from claims.test_claims_a import BILLION
from torch import nn
from torch.distributed.tensor.experimental._context_parallel import _attention as context_parallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from book.claims import rounds_to
from memkit.cards import CARDS
from memkit.formula.estimate import estimate_memory
from memkit.models import LLAMA_3_8B
from memkit.recipes import PURE_BF16
from memkit.units import GIB
from stepscope.inference import kv_cache_bytes
from stepscope.setup import AdapterConfig, Job

CHAPTERS = Path(__file__).parents[2] / "chapters"
LESSON, LOSSES = CHAPTERS / "13_long_sequences.ipynb", CHAPTERS / "09_one_card.ipynb"
FURTHER = CHAPTERS / "further" / LESSON.name
LAYERS, PER_TOKEN, EXPERTS = 48, 8, 128
NF4 = 4.127 / 8
"""Bytes per parameter, scales included: what C366 counts."""


@cache
def after(path: Path, *cells: str) -> dict:
    """The names of a notebook after its setup and these cells."""
    names = dict(after_setup(path))
    for cell in cells:
        exec(texts_of(path.name[:2])[cell], names)
    return names


def qwen3_30b(num_layers: int) -> nn.Module:
    """transformers' model of Qwen3-30B-A3B with fewer layers, without memory."""
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen3MoeConfig(
        vocab_size=151_936,
        hidden_size=2048,
        num_hidden_layers=num_layers,
        num_attention_heads=32,
        head_dim=128,
        num_key_value_heads=4,
        num_experts=EXPERTS,
        num_experts_per_tok=PER_TOKEN,
        moe_intermediate_size=768,
        tie_word_embeddings=False,
    )
    with torch.device("meta"):
        return transformers.Qwen3MoeForCausalLM(config)


@cache
def counted() -> dict[str, int]:
    """Parameters of the 48 layers: all, those of experts, those in an ``nn.Linear`` of a layer."""
    one, two = (sum(p.numel() for p in qwen3_30b(layers).parameters()) for layers in (1, 2))
    layer = qwen3_30b(1).model.layers[0]
    linear = sum(m.weight.numel() for m in layer.modules() if type(m) is nn.Linear)
    experts = sum(p.numel() for p in layer.parameters() if p.dim() == 3)
    return {
        "all": one + (LAYERS - 1) * (two - one),
        "experts": LAYERS * experts,
        "linear": LAYERS * linear,
    }


def trainer_peak(answers: int, tokens: int) -> int:
    setup = Job(
        model=LLAMA_3_8B,
        precision=PURE_BF16,
        seq_len=tokens,
        micro_batch_size=answers,
        recomputation="full",
        adapter=AdapterConfig(rank=32),
        upcasts_logits=True,
    )
    return estimate_memory(setup).peak_bytes


def test_C425(figures):
    answers, tokens = figures["answers"], figures["tokens"]
    logits = answers * tokens * LLAMA_3_8B.vocab_size * torch.float32.itemsize / GIB
    cache_of_one, cache_of_all = (
        kv_cache_bytes(LLAMA_3_8B, batch_size=n, seq_len=tokens) / GIB for n in (1, answers)
    )
    engine = 16  # GB: a copy of the weights in 16 bits
    assert (answers, tokens) == (8, 20 * 1024) and rounds_to(logits, figures["logits"])
    assert rounds_to(cache_of_one, figures["cache"])
    assert (
        round(figures["training_gb"] + figures["logits"] + engine + figures["cache"], 1)
        == figures["total_gb"]
    )
    assert round(42 + figures["logits"] / answers + figures["cache"], 1) == figures["short_gb"]
    assert rounds_to(trainer_peak(answers, tokens) / GIB, figures["together_gib"])
    assert rounds_to(trainer_peak(1, tokens) / GIB, figures["alone_gib"])
    figures.settle(
        logits_of_all=rounds_to(logits, figures["logits"]),
        cache_of_all=rounds_to(cache_of_all, figures["cache"]),
    )


def test_C426(figures):
    used = counted()["all"] - counted()["experts"] * (EXPERTS - PER_TOKEN) // EXPERTS
    both = {"all_gb": counted()["all"], "used_gb": used}
    assert rounds_to(used / BILLION, figures["used"]) and rounds_to(
        counted()["all"] / BILLION, figures["total"]
    )
    assert all(
        rounds_to(figures["each"] * count / BILLION, figures[name]) for name, count in both.items()
    )
    assert figures["each"] == 16
    figures.settle(
        flops=6 * used < 6 * 4 * BILLION, memory=figures["all_gb"] < 2 * figures["used_gb"]
    )


def test_C427(figures):
    bitsandbytes = pytest.importorskip("transformers.integrations.bitsandbytes")
    config = pytest.importorskip("transformers").BitsAndBytesConfig(load_in_4bit=True)
    assert f"_load_in_{figures['bits']}bit" in vars(config) and figures["bits"] == 4
    model = bitsandbytes.replace_with_bnb_linear(qwen3_30b(1), ["lm_head"], config)
    linear = [m for m in model.modules() if type(m).__name__ == "Linear4bit"]
    assert LAYERS * sum(m.in_features * m.out_features for m in linear) == counted()["linear"]
    assert {p.dim() for name, p in model.named_parameters() if ".experts." in name} == {
        figures["axes"]
    }
    whole, in_linear, in_experts = (counted()[name] for name in ("all", "linear", "experts"))
    as_loaded = 2 * (whole - in_linear) + NF4 * in_linear
    small = 2 * (whole - in_linear - in_experts) + NF4 * (in_linear + in_experts)
    sizes = {"as_loaded_gb": as_loaded, "whole_gb": 2 * whole, "small_gb": small}
    assert all(rounds_to(size / BILLION, figures[name]) for name, size in sizes.items())
    figures.settle(as_loaded=as_loaded < 2 * whole / 3, experts_too=small < 2 * whole / 3)


@cache
def trained_by_peft(rank: int) -> dict[str, int]:
    peft = pytest.importorskip("peft")
    with torch.device("meta"):
        model = peft.get_peft_model(
            qwen3_30b(1), peft.LoraConfig(r=rank, target_modules="all-linear")
        )
    trained = {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}
    return {
        part: LAYERS * sum(n for name, n in trained.items() if part in name)
        for part in ("attn", "experts")
    }


def test_C428(figures):
    peft = pytest.importorskip("peft")
    trained = trained_by_peft(figures["rank"])
    assert peft.__version__.startswith(figures["release"] + ".") and figures["rank"] == 16
    assert rounds_to(trained["attn"] / 1e6, figures["attention"])
    assert rounds_to(trained["experts"] / 1e6, figures["experts"])
    assert rounds_to(100 * trained["experts"] / counted()["all"], figures["percent"])
    figures.settle(**{part: count < counted()["all"] / 100 for part, count in trained.items()})


@pytest.mark.parametrize("implementation", ["eager", "grouped_mm"])
def test_the_sum_of_experts_and_adapters_is_kept(implementation):
    """Chapter 13.1: with adapters on the experts autograd keeps as many bytes more as the experts have."""
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    config = transformers.Qwen3MoeConfig(
        vocab_size=64,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
    )
    kept, parameters = {}, {}
    for where in ((), ("experts.gate_up_proj", "experts.down_proj")):
        model = transformers.Qwen3MoeForCausalLM(config)
        model.set_experts_implementation(implementation)
        names = {"target_modules": ["q_proj"], "target_parameters": list(where) or None}
        model = peft.get_peft_model(model, peft.LoraConfig(r=1, **names))
        own = {p.untyped_storage().data_ptr() for p in model.parameters()}
        sizes = {}

        def note(tensor, own=own, sizes=sizes):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                sizes[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            model(torch.arange(16)[None])
        kept[where] = sum(sizes.values())
        parameters[where] = sum(p.nbytes for p in model.parameters() if p.dim() == 3)
    alone, with_adapters = kept.values()
    assert 1 <= (with_adapters - alone) / parameters[()] < 1.1


@cache
def loss_gib(size: int, recomputed: bool) -> float:
    step = after(LOSSES, "long-loss")["loss_alone"]
    return (step(size=size, recomputed=recomputed) + 2 * 32 * 2**20) / GIB


def test_C429(figures):
    tokens, size = figures["tokens"], figures["size"]
    assert f"({tokens:_}, 2048" in texts_of("09")["long-loss"] and size == 256
    assert f"({figures['vocab']:_}, 2048" in texts_of("09")["long-loss"]
    kept, again, whole = loss_gib(size, False), loss_gib(size, True), loss_gib(tokens, False)
    peaks = {"kept_gib": kept, "again_gib": again, "whole_gib": whole}
    assert all(rounds_to(peak, figures[name]) for name, peak in peaks.items())
    logits = tokens * figures["vocab"] * torch.float32.itemsize / GIB
    figures.settle(kept=kept < logits, recomputed=again < logits)


def test_C430(figures):
    names = after(FURTHER, "long-predicted")
    tokens, sums = names["tokens"], {}
    for place in ("host", "card"):
        states, inputs, in_mlp, in_attention, gathered = names["on_a_card"](
            names["qwen"], tokens, place
        )
        sums[place] = (states + inputs + max(in_mlp, in_attention) + gathered) / GIB
    room = CARDS["H100 SXM"].memory_bytes / GIB
    assert tokens == 2**20 and rounds_to(sums["host"], figures["host_gib"])
    assert rounds_to(sums["card"] - sums["host"], figures["inputs_gib"]) and rounds_to(
        room, figures["card_gib"]
    )
    assert (
        f'(qwen, 2**20, "host", "card", False, {figures["measured_gib"]})'
        in texts_of("13")["long-measured"]
    )
    figures.settle(**{place: total < room for place, total in sums.items()})


@cache
def parts_held(num_cards: int) -> dict[str, int]:
    """Parts of keys and values that PyTorch's two strategies hold besides a card's own, by Accelerate's names."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=num_cards)
    held = {}
    for method in context_parallel._RotateMethod:
        rotater = context_parallel._create_rotater(dist.group.WORLD, 2, method)
        rotater.exchange_buffers(own := torch.zeros(4))
        rotater.next_buffer()
        [buffer] = [tensor for tensor in vars(rotater).values() if isinstance(tensor, torch.Tensor)]
        held[method.name.replace("_", "").lower()] = buffer.numel() // own.numel()
    dist.destroy_process_group()
    return held


def test_C431(figures):
    accelerate = pytest.importorskip("accelerate.utils")
    names = after(LESSON, "long-by-hand", "long-block")
    held = parts_held(names["cards"])
    assert accelerate.TorchContextParallelConfig().cp_comm_strategy == figures["default"]
    assert (
        context_parallel._cp_options.rotate_method.name.replace("_", "").lower()
        == figures["default"]
    )
    assert set(held) == {figures["default"], figures["ring"]}
    gathered = held[figures["default"]] * names["of_a_card"]
    assert rounds_to(gathered / BILLION, figures["gathered_gb"])
    assert rounds_to(names["of_a_card"] / BILLION, figures["own_gb"])
    figures.settle(**{strategy: parts == 1 for strategy, parts in held.items()})
