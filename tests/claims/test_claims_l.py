"""C343 to C347 of the ledger: inference beside training."""

from dataclasses import replace
from functools import cache

import torch

from memkit.book.claims import claim, rounds_to
from memkit.formula.activations import activation_bytes
from memkit.formula.inference import inference_bytes, kv_cache_bytes, kv_cache_bytes_per_token
from memkit.formula.states import bytes_per_parameter
from memkit.hardware.cards import CARDS
from memkit.setup.models import LLAMA_2_7B, LLAMA_3_8B
from memkit.setup.recipes import ADAMW, AUTOCAST_BF16, BF16_MASTER, PURE_BF16
from memkit.setup.training import TrainingSetup
from memkit.units import GIB, KIB

BILLION = 10**9
SEVEN = 7
TWO_BYTES = 2
"""Of a 16-bit value."""


@cache
def cache_bytes(model, tokens: int) -> int:
    """Keys and values, layers, heads, values per head, 16 bits: the product written out, against memkit's."""
    per_token = 2 * model.num_layers * model.num_kv_heads * model.head_dim * TWO_BYTES
    assert per_token == kv_cache_bytes_per_token(model)
    assert per_token * tokens == kv_cache_bytes(model, batch_size=1, seq_len=tokens)
    return per_token * tokens


def test_C343(figures):
    assert figures["bytes_per_param"] == bytes_per_parameter(PURE_BF16, ADAMW)["weight"]
    assert figures["printed_gb"] == TWO_BYTES * SEVEN
    weights = inference_bytes(LLAMA_2_7B, batch_size=1, seq_len=1)["weights"]
    assert rounds_to(weights / BILLION, figures["exact_gb"])
    figures.settle(seven_billion=figures["printed_gb"] == torch.float16.itemsize * SEVEN)


def test_C344(figures):
    tokens = 1024
    assert figures["tokens"] == tokens
    assert figures["kib_per_token"] * KIB == cache_bytes(LLAMA_2_7B, 1)
    assert rounds_to(cache_bytes(LLAMA_2_7B, tokens) / BILLION, figures["gb"])
    assert LLAMA_3_8B.num_kv_heads == 8
    assert rounds_to(cache_bytes(LLAMA_3_8B, tokens) / BILLION, figures["grouped_gb"])
    for end in ("low", "high"):
        assert cache_bytes(LLAMA_2_7B, figures[f"{end}_tokens"]) == figures[f"printed_{end}"] * GIB
    figures.settle(
        llama_2=figures["printed_low"] <= figures["gb"] <= figures["printed_high"],
        llama_3=figures["printed_low"] <= figures["grouped_gb"] <= figures["printed_high"],
    )


def test_C345(figures):
    card, tokens = CARDS["A100 SXM 40 GB"], 1024
    assert figures["tokens"] == tokens
    weights = TWO_BYTES * SEVEN * BILLION
    kept = weights + cache_bytes(LLAMA_2_7B, tokens)
    assert rounds_to(kept / BILLION, figures["kept_gb"])
    assert rounds_to(figures["printed_gb"] - kept / BILLION, figures["rest_gb"])
    assert figures["label_gb"] == card.label_gb
    assert rounds_to(card.memory_bytes / BILLION, figures["card_gb"])
    fit_tokens = (card.memory_bytes - weights) / cache_bytes(LLAMA_2_7B, 1)
    assert rounds_to(fit_tokens / 1000, figures["fit_thousands"])
    figures.settle(
        short=kept <= figures["printed_gb"] * BILLION,
        long=weights + cache_bytes(LLAMA_2_7B, 32_768) <= figures["printed_gb"] * BILLION,
    )


@cache
def llama_activations_gb(precision, attention) -> float:
    setup = TrainingSetup(model=LLAMA_2_7B, precision=precision, micro_batch_size=4, attention=attention)
    return activation_bytes(replace(setup, seq_len=1024)) / BILLION


def test_C346(figures):
    names = {
        "bf16_gb": (PURE_BF16, "stored"),
        "autocast_gb": (AUTOCAST_BF16, "stored"),
        "flash_gb": (PURE_BF16, "flash"),
        "flash_autocast_gb": (AUTOCAST_BF16, "flash"),
    }
    for name, recipe in names.items():
        assert rounds_to(llama_activations_gb(*recipe), figures[name])
    assert figures["printed_low"] == round(llama_activations_gb(PURE_BF16, "stored"), -1)
    assert figures["printed_high"] == round(llama_activations_gb(AUTOCAST_BF16, "stored"), -1)
    # Korthikanti et al. 2022, equation 2: sbh (34 + 5as/h) bytes a layer
    b, s, h, a = 4, 1024, LLAMA_2_7B.hidden_size, LLAMA_2_7B.num_heads
    assert (figures["batch"], figures["tokens"]) == (b, s)
    formula = LLAMA_2_7B.num_layers * s * b * h * (34 + 5 * a * s / h)
    assert rounds_to(formula / BILLION, figures["formula_gb"])
    figures.settle(
        stored=figures["printed_low"] <= round(figures["bf16_gb"], -1) <= figures["printed_high"],
        flash=figures["printed_low"] <= round(figures["flash_gb"], -1) <= figures["printed_high"],
    )


def test_C347(figures):
    training = claim("C035").figures
    assert (figures["training_low"], figures["training_high"]) == (training["low"], training["high"])
    assert figures["printed_training"] == training["printed_high"]
    assert figures["printed_inference"] == TWO_BYTES * SEVEN
    states = sum(bytes_per_parameter(BF16_MASTER, ADAMW).values()) * SEVEN
    assert training["low"] - training["few"] == training["high"] - training["many"] == states
    inference = (TWO_BYTES * SEVEN * BILLION + cache_bytes(LLAMA_2_7B, 1024)) / BILLION
    assert rounds_to(inference, figures["inference_gb"])
    assert rounds_to(training["low"] / inference, figures["low_times"])
    assert rounds_to(training["high"] / inference, figures["high_times"])
    assert rounds_to(figures["printed_training"] / figures["printed_inference"], figures["printed_times"])
    figures.settle(
        training=figures["training_low"] <= figures["printed_training"] <= figures["training_high"],
    )
