"""The step with adapters, in the backward, on the host: the formula against a trace of the real step, to the byte."""

import gc
import logging
import weakref
from dataclasses import replace

import pytest
import same_steps
import torch

from memkit import recipes as kit
from memkit.formula.activations import block_ledger
from memkit.formula.estimate import estimate_memory
from memkit.models import TINY_GPT2, TINY_LLAMA
from memkit.recipes import AUTOCAST_BF16, AUTOCAST_FP16, FP32, PURE_BF16, OptimizerConfig
from memkit.strategies import SAVE_PRODUCTS
from stepscope.optimizers import OPTIMIZERS
from stepscope.program.job import job_build
from stepscope.setup import AdapterConfig, Job, Place
from stepscope.tracing.trace import trace_script

LLAMA = Job(
    model=replace(TINY_LLAMA, num_layers=5, vocab_size=512),
    precision=PURE_BF16,
    seq_len=64,
    micro_batch_size=2,
)
GPT = replace(LLAMA, model=replace(TINY_GPT2, num_layers=5, vocab_size=512))
LION = OPTIMIZERS["Lion"]
LIBRARIES = ("torch.", "stepscope.")
PLAYED = [
    OptimizerConfig(record=record, implementation=implementation)
    for name, record in OPTIMIZERS.items()
    for implementation in record.estimated
    if name not in kit.OPTIMIZERS and record.made_by.startswith(LIBRARIES)
]
"""Every optimizer of torch and ours that the kit lacks, in each way for whose temporaries its record names a rule."""


def assert_same(job: Job) -> None:
    played, run = estimate_memory(job), trace_script(job_build(job), device=job.device)
    same_steps.assert_same(job, played, run, steps_after_backward=job.place == Place.AFTER_BACKWARD)


@pytest.mark.parametrize(
    "setup",
    [
        *(replace(GPT, precision=FP32, optimizer=config) for config in PLAYED),
        replace(LLAMA, optimizer=OptimizerConfig(record=LION)),
        replace(LLAMA, precision=AUTOCAST_BF16, place=Place.IN_BACKWARD),
        replace(
            GPT,
            precision=FP32,
            place=Place.IN_BACKWARD,
            optimizer=OptimizerConfig(implementation="for-loop"),
        ),
        replace(
            GPT,
            place=Place.IN_BACKWARD,
            optimizer=OptimizerConfig(record=LION, implementation="for-loop"),
        ),
        replace(LLAMA, place=Place.IN_BACKWARD, optimizer=OptimizerConfig(record="SGD momentum")),
    ],
    ids=lambda s: (
        f"{s.model.name}, {s.precision.name}, {s.optimizer.name}, {s.optimizer.implementation}, {s.place}"
    ),
)
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_step_with_other_optimizers(setup, device):
    assert_same(replace(setup, device=device))


LORA = [
    replace(LLAMA, adapter=AdapterConfig(rank=4)),
    replace(
        LLAMA,
        adapter=AdapterConfig(rank=4, targets=("query", "value"), dropout=0.1, dtype="bfloat16"),
    ),
    replace(LLAMA, adapter=AdapterConfig(rank=4, targets=("up", "down")), attention="stored"),
    replace(
        LLAMA, adapter=AdapterConfig(rank=4, targets=("up", "down")), recomputation="selective"
    ),
    replace(
        LLAMA,
        adapter=AdapterConfig(rank=4, targets=("gate",)),
        recomputation="full",
        precision=AUTOCAST_BF16,
    ),
    replace(LLAMA, adapter=AdapterConfig(rank=4), place=Place.IN_BACKWARD, grad_accum_steps=1),
    replace(
        GPT,
        adapter=AdapterConfig(rank=4, targets=("qkv",), dropout=0.1),
        precision=AUTOCAST_BF16,
        dropout=0.1,
        attention="stored",
    ),
    replace(
        GPT,
        adapter=AdapterConfig(rank=4, targets=("output", "down")),
        precision=FP32,
        grad_accum_steps=2,
    ),
    replace(
        GPT,
        adapter=AdapterConfig(rank=1, targets=("output",)),
        recomputation=SAVE_PRODUCTS,
        precision=FP32,
    ),
    replace(
        GPT,
        adapter=AdapterConfig(rank=1, targets=("down",)),
        seq_len=1,
        micro_batch_size=1,
        precision=FP32,
    ),
]


@pytest.mark.parametrize(
    "setup", LORA, ids=lambda s: f"{s.model.name}, {s.adapter.targets[0]}, {s.precision.name}"
)
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_step_with_adapters(setup, device):
    assert_same(replace(setup, device=device))


IN_4_BITS = replace(LLAMA, seq_len=256, adapter=AdapterConfig(base="nf4"))
QLORA = [
    IN_4_BITS,
    replace(IN_4_BITS, recomputation=SAVE_PRODUCTS),  # no policy knows bitsandbytes' product
    # a product in float32, and all that comes out of it
    replace(IN_4_BITS, precision=AUTOCAST_BF16),
    replace(
        IN_4_BITS,
        precision=AUTOCAST_FP16,
        attention="stored",
        recomputation="selective",
        dropout=0.1,
    ),
    replace(IN_4_BITS, precision=AUTOCAST_BF16, recomputation=SAVE_PRODUCTS),
    replace(
        GPT,
        seq_len=256,
        precision=AUTOCAST_BF16,
        adapter=AdapterConfig(base="nf4", targets=("qkv", "down")),
    ),
]


@pytest.mark.parametrize(
    "setup", QLORA, ids=lambda s: f"{s.model.name}, {s.precision.name}, {s.recomputation.name}"
)
def test_a_step_on_weights_in_4_bits(setup):
    """The map of scales that bitsandbytes keeps once in a process among them."""
    pytest.importorskip("bitsandbytes")
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    assert_same(setup)


def test_bitsandbytes_works_after_a_trace_of_it():
    """Its maps of codes are kept from call to call; one of a trace would have no values."""
    layers = pytest.importorskip("bitsandbytes.nn")
    trace_script(job_build(replace(LLAMA, adapter=AdapterConfig(base="nf4"))))
    layer = layers.Linear4bit(256, 256, bias=False, quant_type="nf4").to("cpu")
    assert layer.weight.quant_state.nested and layer.weight.nbytes * 2 == 256 * 256


@pytest.mark.parametrize("targets", [("query", "key", "value", "output"), ("query", "value")])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_ledger_beside_adapters_is_what_one_more_block_keeps(dtype, targets):
    """The attention kernel keeps its output, even if the projection behind it is frozen or gets a cast of it."""
    lora = replace(LLAMA, adapter=AdapterConfig(dtype=dtype, targets=targets))

    def kept(num_layers: int) -> int:
        build = job_build(replace(lora, model=replace(LLAMA.model, num_layers=num_layers)))
        return trace_script(build).for_step(2).at("forward").activations

    assert block_ledger(lora).held_bytes == kept(6) - kept(5)


def test_what_frees_gradients_refuses_accumulation():
    for place in ("in backward", "on the host, gradients too"):
        with pytest.raises(ValueError, match="frees each gradient at once"):
            replace(LLAMA, place=place, grad_accum_steps=2)


def test_a_model_whose_step_is_in_the_backward_can_be_freed(monkeypatch):
    """A hook that holds its parameter keeps it for ever: Python's collector does not see torch's list of hooks."""
    kept = []
    register = torch.Tensor.register_post_accumulate_grad_hook

    def registered(parameter, hook):
        kept.append(weakref.ref(parameter))
        return register(parameter, hook)

    monkeypatch.setattr(torch.Tensor, "register_post_accumulate_grad_hook", registered)
    job = Job(model=TINY_LLAMA, seq_len=16, device="cpu", place="in backward")
    step = job_build(job)()
    step()
    assert kept and all(parameter() is not None for parameter in kept)
    del step
    gc.collect()
    assert not [parameter for parameter in kept if parameter() is not None]
