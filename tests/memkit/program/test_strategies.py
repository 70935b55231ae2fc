"""Every strategy on the real model: bytes against autograd's hooks and the profiler, FLOPs against torch's counter."""

from dataclasses import replace

import pytest
import torch
from flops_counted import flops_counted_in

from memkit.formula.activations import activation_bytes
from memkit.formula.estimate import estimate_memory
from memkit.measure import NUMBER, measure_memory, saved_bytes
from memkit.models import gpt2_config, llama_config
from memkit.program.hooks import tensors_in
from memkit.program.transformer import Transformer, random_batches, strategy_build
from memkit.recipes import AUTOCAST_BF16, PURE_BF16
from memkit.recomputation import blocks_ledger, step_flops
from memkit.setup import TrainingSetup
from memkit.strategies import (
    CORE,
    FULL,
    FULL_NO_STOP,
    FULL_REENTRANT,
    HOST,
    NONE,
    SAVE_ATTENTION,
    SAVE_EVERY_SECOND,
    SAVE_PRODUCTS,
    all_strategies,
    every,
    policy,
    sequential,
)
from memkit.tracing.trace import trace_memory

GPT2 = replace(gpt2_config("small GPT-2", 5, 64, 4), vocab_size=160)
LLAMA = llama_config("small Llama", 4, 64, 4, 2, 160, 192, 256)
RECIPES = {
    "gpt2 stored": TrainingSetup(
        model=GPT2, attention="stored", micro_batch_size=2, seq_len=48, device="cpu"
    ),
    "gpt2 bf16": TrainingSetup(
        model=GPT2, precision=PURE_BF16, micro_batch_size=3, seq_len=32, device="cpu"
    ),
    "gpt2 dropout": TrainingSetup(
        model=GPT2, attention="stored", dropout=0.1, micro_batch_size=2, seq_len=40, device="cpu"
    ),
    "llama": TrainingSetup(
        model=LLAMA, precision=PURE_BF16, micro_batch_size=2, seq_len=64, device="cpu"
    ),
    "llama autocast": TrainingSetup(
        model=LLAMA,
        precision=AUTOCAST_BF16,
        attention="stored",
        micro_batch_size=1,
        seq_len=64,
        device="cpu",
    ),
}
OWN_LIST = policy("own list", "addmm", "gelu")
CASES = [
    ("gpt2 stored", NONE),
    ("gpt2 stored", CORE),
    ("gpt2 stored", FULL),
    ("gpt2 stored", OWN_LIST),
    ("gpt2 bf16", SAVE_ATTENTION),
    ("gpt2 bf16", policy("mm alone", "mm")),
    ("gpt2 bf16", sequential(2)),
    ("gpt2 dropout", FULL),
    ("gpt2 dropout", FULL_REENTRANT),
    ("gpt2 dropout", SAVE_EVERY_SECOND),
    ("llama", SAVE_PRODUCTS),
    ("llama", SAVE_EVERY_SECOND),
    ("llama", every(3)),
    ("llama", FULL_NO_STOP),
    ("llama autocast", CORE),
    ("llama autocast", policy("silu", "silu", "bmm")),
]
each_case = pytest.mark.parametrize(
    "recipe, strategy", CASES, ids=lambda value: getattr(value, "name", value)
)


def live_bytes(measured) -> int:
    """Activations of the measurement when the forward ends, without the numbers that Python hands to operations."""
    start = next(index for index, event in enumerate(measured.events) if event.phase == "backward")
    before = measured.events[:start]  # a free has the part and the operation of its birth
    return sum(e.num_bytes for e in before if e.part == "activations" and e.op != NUMBER)


@each_case
def test_stored_bytes_are_the_formulas_the_traces_and_the_machines(recipe, strategy):
    setup = RECIPES[recipe]
    build = strategy_build(setup, strategy)
    formula = activation_bytes(setup.under(strategy))
    traced, measured = (way(build, device="cpu", steps=2) for way in (trace_memory, measure_memory))
    assert traced.at("forward", step=1).activations == formula
    assert live_bytes(measured) == formula
    assert abs(traced.peak_bytes / measured.peak_bytes - 1) <= 0.001
    for name in ("forward", "backward", "zero_grad"):
        pair = [timeline.at(name).total_bytes for timeline in (traced, measured)]
        assert abs(pair[0] / pair[1] - 1) <= 0.001


@pytest.mark.parametrize("recipe, strategy", [case for case in CASES if "autocast" not in case[0]])
def test_autograds_hooks_see_the_blocks_ledger(recipe, strategy):
    """The hooks see what autograd saves. A policy's cache and the states of random numbers are kept beside it."""
    setup = RECIPES[recipe]
    model = Transformer(setup.under(strategy))
    inputs, _ = random_batches(setup.model, setup)()
    x = model.token_embedding(inputs).detach().requires_grad_()
    shared = model.shared_tensors(inputs)

    def run():
        y = x
        for stage in model.stages():
            y = stage(y, shared)

    seen = saved_bytes(run, [*model.parameters(), *tensors_in(shared)])
    lines = blocks_ledger(setup, strategy).lines
    assert seen == sum(
        line.num_bytes for line in lines if line.section != "policy" and line.dtype != "uint8"
    )


@pytest.mark.parametrize("recipe", ["gpt2 stored", "gpt2 bf16", "gpt2 dropout", "llama"])
@pytest.mark.parametrize(
    "strategy", [*all_strategies(5), OWN_LIST], ids=lambda strategy: strategy.name
)
def test_flops_are_what_torch_counts(recipe, strategy):
    setup = replace(RECIPES[recipe], device="cuda")
    formula, counted = (
        step_flops(setup, strategy),
        flops_counted_in(strategy_build(setup, strategy)),
    )
    assert (counted.forward, counted.in_kernel) == (formula.forward, formula.in_kernel)
    assert counted.total == formula.total


@pytest.mark.parametrize("recipe", RECIPES)
def test_gradients_are_equal_to_the_bit(recipe):
    setup = RECIPES[recipe]
    batch = random_batches(setup.model, setup)()
    gradients = {}
    for strategy in (*all_strategies(setup.model.num_layers), OWN_LIST):
        torch.manual_seed(0)
        model = Transformer(setup.under(strategy))
        with torch.autocast("cpu", torch.bfloat16, enabled=setup.precision.uses_autocast):
            loss = model(*batch)
        loss.backward()
        gradients[strategy.name] = [parameter.grad for parameter in model.parameters()]
    plain = gradients.pop("none")
    assert any(gradient.any() for gradient in plain)
    for name, others in gradients.items():
        assert all(torch.equal(a, b) for a, b in zip(plain, others, strict=True)), name


def test_offload_moves_the_blocks_to_the_host():
    setup = replace(RECIPES["gpt2 bf16"], device="cuda")
    traced = trace_memory(strategy_build(setup, HOST), steps=1)
    assert traced.at("forward").activations == activation_bytes(setup.under(HOST))
    plain = trace_memory(strategy_build(setup, NONE), steps=1)
    moved = plain.at("forward").activations - traced.at("forward").activations
    assert moved == blocks_ledger(setup, NONE).held_bytes


@pytest.mark.parametrize("strategy", [FULL_REENTRANT, HOST], ids=lambda strategy: strategy.name)
def test_what_has_no_formula_says_so(strategy):
    with pytest.raises(ValueError, match="trace it"):
        estimate_memory(RECIPES["llama"].under(strategy))


def test_a_setup_that_recomputes_already_is_refused():
    with pytest.raises(ValueError, match="recomputation='full'"):
        strategy_build(replace(RECIPES["llama"], recomputation="full"), NONE)
