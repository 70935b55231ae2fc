"""Proofs of group F, activation recomputation: what PyTorch's checkpoint does, run on the CPU."""

import inspect
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from math import isqrt

import pytest
import torch
from block_products import block_products
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils import checkpoint as torch_checkpoint
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from torch.utils.flop_counter import FlopCounterMode

from book.claims import rounds_to
from memkit.measure import saved_bytes, saved_tensors
from memkit.models import LLAMA_2_7B, TINY_GPT2
from memkit.program.transformer import Block, Transformer
from memkit.recipes import PURE_BF16
from memkit.setup import TrainingSetup
from stepscope.tracing.trace import trace_script

BATCH, TOKENS = 2, 64
VALUES = 2**20  # of one hidden state: beside it the states of random numbers are nothing
GPT2 = TrainingSetup(
    model=TINY_GPT2,
    micro_batch_size=BATCH,
    seq_len=TOKENS,
    attention="flash",
    dropout=0,
    device="cpu",
)
# Llama-2-7B's proportions, so that shares of FLOPs are its own
LLAMA = replace(
    GPT2,
    model=replace(
        LLAMA_2_7B,
        num_layers=1,
        hidden_size=128,
        num_heads=4,
        num_kv_heads=4,
        head_dim=32,
        intermediate_size=344,
    ),
)
NON_REENTRANT, REENTRANT = {"use_reentrant": False}, {"use_reentrant": True}
WITHOUT_STOP = {"use_reentrant": False, "early_stop": False}


@cache
def block_of(setup: TrainingSetup) -> tuple[Block, Tensor, dict]:
    """A real block, its input and the tables that blocks share."""
    torch.manual_seed(0)
    x = torch.randn(BATCH, TOKENS, setup.model.hidden_size, requires_grad=True)
    shared = Transformer(setup).shared_tensors(torch.zeros(BATCH, TOKENS, dtype=torch.long))
    return Block(setup), x, shared


def flops(run: Callable[[], Tensor]) -> tuple[int, int]:
    """FLOPs of the forward and of the backward by torch's counter; a CPU's fused attention it does not count."""
    with FlopCounterMode(display=False) as counter:
        y = run()
        forward = counter.get_total_flops()
        y.sum().backward()
        return forward, counter.get_total_flops() - forward


@cache
def block_flops(setup: TrainingSetup, **how: bool) -> tuple[int, int]:
    block, x, shared = block_of(setup)
    return flops(lambda: checkpoint(block, x, shared, **how) if how else block(x, shared))


def again_percent(setup: TrainingSetup, **how: bool) -> float:
    """What a checkpointed block runs again, of its forward."""
    forward, backward = block_flops(setup)
    return 100 * (block_flops(setup, **how)[1] - backward) / forward


def extra_percent(setup: TrainingSetup, **how: bool) -> float:
    """What a checkpointed block costs more, forward and backward together."""
    return 100 * (sum(block_flops(setup, **how)) / sum(block_flops(setup)) - 1)


def saved_by_block(**how: bool) -> list[Tensor]:
    """What autograd saves of a block, beside parameters."""
    block, x, shared = block_of(GPT2)
    run = (lambda: checkpoint(block, x, shared, **how)) if how else (lambda: block(x, shared))
    return saved_tensors(run, block.parameters())


def bytes_of(saved: list[Tensor]) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in saved)


class Layers:
    """Layers without parameters, each of which keeps one tensor, its output, and counts its runs."""

    def __init__(self, number: int):
        self.runs: Counter[int] = Counter()
        self.functions = [partial(self.run, layer) for layer in range(number)]

    def run(self, layer: int, x: Tensor) -> Tensor:
        self.runs[layer] += 1
        return torch.tanh(x)


def in_turn(functions: tuple[Callable, ...], x: Tensor) -> Tensor:
    for function in functions:
        x = function(x)
    return x


def in_segments(functions: list[Callable], size: int, x: Tensor) -> Tensor:
    """Each ``size`` functions in one checkpoint."""
    for start in range(0, len(functions), size):
        x = checkpoint(in_turn, tuple(functions[start : start + size]), x, use_reentrant=False)
    return x


@cache
def gradients(wraps: bool) -> tuple[list[Tensor], int]:
    """Gradients of a small residual block with dropout, and how often its forward ran."""
    torch.manual_seed(0)
    block = nn.Sequential(
        nn.LayerNorm(8), nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8), nn.Dropout(0.5)
    )
    runs: list[Tensor] = []

    def forward(x: Tensor) -> Tensor:
        runs.append(x)
        return x + block(x)

    x = torch.randn(4, 8)
    y = checkpoint(forward, x, use_reentrant=False) if wraps else forward(x)
    y.square().sum().backward()
    return [parameter.grad for parameter in block.parameters()], len(runs)


def check_gradients_are_equal() -> None:
    plain, wrapped = gradients(False)[0], gradients(True)[0]
    assert any(gradient.any() for gradient in plain)
    assert all(torch.equal(one, other) for one, other in zip(plain, wrapped, strict=True))


def test_C179(figures):
    assert (figures["batch"], figures["tokens"]) == (BATCH, TOKENS)
    assert figures["plain_bytes"] == bytes_of(saved_by_block())
    assert (
        figures["kept_bytes"]
        == bytes_of(saved_by_block(**NON_REENTRANT))
        == block_of(GPT2)[1].nbytes
    )
    assert figures["runs"] == gradients(True)[1]
    check_gradients_are_equal()
    figures.settle(
        most_are_dropped=figures["kept_bytes"] < figures["plain_bytes"] / 2,
        built_again=gradients(True)[1] == 2 * gradients(False)[1],
    )


@cache
def saved_by_blocks() -> tuple[list[Tensor], TrainingSetup]:
    """What autograd saves of all blocks of a tiny GPT-2 in bfloat16, each block in a checkpoint."""
    setup = replace(GPT2, precision=PURE_BF16)
    model = Transformer(setup)
    x = torch.randn(
        BATCH, TOKENS, setup.model.hidden_size, dtype=torch.bfloat16, requires_grad=True
    )
    run = partial(
        in_segments, [partial(block, shared={"mask": None}) for block in model.blocks], 1, x
    )
    return saved_tensors(run, model.parameters()), setup


def test_C191(figures):
    assert inspect.signature(checkpoint).parameters["use_reentrant"].default is None
    recommended = (
        "It is recommended that you use\n    ``use_reentrant=False``" in checkpoint.__doc__
    )
    figures.settle(
        newer="stops recomputation as soon as" in checkpoint.__doc__, preferred=recommended
    )


def test_C192(figures):
    block, x, shared = block_of(GPT2)
    own = list(block.parameters())
    with torch.no_grad():
        assert figures["no_grad"] == saved_bytes(lambda: block(x, shared), own)
        assert figures["no_grad"] == saved_bytes(
            lambda: checkpoint(block, x, shared, **NON_REENTRANT), own
        )
    block.eval()
    assert figures["eval"] == saved_bytes(lambda: block(x, shared), own)
    block.train()
    # without dropout no difference
    assert figures["eval"] == saved_bytes(lambda: block(x, shared), own)
    figures.settle(
        # in training it saves
        no_grad=saved_bytes(lambda: block(x, shared), own) > figures["no_grad"],
        eval_mode=figures["eval"] == figures["no_grad"],
    )


def test_C194(figures):
    sizes = {
        product.name: product.flops for product in block_products(GPT2) if product.kind == "addmm"
    }
    unit = 2 * GPT2.tokens_per_micro_batch * GPT2.model.hidden_size**2
    mlp = sizes["up"] + sizes["down"]
    assert figures["all"] == 2 * sum(sizes.values()) / unit
    assert figures["mlp"] == 2 * mlp / unit
    assert sum(sizes.values()) == block_flops(GPT2)[0]
    assert rounds_to(100 * mlp / sum(sizes.values()), figures["percent"])
    block, x, shared = block_of(GPT2)
    attention = lambda x: block.attention(block.norm_1(x), shared)
    plain = flops(lambda: attention(x))[1]
    again = flops(lambda: checkpoint(attention, x, use_reentrant=False))[1] - plain
    assert figures["attention_again"] == 2 * again / unit
    assert rounds_to(
        figures["all"] * again_percent(GPT2, **NON_REENTRANT) / 100, figures["block_again"]
    )
    figures.settle(most=figures["attention_again"] < figures["block_again"] / 2)


def test_C196(figures):
    assert figures["runs"] == gradients(True)[1]
    assert rounds_to(extra_percent(GPT2, **WITHOUT_STOP), figures["most_percent"])
    assert rounds_to(extra_percent(GPT2, **NON_REENTRANT), figures["gpt2_percent"])
    assert rounds_to(extra_percent(LLAMA, **NON_REENTRANT), figures["llama_percent"])
    low = 10 * int(extra_percent(GPT2, **WITHOUT_STOP) // 10)  # the decade that is printed
    assert (figures["low"], figures["high"]) == (low, low + 10)
    more = {
        "without_stop": (GPT2, WITHOUT_STOP),
        "gpt2": (GPT2, NON_REENTRANT),
        "llama": (LLAMA, NON_REENTRANT),
    }
    figures.settle(
        **{
            name: low <= extra_percent(setup, **how) <= low + 10
            for name, (setup, how) in more.items()
        }
    )


def test_C198(figures):
    assert figures["runs"] == gradients(True)[1]
    check_gradients_are_equal()
    layer, x = nn.Linear(4, 4), torch.randn(2, 4, requires_grad=True)
    plain, wrapped = layer(x), checkpoint(layer, x, use_reentrant=False)
    assert torch.equal(plain, wrapped)
    figures.settle(
        same_output=torch.equal(plain, wrapped),
        runs_twice=gradients(True)[1] == 2 * gradients(False)[1],
    )


class Births(TorchDispatchMode):
    """Storages that operations put out, as long as the mode is on; they stay alive with it."""

    def __init__(self):
        super().__init__()
        self.storages: dict[int, object] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                self.storages.setdefault(storage._cdata, storage)
        return out


@cache
def born_and_kept() -> tuple[int, int]:
    """Tensors that a block's forward makes, and those among them that autograd keeps."""
    block, x, shared = block_of(GPT2)
    before = {tensor.untyped_storage()._cdata for tensor in (x, *block.parameters())}
    kept = set()

    def note(tensor: Tensor) -> Tensor:
        kept.add(tensor.untyped_storage()._cdata)
        return tensor

    with Births() as births, torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        block(x, shared)
    born = {
        key for key, storage in births.storages.items() if key not in before and storage.nbytes()
    }
    return len(born), len(born & kept)


def test_C201(figures):
    assert (figures["made"], figures["kept"]) == born_and_kept()
    x, y = (torch.randn(8, requires_grad=True) for _ in range(2))
    assert figures["addition"] == len(saved_tensors(lambda: x + y))
    kept = {"tanh": lambda: torch.tanh(x), "addition": lambda: x + y}
    figures.settle(**{name: len(saved_tensors(run)) == 1 for name, run in kept.items()})


def test_C202(figures):
    layers, x = Layers(figures["layers"]), torch.ones(8, requires_grad=True)
    assert figures["plain"] == len(saved_tensors(lambda: in_turn(tuple(layers.functions), x)))
    assert figures["segments"] == len(saved_tensors(lambda: in_segments(layers.functions, 6, x)))
    layers.runs.clear()
    in_segments(layers.functions, 6, x).sum().backward()
    assert len(layers.runs) == figures["layers"] and set(layers.runs.values()) == {figures["runs"]}
    figures.settle(
        inputs_only=figures["segments"] == figures["layers"] / 6,
        runs_again=set(layers.runs.values()) == {2},
    )


@cache
def peak_tensors(number: int, size: int) -> int:
    """Most tensors alive at once in forward and backward of ``number`` equal layers, in segments of ``size``."""

    def build() -> Callable[[], None]:
        x = torch.ones(VALUES, requires_grad=True)
        functions = Layers(number).functions

        def step() -> None:
            (in_segments(functions, size, x) if size else in_turn(tuple(functions), x)).backward(x)
            x.grad = None

        return step

    return round(trace_script(build, device="cpu", steps=1).peak_bytes / (4 * VALUES))


def test_C203(figures):
    few, many = figures["few"], figures["many"]
    assert isqrt(few) ** 2 == few and isqrt(many) ** 2 == many
    sizes = {"plain": lambda _: 0, "root": isqrt, "single": lambda _: 1}
    for name, size in sizes.items():
        assert figures[f"{name}_few"] == peak_tensors(few, size(few))
        assert figures[f"{name}_many"] == peak_tensors(many, size(many))
    ratio = {
        name: peak_tensors(many, size(many)) / peak_tensors(few, size(few))
        for name, size in sizes.items()
    }
    figures.settle(
        **{name: times <= isqrt(many // few) for name, times in ratio.items() if name != "plain"}
    )


def test_C205(figures):
    calls = [name for name in torch_checkpoint.__all__ if name.startswith("checkpoint")]
    assert figures["printed"] == len(calls)
    assert figures["policies"] == len(torch_checkpoint.CheckpointPolicy)
    for name in ("create_selective_checkpoint_contexts", "set_checkpoint_early_stop"):
        assert callable(getattr(torch_checkpoint, name))
    assert isinstance(torch._functorch.config.activation_memory_budget, float)
    assert callable(save_on_cpu) and callable(checkpoint_wrapper)
    figures.settle(
        once=len(calls) == 2,
        now=not hasattr(torch_checkpoint, "create_selective_checkpoint_contexts"),
    )


def test_C206(figures):
    assert figures["runs"] == gradients(True)[1]
    check_gradients_are_equal()
    figures.settle(runs_twice=gradients(True)[1] == 2 * gradients(False)[1])


def test_C207(figures):
    for how in (NON_REENTRANT, REENTRANT):
        layers, x = Layers(figures["layers"]), torch.ones(2, requires_grad=True)
        checkpoint_sequential(layers.functions, figures["segments"], x, **how).sum().backward()
        runs = [layers.runs[layer] for layer in range(figures["layers"])]
        assert runs == [2] * figures["twice"] + [1] * figures["once"]
    assert figures["once"] == figures["size"]
    assert figures["layers"] == figures["segments"] * figures["size"]
    figures.settle(
        first_groups=set(runs[: -figures["size"]]) == {2},
        last_group=set(runs[-figures["size"] :]) == {2},
    )


def test_C208(figures):
    assert rounds_to(again_percent(GPT2, **REENTRANT), figures["reentrant_percent"])
    assert rounds_to(again_percent(GPT2, **NON_REENTRANT), figures["other_percent"])
    layer, x = nn.Linear(4, 4), torch.randn(2, 4, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"incompatible with \.grad\(\)"):
        torch.autograd.grad(checkpoint(layer, x, **REENTRANT).sum(), x)
    torch.autograd.grad(checkpoint(layer, x, **NON_REENTRANT).sum(), x)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # the weights would get no gradient
        assert not checkpoint(layer, x.detach(), **REENTRANT).requires_grad
    assert any("Gradients will be None" in str(warning.message) for warning in caught)
    assert checkpoint(layer, x.detach(), **NON_REENTRANT).requires_grad
    figures.settle(
        runs_everything=round(again_percent(GPT2, **REENTRANT)) == 100,
        limits=not checkpoint(layer, x.detach(), **REENTRANT).requires_grad,
    )


def test_C209(figures):
    assert rounds_to(again_percent(GPT2, **NON_REENTRANT), figures["gpt2_percent"])
    assert rounds_to(again_percent(LLAMA, **NON_REENTRANT), figures["llama_percent"])
    assert rounds_to(
        again_percent(replace(GPT2, dropout=0.1), **NON_REENTRANT), figures["dropout_percent"]
    )
    linear, other = nn.Linear(8, 8), nn.Linear(8, 8)
    # linear(x) itself no backward needs
    needless_first = lambda x: linear(x) + torch.tanh(other(x))

    def needless_last(x: Tensor) -> Tensor:
        kept = torch.tanh(other(x))
        return kept + linear(x)

    x = torch.randn(2, 8, requires_grad=True)
    for name, region in (("first", needless_first), ("last", needless_last)):
        forward, backward = flops(lambda region=region: region(x))
        again = (
            flops(lambda region=region: checkpoint(region, x, use_reentrant=False))[1] - backward
        )
        assert figures[name] == 2 * again / forward
    assert figures["products"] == 2
    figures.settle(needless_last=figures["last"] == 1, needless_first=figures["first"] == 1)


def test_C210(figures):
    x = torch.ones(2, requires_grad=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        y = checkpoint(torch.tanh, x)
    assert any(
        "use_reentrant parameter should be passed explicitly" in str(w.message) for w in caught
    )
    # the reentrant one was taken
    with pytest.raises(RuntimeError, match=r"incompatible with \.grad\(\)"):
        torch.autograd.grad(y.sum(), x)
    # 2.13 does not raise it
    assert "In version\n        2.9 we will raise an exception" in checkpoint.__doc__
    how = hugging_face_checkpoint().keywords
    in_torch = inspect.signature(checkpoint).parameters["use_reentrant"].default
    figures.settle(in_transformers=how["use_reentrant"] is False, in_torch=in_torch is False)


@cache
def hugging_face_checkpoint(**options) -> partial:
    """What Transformers calls a decoder layer with, once checkpointing is switched on."""
    hf = pytest.importorskip("transformers")
    config = hf.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        vocab_size=50,
    )
    model = hf.LlamaForCausalLM(config)
    model.activation_checkpointing_enable(**options)
    assert all(layer.gradient_checkpointing for layer in model.model.layers)
    return model.model.layers[0]._gradient_checkpointing_func


def test_C214(figures):
    plain, wrapped = bytes_of(saved_by_block()), bytes_of(saved_by_block(**NON_REENTRANT))
    assert rounds_to(plain / wrapped, figures["times"])
    assert figures["kept"] == len(saved_by_block(**NON_REENTRANT))
    check_gradients_are_equal()
    figures.settle(works=len(saved_by_block(**NON_REENTRANT)) == 1)
