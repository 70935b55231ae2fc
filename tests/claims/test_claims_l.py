"""Proofs of group L: inference beside training (C343 to C347), and the recipes of LoRA and QLoRA."""

import inspect
import logging
from dataclasses import replace
from functools import cache
from unittest.mock import patch

import pytest
import torch
from claims.test_claims_a import ADAM_BF16, BILLION, SEVEN, parameters_of, real_step
from torch import nn
from torch.utils.checkpoint import checkpoint

from book.claims import rounds_to
from memkit.cards import CARDS
from memkit.formula.activations import activation_bytes
from memkit.formula.estimate import estimate_memory
from memkit.formula.states import bytes_per_parameter
from memkit.models import LLAMA_2_7B
from memkit.recipes import ADAMW, AUTOCAST_BF16, BF16_MASTER, FP32, PURE_BF16, OptimizerConfig
from memkit.setup import TrainingSetup
from memkit.timeline import Instant
from stepscope.formula import count_adapter_parameters, job_state_bytes
from stepscope.inference import kv_cache_bytes, kv_cache_bytes_per_token
from stepscope.program.job import job_build
from stepscope.setup import AdapterConfig, Job
from stepscope.tracing.trace import trace_script

TWO_BYTES = 2
"""Of a 16-bit value."""


@cache
def cache_bytes(model, tokens: int) -> int:
    """Keys and values, layers, heads, values per head, 16 bits: the product written out, against memkit's."""
    per_token = 2 * model.num_layers * model.num_kv_heads * model.head_dim * TWO_BYTES
    assert per_token == kv_cache_bytes_per_token(model)
    assert per_token * tokens == kv_cache_bytes(model, batch_size=1, seq_len=tokens)
    return per_token * tokens


@cache
def llama_activations_gb(precision, attention) -> float:
    setup = TrainingSetup(
        model=LLAMA_2_7B, precision=precision, micro_batch_size=4, attention=attention
    )
    return activation_bytes(replace(setup, seq_len=1024)) / BILLION


LORA = AdapterConfig(rank=16)
QLORA = replace(LORA, base="nf4")
ALL_SEVEN = ("query", "key", "value", "output", "gate", "up", "down")
FUSED = OptimizerConfig(implementation="fused")
PRINTED_ADAPTERS = 20 * 10**6
"""The count of parameters that the printed sums of C356 to C358 use."""


def tuned(adapter: AdapterConfig | None, batch: int, tokens: int, **choices) -> Job:
    """Llama-2-7B, every block run again, in pure bf16 with fused AdamW unless told otherwise."""
    usual = {"precision": PURE_BF16, "optimizer": FUSED, "recomputation": "full"}
    return Job(
        model=LLAMA_2_7B,
        adapter=adapter,
        micro_batch_size=batch,
        seq_len=tokens,
        **{**usual, **choices},
    )


@cache
def peak_of_step(adapter: AdapterConfig | None, batch: int, tokens: int, **choices) -> Instant:
    """The highest instant of the second step."""
    return estimate_memory(tuned(adapter, batch, tokens, **choices)).for_step(2).peak


@cache
def trained_by_peft(rank: int, targets: tuple[str, ...]) -> tuple[int, set[torch.dtype]]:
    """Parameters that peft trains beside Llama-2-7B in bf16, counted in one layer, and their dtypes."""
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=LLAMA_2_7B.hidden_size,
        intermediate_size=LLAMA_2_7B.intermediate_size,
        vocab_size=1000,
        num_attention_heads=LLAMA_2_7B.num_heads,
        num_hidden_layers=1,
    )
    names = [
        {"query": "q", "key": "k", "value": "v", "output": "o"}.get(name, name) + "_proj"
        for name in targets
    ]
    with torch.device("meta"):
        network = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
        wrapped = peft.get_peft_model(network, peft.LoraConfig(r=rank, target_modules=names))
    trained = [p for p in wrapped.parameters() if p.requires_grad]
    count = LLAMA_2_7B.num_layers * sum(p.numel() for p in trained)
    assert count == count_adapter_parameters(LLAMA_2_7B, AdapterConfig(rank=rank, targets=targets))
    return count, {p.dtype for p in trained}


def fp32_activations_gb(tokens: int, attention: str) -> float:
    setup = TrainingSetup(model=LLAMA_2_7B, precision=FP32, seq_len=tokens, attention=attention)
    return activation_bytes(setup) / BILLION


def test_C349(figures):
    parts = bytes_per_parameter(FP32, ADAMW)
    assert (figures["weights_gb"], figures["gradients_gb"]) == (
        SEVEN * parts["weight"],
        SEVEN * parts["gradient"],
    )
    assert figures["states_gb"] == SEVEN * (parts["exp_avg"] + parts["exp_avg_sq"])
    names = ("weights_gb", "gradients_gb", "states_gb", "activations_gb")
    assert sum(figures[name] for name in names) == figures["total_gb"]
    for name, attention in (("tokens", "flash"), ("stored_tokens", "stored")):
        fits = [
            fp32_activations_gb(figures[name] + more, attention) <= figures["activations_gb"]
            for more in (0, 1)
        ]
        assert fits == [True, False]
    assert (
        rounds_to(fp32_activations_gb(figures["long"], "flash"), figures["long_gb"])
        and figures["long"] == 2048
    )
    figures.settle(
        short=fp32_activations_gb(figures["stored_tokens"], "flash") <= figures["activations_gb"],
        long=figures["long_gb"] <= figures["activations_gb"],
    )


def test_C350(figures):
    cards = [card for card in CARDS.values() if card.label_gb == figures["label_gb"]]
    exact = torch.float32.itemsize * parameters_of(LLAMA_2_7B)
    assert len(cards) > 2 and rounds_to(exact / BILLION, figures["exact_gb"])
    assert figures["weights_gb"] == torch.float32.itemsize * SEVEN
    figures.settle(**{card.name: exact > card.memory_bytes for card in cards})


def test_C351(figures):
    """A weight in bf16 after one step of torch's AdamW."""
    kept = sum(real_step(*ADAM_BF16).values())
    assert figures["bytes_per_parameter"] == kept and figures["real_gb"] == SEVEN * kept
    table = bytes_per_parameter(BF16_MASTER, ADAMW)
    names = ("weights_gb", "gradients_gb", "master_gb", "mean_gb", "square_gb")
    roles = ("weight", "gradient", "master weight", "exp_avg", "exp_avg_sq")
    assert [figures[name] for name in names] == [SEVEN * table[role] for role in roles]
    assert figures["total_gb"] == SEVEN * sum(table.values())
    figures.settle(code=figures["total_gb"] == figures["real_gb"])


def test_C352(figures):
    transformers = pytest.importorskip("transformers")
    told, dtypes = {}, {}
    config = transformers.GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=8, n_positions=8)
    logger = logging.getLogger("transformers.modeling_utils")
    for name in ("torch_dtype", "dtype"):
        with patch.object(logger, "warning_once") as warn:
            model = transformers.AutoModelForCausalLM.from_config(config, **{name: torch.bfloat16})
        told[name] = any(
            "deprecated" in str(call) and name in str(call) for call in warn.call_args_list
        )
        dtypes[name] = {p.dtype for p in model.parameters()}
    assert all(dtype == {torch.bfloat16} for dtype in dtypes.values()) and set(told) == {
        figures["old"],
        figures["new"],
    }
    figures.settle(once=dtypes["torch_dtype"] == {torch.bfloat16}, now=not told[figures["old"]])


def test_C353(figures):
    sizes = {
        "attention": (figures["rank"], LORA.targets),
        "least": (figures["small_rank"], ("query", "value")),
        "most": (figures["large_rank"], ALL_SEVEN),
    }
    percent = {
        name: 100 * trained_by_peft(*size)[0] / parameters_of(LLAMA_2_7B)
        for name, size in sizes.items()
    }
    assert all(rounds_to(percent[name], figures[name]) for name in sizes)
    assert (figures["printed_low"], figures["printed_high"]) == (0.1, 1)
    assert figures["large_rank"] == 64
    figures.settle(
        **{
            name: figures["printed_low"] <= value <= figures["printed_high"]
            for name, value in percent.items()
        }
    )


def test_C356(figures):
    count, dtypes = trained_by_peft(figures["rank"], LORA.targets)
    assert figures["printed_million"] * 10**6 == PRINTED_ADAPTERS
    assert rounds_to(torch.bfloat16.itemsize * count / BILLION, figures["bf16_gb"])
    [dtype] = dtypes
    assert rounds_to(dtype.itemsize * count / BILLION, figures["fp32_gb"])
    figures.settle(
        printed_count=rounds_to(
            torch.bfloat16.itemsize * PRINTED_ADAPTERS / BILLION, figures["printed_gb"]
        ),
        peft=rounds_to(dtype.itemsize * count / BILLION, figures["printed_gb"]),
    )


def printed_lora_gb() -> float:
    """The printed sum: base, adapters and gradients in bf16, 12 bytes of states."""
    return TWO_BYTES * SEVEN + (2 * TWO_BYTES + 12) * PRINTED_ADAPTERS / BILLION


def test_C358(figures):
    assert rounds_to(printed_lora_gb(), figures["printed_gb"])
    tokens, batch = figures["tokens"], figures["batch"]
    assert (tokens, batch) == (2048, 4) and CARDS["A10"].label_gb == figures["label_gb"]
    peaks = {
        "low_gb": peak_of_step(LORA, 1, tokens),
        "high_gb": peak_of_step(
            replace(LORA, dtype="bfloat16"), batch, tokens, recomputation="none"
        ),
        "float_gb": peak_of_step(LORA, batch, tokens, recomputation="none"),
    }
    assert all(rounds_to(peak.total_bytes / BILLION, figures[name]) for name, peak in peaks.items())
    traced = trace_script(job_build(tuned(LORA, 1, tokens))).for_step(2)
    assert peaks["low_gb"].total_bytes == traced.peak_bytes
    figures.settle(
        **{name: peak.total_bytes < CARDS["A10"].memory_bytes for name, peak in peaks.items()}
    )


def test_C359(figures):
    card = CARDS["A10"]
    assert (
        figures["states_gb"] == round(printed_lora_gb(), 1) and card.label_gb == figures["label_gb"]
    )
    label_left = figures["label_gb"] - figures["states_gb"]
    left = card.memory_bytes / BILLION - figures["states_gb"]
    assert (
        rounds_to(card.memory_bytes / BILLION, figures["usable_gb"]) and figures["printed_gb"] == 10
    )
    assert rounds_to(label_left, figures["label_left"]) and rounds_to(left, figures["left"])
    figures.settle(
        label=rounds_to(label_left, figures["printed_gb"]),
        card=rounds_to(left, figures["printed_gb"]),
    )


def is_trained(uses_reentrant: bool) -> bool:
    """Whether a checkpointed layer with a trained weight gets a gradient when its input requires none."""
    layer = nn.Linear(4, 4)
    y = checkpoint(layer, torch.ones(2, 4), use_reentrant=uses_reentrant)
    if y.requires_grad:
        y.sum().backward()
    return layer.weight.grad is not None


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_C360(figures):
    batch, steps = figures["batch"], figures["steps"]
    peak = peak_of_step(LORA, batch, figures["tokens"], grad_accum_steps=steps).total_bytes
    assert (batch, steps, figures["tokens"]) == (4, 8, 2048)
    assert CARDS["A10"].label_gb == figures["label_gb"]
    assert rounds_to(peak / BILLION, figures["gb"]) and not is_trained(uses_reentrant=True)
    figures.settle(
        product=batch * steps == figures["effective"],
        fits=peak < CARDS["A10"].memory_bytes,
        trains=is_trained(uses_reentrant=False),
    )


def test_C361(figures):
    """bitsandbytes' own layer, made as the configuration of Transformers says."""
    transformers = pytest.importorskip("transformers")
    modules = pytest.importorskip("bitsandbytes.nn")
    config = transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype="bfloat16",
        bnb_4bit_use_double_quant=True,
    )
    layer = modules.Linear4bit(
        256,
        256,
        bias=False,
        compute_dtype=config.bnb_4bit_compute_dtype,
        quant_type=config.bnb_4bit_quant_type,
        compress_statistics=config.bnb_4bit_use_double_quant,
    ).to("cpu")
    state = layer.weight.quant_state
    block, outer = state.blocksize, state.state2.blocksize
    assert (block, outer) == (
        figures["block"],
        figures["outer"],
    ) and layer.weight.nbytes * 2 == 256 * 256
    assert rounds_to(4 + 8 * state.absmax.itemsize / block + 32 / (block * outer), figures["bits"])
    default = transformers.BitsAndBytesConfig(load_in_4bit=True)
    assert (default.bnb_4bit_quant_type, default.bnb_4bit_use_double_quant) == ("fp4", False)
    figures.settle(
        nf4=state.quant_type == "nf4",
        doubly=state.nested,
        computes=layer.compute_dtype == torch.bfloat16,
    )


@cache
def four_bit_bytes(rest: torch.dtype) -> int:
    """Llama-2-7B with the matrices of its blocks in NF4 and all else in ``rest``, against memkit's states."""
    # Touvron et al. 2023: layers, hidden size, MLP
    in_blocks = 32 * (4 * 4096 * 4096 + 3 * 4096 * 11008)
    by_hand = in_blocks * (4 + 8 / 64 + 32 / (64 * 256)) / 8 + rest.itemsize * (
        parameters_of(LLAMA_2_7B) - in_blocks
    )
    precision = PURE_BF16 if rest == torch.bfloat16 else AUTOCAST_BF16
    adapters = torch.float32.itemsize * count_adapter_parameters(LLAMA_2_7B, QLORA)
    ours = (
        job_state_bytes(Job(model=LLAMA_2_7B, precision=precision, adapter=QLORA))["weights"]
        - adapters
    )
    assert ours == pytest.approx(by_hand, rel=1e-4)
    return ours


def test_C362(figures):
    loaded, prepared = (four_bit_bytes(rest) / BILLION for rest in (torch.bfloat16, torch.float32))
    assert (
        rounds_to(loaded, figures["loaded_gb"])
        and f"{prepared:.2f}" == f"{figures['prepared_gb']:.2f}"
    )
    assert (
        figures["fp32_gb"] == torch.float32.itemsize * SEVEN
        and figures["printed_gb"] == SEVEN * 4 / 8
    )
    figures.settle(
        codes=figures["printed_gb"] == SEVEN * 4 / 8,
        loaded=rounds_to(loaded, figures["printed_gb"]),
    )


def test_C363(figures):
    saved = {}
    for name, wide in (("low", torch.bfloat16), ("high", torch.float32)):
        saved[name] = 100 * (
            1 - four_bit_bytes(torch.bfloat16) / (wide.itemsize * parameters_of(LLAMA_2_7B))
        )
        assert rounds_to(saved[name], figures[name])
        assert figures[f"printed_{name}"] == 100 * (1 - 4 / (8 * wide.itemsize))
    figures.settle(
        values=figures["printed_low"] == 100 * (1 - 4 / 16),
        model=all(rounds_to(value, figures[f"printed_{name}"]) for name, value in saved.items()),
    )


def test_C364(figures):
    trl, transformers = pytest.importorskip("trl"), pytest.importorskip("transformers")
    kinds = trl.SFTTrainer, trl.SFTConfig, transformers.TrainingArguments
    trainer, config, arguments = (set(inspect.signature(kind).parameters) for kind in kinds)
    printed = [figures[name] for name in ("tokenizer", "field", "length", "warmup")]
    assert printed == ["tokenizer", "dataset_text_field", "max_seq_length", "warmup_ratio"]
    assert {figures["field"], figures["new_length"]} <= config and figures["length"] not in config
    assert figures["processing"] in trainer and figures["new_warmup"] in arguments
    taken = [name in trainer for name in printed[:3]] + [figures["warmup"] in arguments]
    assert not any(taken)
    figures.settle(once=True, trainer=all(taken[:3]), arguments=taken[3])
