"""The formula's timeline against the trace of the real PyTorch step, instant by instant and part by part.

Parts and peaks agree to the byte, on CUDA's rules and, but for what oneDNN takes, on the CPU's.
``dev/judge_estimate.py`` holds thousands of random setups to the same, with experts and Adafactor too.
"""

import random
import warnings
from dataclasses import replace

import pytest
from random_setups import random_setup

from memkit.formula import estimate, estimate_memory
from memkit.formula.activations import activation_bytes
from memkit.formula.run import run_of
from memkit.models import NORMS, TINY_GPT2, TINY_LLAMA
from memkit.program.transformer import training_build
from memkit.recipes import BF16_MASTER, BF16_TWO_GRADIENTS, FP32, KAHAN_BF16, MEGATRON, PURE_BF16
from memkit.setup import TrainingSetup
from memkit.strategies import CORE, SAVE_PRODUCTS, every, groups
from memkit.tracing.trace import trace_memory

# A small vocabulary, so that the peaks lie in the blocks and not in the loss.
GPT2 = replace(TINY_GPT2, num_layers=3, vocab_size=300)
LLAMA = replace(TINY_LLAMA, num_layers=5, vocab_size=300)
ODD_HEADS = replace(
    LLAMA, num_layers=1, num_heads=3, num_kv_heads=3, head_dim=36, has_mlp_bias=True
)


def setup(**choices):
    return TrainingSetup(
        **{"model": LLAMA, "micro_batch_size": 2, "seq_len": 96, "precision": FP32, **choices}
    )


def traced(setup):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return trace_memory(training_build(setup), device=setup.device)


def check(setup, has_ledger=True):
    formula, trace = estimate_memory(setup), traced(setup)
    extra = ("init peak", "zero_grad peak")  # the trace shows them where they stand out
    assert [i.name for i in formula.instants] == [
        i.name for i in trace.instants if i.name not in extra
    ]
    for ours in formula.instants:
        micro_batch = ours.micro_batch if ours.name.startswith(("forward", "backward")) else None
        theirs = trace.at(ours.name, ours.step, micro_batch)
        assert ours.parts == theirs.parts, (ours, setup)
    first = trace.at("forward", 1, 1)  # what the ledgers list, tensor by tensor
    if setup.device == "cuda" and has_ledger:
        assert activation_bytes(setup) == first.activations


@pytest.mark.parametrize("setup", [TINY_GPT2, "GPT-2 small", None])
def test_what_is_no_setup_is_refused_by_name(setup):
    with pytest.raises(ValueError, match=r"setup=.* is no TrainingSetup\(model=...\)"):
        estimate_memory(setup)


def on_cpu(chosen):
    """A CPU's flash kernel has no dropout, and the efficient one is CUDA's."""
    attention = chosen.attention.replace("efficient", "flash")
    return replace(
        chosen,
        device="cpu",
        attention=attention,
        dropout=chosen.dropout if attention == "stored" else 0.0,
    )


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize(
    "numbers", [(*range(12), 142), pytest.param(range(12, 400), marks=pytest.mark.exhaustive)]
)
def test_every_instant_of_a_random_setup_is_the_traces(numbers, device):
    num_setups = 0
    for number in numbers:
        try:
            chosen = random_setup(random.Random(f"987523115 {number}"))
        except ValueError:
            continue  # heads that no kernel takes, or an optimizer that is not the kit's
        check(on_cpu(chosen) if device == "cpu" else chosen)
        num_setups += 1
    assert num_setups >= len(numbers) / 3


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("norm", NORMS)
def test_every_norm_is_estimated_as_it_is_traced(norm, device):
    check(setup(model=replace(LLAMA, norm=norm), device=device))


def test_a_name_that_lives_until_its_function_returns():
    """This forward was once estimated below the trace."""
    choices = {
        "attention": "stored",
        "recomputation": "selective",
        "uses_fused_norm": False,
        "dropout": 0.1,
    }
    model = replace(LLAMA, num_kv_heads=1)
    check(setup(model=model, precision=PURE_BF16, micro_batch_size=4, seq_len=7, **choices))


def test_heads_that_flash_pads_are_left_to_the_trace():
    chosen = setup(model=ODD_HEADS, precision=PURE_BF16, attention="flash")
    with pytest.raises(ValueError, match="head_dim=36 has no formula; trace it"):
        estimate_memory(chosen)
    assert traced(chosen).peak_bytes > 0
    assert estimate_memory(replace(chosen, attention="stored")).peak_bytes > 0


@pytest.mark.parametrize(
    "strategy", (CORE, every(3), groups(2), SAVE_PRODUCTS), ids=lambda strategy: strategy.name
)
def test_layers_that_are_repeated_are_layers_that_are_written_out(strategy):
    chosen = setup(model=replace(LLAMA, num_layers=11), recomputation=strategy, precision=PURE_BF16)
    whole = tuple(estimate.instants_of(estimate.phases(chosen, 2, run_of(chosen), is_whole=True)))
    assert whole == estimate_memory(chosen).instants


@pytest.mark.parametrize(
    "precision, gradients",
    [(BF16_MASTER, 2), (MEGATRON, 4), (BF16_TWO_GRADIENTS, 2 + 4)],
    ids=lambda x: str(x)[:40],
)
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_recipe_that_torch_lacks_has_a_formula(precision, gradients, micro_batches):
    """Bytes per parameter: a master copy of 4 from the start, two moments of 4 each from the first step on."""
    timeline = estimate_memory(setup(precision=precision, grad_accum_steps=micro_batches))
    per_parameter = timeline.at("init").weights / 2
    assert timeline.at("init").optimizer_states == 4 * per_parameter
    assert timeline.at("optimizer", 1).optimizer_states == (4 + 4 + 4) * per_parameter
    assert timeline.at("backward", 1).gradients == gradients * per_parameter


@pytest.mark.parametrize(
    "precision", [BF16_MASTER, MEGATRON, BF16_TWO_GRADIENTS, KAHAN_BF16], ids=lambda p: p.name
)
def test_a_recipe_whose_program_here_takes_more_is_printed_as_at_least(precision):
    chosen = setup(model=replace(LLAMA, num_layers=1), precision=precision, seq_len=8)
    estimate, trace = estimate_memory(chosen), traced(chosen)
    assert estimate.peak_bytes < trace.peak_bytes
    assert "peak at least" in str(estimate) and "left out: the float32" in str(estimate)
    whole = estimate_memory(replace(chosen, precision=PURE_BF16))
    assert "at least" not in str(whole)
