"""The step with adapters, in the backward, on the host: the formula against a trace of the real step, to the byte."""

import logging
from dataclasses import astuple, replace

import pytest

from memkit.formula.activations import block_ledger
from memkit.formula.estimate import estimate_memory
from memkit.program.optimizers import FROM_LIBRARIES
from memkit.program.transformer import training_build
from memkit.setup.models import TINY_GPT2, TINY_LLAMA
from memkit.setup.optimizers import OPTIMIZERS
from memkit.setup.recipes import AUTOCAST_BF16, AUTOCAST_FP16, FP32, PURE_BF16, OptimizerConfig
from memkit.setup.strategies import SAVE_PRODUCTS
from memkit.setup.training import TrainingSetup
from memkit.tracing.trace import trace_memory
from stepscope.setup.adapters import AdapterConfig

LLAMA = TrainingSetup(
    model=replace(TINY_LLAMA, num_layers=5, vocab_size=512), precision=PURE_BF16, seq_len=64, micro_batch_size=2
)
GPT = replace(LLAMA, model=replace(TINY_GPT2, num_layers=5, vocab_size=512))
PLAYED = [
    OptimizerConfig(record=name, implementation=implementation)
    for name, record in OPTIMIZERS.items()
    for implementation in record.estimated
    if name not in FROM_LIBRARIES
]
"""Every optimizer that plain torch runs, in each way for whose temporaries its record names a rule."""


def highest(timeline) -> dict:
    """Bytes by part at each instant; of an instant that comes twice in a step, the larger."""
    found = {}
    for instant in timeline.instants:
        key = instant.name, instant.step
        if key not in found or instant.total_bytes > found[key].total_bytes:
            found[key] = instant
    return {key: instant.parts for key, instant in found.items()}


def made_by_optimizer(timeline) -> list[int]:
    """Bytes of every tensor that the optimizer's second step makes, in their order."""
    return [e.num_bytes for e in timeline.events if (e.phase, e.step) == ("optimizer", 2) and e.num_bytes > 0]


def assert_same(setup: TrainingSetup) -> None:
    """All instants.

    On a card the optimizer also makes the same tensors in the same order, those that no peak shows among them.

    What oneDNN packs for a product in 16 bits depends on the processor: a peak of the CPU's is at least the formula's.
    """
    played, run = estimate_memory(setup), trace_memory(training_build(setup), device=setup.device)
    if setup.device == "cuda" and setup.optimizer.place == "after backward":
        assert made_by_optimizer(played) == made_by_optimizer(run)
        assert played.peak_bytes == run.peak_bytes
    formula, traced = highest(played), highest(run)
    is_packed = setup.device == "cpu" and setup.precision.compute_dtype != "float32"
    peaks = [key for key in formula if is_packed and key[0].endswith("peak")]
    for key in peaks:
        assert sum(formula.pop(key).values()) <= sum(traced[key].values())
    assert formula == {key: traced[key] for key in formula}


@pytest.mark.parametrize(
    "setup",
    [
        *(replace(GPT, precision=FP32, optimizer=config) for config in PLAYED),
        replace(LLAMA, optimizer=OptimizerConfig(record="Lion")),
        replace(LLAMA, precision=AUTOCAST_BF16, optimizer=OptimizerConfig(place="in backward")),
        replace(GPT, precision=FP32, optimizer=OptimizerConfig(place="in backward", implementation="for-loop")),
        replace(GPT, optimizer=OptimizerConfig(record="Lion", place="in backward", implementation="for-loop")),
        replace(LLAMA, optimizer=OptimizerConfig(record="SGD momentum", place="in backward")),
    ],
    ids=lambda s: f"{s.model.name}, {s.precision.name}, {', '.join(astuple(s.optimizer)[:3])}",
)
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_step_with_other_optimizers(setup, device):
    assert_same(replace(setup, device=device))


LORA = [
    replace(LLAMA, adapter=AdapterConfig(rank=4)),
    replace(LLAMA, adapter=AdapterConfig(rank=4, targets=("query", "value"), dropout=0.1, dtype="bfloat16")),
    replace(LLAMA, adapter=AdapterConfig(rank=4, targets=("up", "down")), attention="stored"),
    replace(LLAMA, adapter=AdapterConfig(rank=4, targets=("up", "down")), recomputation="selective"),
    replace(LLAMA, adapter=AdapterConfig(rank=4, targets=("gate",)), recomputation="full", precision=AUTOCAST_BF16),
    replace(LLAMA, adapter=AdapterConfig(rank=4), optimizer=OptimizerConfig(place="in backward"), grad_accum_steps=1),
    replace(
        GPT, adapter=AdapterConfig(rank=4, targets=("qkv",), dropout=0.1), precision=AUTOCAST_BF16, dropout=0.1,
        attention="stored",
    ),
    replace(GPT, adapter=AdapterConfig(rank=4, targets=("output", "down")), precision=FP32, grad_accum_steps=2),
    replace(GPT, adapter=AdapterConfig(rank=1, targets=("output",)), recomputation=SAVE_PRODUCTS, precision=FP32),
    replace(GPT, adapter=AdapterConfig(rank=1, targets=("down",)), seq_len=1, micro_batch_size=1, precision=FP32),
]


@pytest.mark.parametrize("setup", LORA, ids=lambda s: f"{s.model.name}, {s.adapter.targets[0]}, {s.precision.name}")
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_step_with_adapters(setup, device):
    assert_same(replace(setup, device=device))


IN_4_BITS = replace(LLAMA, seq_len=256, adapter=AdapterConfig(base="nf4"))
QLORA = [
    IN_4_BITS,
    replace(IN_4_BITS, recomputation=SAVE_PRODUCTS),  # no policy knows bitsandbytes' product
    replace(IN_4_BITS, precision=AUTOCAST_BF16),  # a product in float32, and all that comes out of it
    replace(IN_4_BITS, precision=AUTOCAST_FP16, attention="stored", recomputation="selective", dropout=0.1),
    replace(IN_4_BITS, precision=AUTOCAST_BF16, recomputation=SAVE_PRODUCTS),
    replace(GPT, seq_len=256, precision=AUTOCAST_BF16, adapter=AdapterConfig(base="nf4", targets=("qkv", "down"))),
]


@pytest.mark.parametrize("setup", QLORA, ids=lambda s: f"{s.model.name}, {s.precision.name}, {s.recomputation.name}")
def test_a_step_on_weights_in_4_bits(setup):
    """The map of scales that bitsandbytes keeps once in a process among them."""
    pytest.importorskip("bitsandbytes")
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    assert_same(setup)


def test_bitsandbytes_works_after_a_trace_of_it():
    """Its maps of codes are kept from call to call; one of a trace would have no values."""
    layers = pytest.importorskip("bitsandbytes.nn")
    trace_memory(training_build(replace(LLAMA, adapter=AdapterConfig(base="nf4"))))
    layer = layers.Linear4bit(256, 256, bias=False, quant_type="nf4").to("cpu")
    assert layer.weight.quant_state.nested and layer.weight.nbytes * 2 == 256 * 256


@pytest.mark.parametrize("targets", [("query", "key", "value", "output"), ("query", "value")])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_ledger_beside_adapters_is_what_one_more_block_keeps(dtype, targets):
    """The attention kernel keeps its output, even if the projection behind it is frozen or gets a cast of it."""
    lora = replace(LLAMA, adapter=AdapterConfig(dtype=dtype, targets=targets))

    def kept(num_layers: int) -> int:
        build = training_build(replace(lora, model=replace(LLAMA.model, num_layers=num_layers)))
        return trace_memory(build).for_step(2).at("forward").activations

    assert block_ledger(lora).held_bytes == kept(6) - kept(5)


def test_what_frees_gradients_refuses_accumulation():
    for place in ("in backward", "on the host, gradients too"):
        with pytest.raises(ValueError, match="frees each gradient at once"):
            replace(LLAMA, optimizer=OptimizerConfig(place=place), grad_accum_steps=2)
