"""Group A of the ledger: weights, gradients and optimizer states.

Where PyTorch can answer, a real training step does (``real_step``); the rest is memkit's recipes, whose tests
compare them with real optimizers, and arithmetic with named factors.
"""

from bisect import bisect_left
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import torch

from book.claims import rounds_to
from memkit.formats.records import tensor_bytes
from memkit.formats.rounding import decode
from memkit.formula.activations import activation_bytes
from memkit.formula.estimate import estimate_memory
from memkit.formula.parameters import block_parameters, count_by_kind, count_parameters
from memkit.formula.states import bytes_per_parameter
from memkit.models import GPT2_LARGE, GPT2_SMALL, LLAMA_2_7B
from memkit.program.transformer import Transformer
from memkit.recipes import (
    ADAMW,
    AUTOCAST_BF16,
    BF16_MASTER,
    BF16_TWO_GRADIENTS,
    FP32,
    MEGATRON,
    PRECISIONS,
    PURE_BF16,
    OptimizerConfig,
    Precision,
)
from memkit.setup import TrainingSetup
from memkit.units import GIB

BILLION = 10**9
SEVEN = 7
"""Billions of parameters in a 7B model: bytes per parameter times this are decimal GB."""
BF16_WITHOUT_MASTER = Precision(
    name="bf16 weights and gradients, fp32 moments",
    weight_dtype="bfloat16",
    gradient_dtype="bfloat16",
    compute_dtype="bfloat16",
    state_dtype="float32",
)


@cache
def real_master_step(gradients: str) -> dict[str, float]:
    """Bytes per parameter of what stands before ``zero_grad`` in a real step with 16-bit weights and a master copy.

    Torch's AdamW runs on float32 clones. ``copied``: the gradient stays bfloat16 and is widened for the step
    alone (DeepSpeed's ZeRO). ``main``: a float32 gradient takes it over as it comes (Megatron-LM's
    ``main_grad``). ``both``: both stay.
    """
    layer = torch.nn.Linear(64, 32, bias=False, dtype=torch.bfloat16)
    weight = layer.weight
    master = torch.nn.Parameter(weight.detach().float())
    optimizer = torch.optim.AdamW([master], lr=0.1)
    before = weight.detach().clone()
    layer(torch.ones(4, 64, dtype=torch.bfloat16)).sum().backward()
    gradient = weight.grad
    master.grad = gradient.float()
    if gradients == "main":
        gradient = weight.grad = None
    optimizer.step()
    weight.detach().copy_(master)
    assert not torch.equal(before, weight)
    main_gradient = None if gradients == "copied" else master.grad
    named = {
        "weight": weight,
        "gradient": gradient,
        "main gradient": main_gradient,
        "master weight": master,
    }
    named |= {name: optimizer.state[master][name] for name in ("exp_avg", "exp_avg_sq")}
    return {
        name: tensor.nbytes / weight.numel() for name, tensor in named.items() if tensor is not None
    }


def real_recipe(precision: Precision) -> dict[str, float] | None:
    """A recipe's bytes per parameter as a real AdamW step leaves them, or ``None`` for one that we do not run."""
    masters = {BF16_MASTER.name: "copied", MEGATRON.name: "main", BF16_TWO_GRADIENTS.name: "both"}
    if precision.name in masters:
        return real_master_step(masters[precision.name])
    if precision == BF16_WITHOUT_MASTER:
        return None
    autocast = (
        getattr(torch, precision.compute_dtype) if precision.name.startswith("autocast") else None
    )
    return real_step(torch.optim.AdamW, getattr(torch, precision.weight_dtype), autocast)


@cache
def kept(precision: Precision, optimizer: OptimizerConfig = ADAMW) -> SimpleNamespace:
    """Bytes per parameter that a recipe keeps: weight, gradients, master copy, moments, and their sums.

    Formula and, for AdamW, a real step: both give the same total.
    """
    addends = bytes_per_parameter(precision, optimizer)
    total = sum(addends.values())
    real = real_recipe(precision) if optimizer == ADAMW else None
    assert real is None or sum(real.values()) == total
    weight, master = addends.pop("weight"), addends.pop("master weight", 0)
    gradient = addends.pop("gradient") + addends.pop("main gradient", 0)
    moments = sum(addends.values())
    return SimpleNamespace(
        weight=weight,
        gradient=gradient,
        master=master,
        moments=moments,
        optimizer=master + moments,
        total=total,
    )


@cache
def real_step(
    optimizer_class, dtype=torch.float32, autocast_dtype=None, **options
) -> dict[str, float]:
    """Bytes per parameter of every tensor of the weight's shape that a real training step leaves."""
    layer = torch.nn.Linear(64, 32, bias=False, dtype=dtype)
    optimizer = optimizer_class(layer.parameters(), lr=0.1, **options)
    with torch.autocast("cpu", autocast_dtype, enabled=autocast_dtype is not None):
        loss = layer(torch.ones(4, 64, dtype=dtype)).sum()
    loss.backward()
    optimizer.step()
    weight = layer.weight
    tensors = {"weight": weight, "gradient": weight.grad, **dict(optimizer.state).get(weight, {})}
    return {
        name: tensor.nbytes / weight.numel()
        for name, tensor in tensors.items()
        if torch.is_tensor(tensor) and tensor.shape == weight.shape
    }


def states_of(step: dict[str, float]) -> dict[str, float]:
    return {name: size for name, size in step.items() if name not in ("weight", "gradient")}


def states_of_size(step: tuple) -> float:
    """Bytes per parameter of the states that a real step leaves."""
    return sum(states_of(real_step(*step)).values())


ADAM_FP32 = (torch.optim.AdamW, torch.float32)
ADAM_BF16 = (torch.optim.AdamW, torch.bfloat16)


@cache
def model_states(micro_batch_size: int, seq_len: int) -> dict[str, int]:
    """Weights, gradients and optimizer states of GPT-2 small in FP32 after the second step."""
    setup = TrainingSetup(model=GPT2_SMALL, micro_batch_size=micro_batch_size, seq_len=seq_len)
    instant = estimate_memory(setup).at("optimizer", step=2)
    return {part: instant.parts[part] for part in ("weights", "gradients", "optimizer_states")}


def test_C003(figures):
    assert model_states(1, 128) == model_states(8, 1024)
    totals = [kept(precision).total for precision in PRECISIONS.values()]
    assert figures["least"] == min(totals)
    assert figures["most"] == max(totals)
    assert figures["sgd"] == sum(real_step(torch.optim.SGD).values())
    frozen = torch.nn.Linear(8, 8).requires_grad_(False)
    trained = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW([*frozen.parameters(), *trained.parameters()])
    trained(frozen(torch.ones(1, 8))).sum().backward()
    optimizer.step()
    assert all(p.grad is None and p not in optimizer.state for p in frozen.parameters())
    assert all(p.grad is not None and p in optimizer.state for p in trained.parameters())
    figures.settle(
        batch_and_sequence=model_states(1, 128) == model_states(8, 1024),
        recipe=min(totals) == max(totals),
        optimizer=figures["sgd"] == sum(real_step(*ADAM_FP32).values()),
    )


def test_C004(figures):
    layer = torch.nn.Linear(64, 32, bias=False)
    optimizer = torch.optim.AdamW(layer.parameters())
    states = []
    for _ in range(2):
        layer(torch.ones(4, 64)).sum().backward()
        assert states or len(optimizer.state) == figures["states_before"]
        optimizer.step()
        states.append([optimizer.state[layer.weight][name] for name in ("exp_avg", "exp_avg_sq")])
    assert all(first is second for first, second in zip(*states, strict=True))
    assert (
        figures["bytes_per_param"]
        == sum(state.nbytes for state in states[0]) / layer.weight.numel()
    )
    timeline = estimate_memory(TrainingSetup(model=GPT2_SMALL, micro_batch_size=4))
    ends = [timeline.at("forward", step=step).total_bytes for step in (1, 2)]
    assert rounds_to((ends[1] - ends[0]) / BILLION, figures["gb"])
    figures.settle(appear=not figures["states_before"] and ends[1] > ends[0], stay=len(states) == 2)


def printed_formula(config) -> int:
    h, L, V = config.hidden_size, config.num_layers, config.vocab_size
    return h * V + L * (12 * h**2 + 13 * h) + 2 * h


@cache
def parameters_of(model) -> int:
    """Parameters of the module, counted by torch."""
    return sum(
        p.numel() for p in Transformer(TrainingSetup(model=model), device="meta").parameters()
    )


def test_C006(figures):
    def percent_of_matrices(config):
        in_a_block = sum(p.count for p in block_parameters(config) if p.is_matrix_product)
        return 100 * config.num_layers * in_a_block / count_parameters(config)

    assert rounds_to(percent_of_matrices(LLAMA_2_7B), figures["large_percent"])
    assert rounds_to(percent_of_matrices(GPT2_SMALL), figures["small_percent"])
    embeddings = count_by_kind(GPT2_SMALL)["embedding"]
    assert rounds_to(100 * embeddings / count_parameters(GPT2_SMALL), figures["embedding_percent"])
    figures.settle(large=percent_of_matrices(LLAMA_2_7B) > 90)


@cache
def weight_casts_of_autocast() -> float:
    """Bytes per parameter of the 16-bit casts of a weight that autograd keeps until the backward."""
    layer, x, saved = torch.nn.Linear(64, 32, bias=False), torch.ones(4, 64, requires_grad=True), []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t)
    with hooks, torch.autocast("cpu", torch.bfloat16):
        layer(x)
    casts = [t for t in saved if t.numel() == layer.weight.numel() and t.dtype == torch.bfloat16]
    return sum(t.nbytes for t in casts) / layer.weight.numel()


@cache
def is_total(billions: int, bytes_per_param: int, gb: float, gib: float) -> bool:
    """Bytes per parameter in GB and GiB, of the recipe with a master copy and of a real FP32 step alike."""
    is_so = bytes_per_param == kept(BF16_MASTER).total == sum(real_step(*ADAM_FP32).values())
    return is_so and gb == bytes_per_param * billions and rounds_to(gb * BILLION / GIB, gib)


def test_C021(figures):
    for recipe in (FP32, AUTOCAST_BF16, PURE_BF16, BF16_MASTER):
        assert (
            figures["times"] == (kept(recipe).weight + kept(recipe).gradient) / kept(recipe).weight
        )
    autocast = real_step(*ADAM_FP32, autocast_dtype=torch.bfloat16)
    for step in (real_step(*ADAM_FP32), autocast, real_step(*ADAM_BF16)):
        assert figures["times"] == (step["weight"] + step["gradient"]) / step["weight"]
    megatron = kept(MEGATRON)
    assert figures["megatron_times"] == (megatron.weight + megatron.gradient) / megatron.weight
    figures.settle(
        one_dtype=kept(FP32).gradient == kept(FP32).weight,
        megatron=megatron.gradient == megatron.weight,
    )


def test_C022(figures):
    for name, recipe in (
        ("times", BF16_WITHOUT_MASTER),
        ("with_master", BF16_MASTER),
        ("fp32", FP32),
    ):
        assert figures[name] == kept(recipe).total / (kept(recipe).weight + kept(recipe).gradient)
    figures.settle(
        **{name: figures[name] == figures["times"] for name in ("times", "with_master", "fp32")}
    )


def is_zero_recipe(weight, gradient, master, m, v, total) -> bool:
    """The addends of the ZeRO paper (arXiv:1910.02054, section 3.1), one by one."""
    addends = bytes_per_parameter(BF16_MASTER, ADAMW)
    roles = ("weight", "gradient", "master weight", "exp_avg", "exp_avg_sq")
    return [weight, gradient, master, m, v] == [addends[role] for role in roles] and total == sum(
        addends.values()
    )


def test_C041(figures):
    assert figures["megatron_gradient"] == kept(MEGATRON).gradient
    assert figures["megatron_weight"] == kept(MEGATRON).weight
    layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    layers[0].requires_grad_(False)
    layers(torch.ones(1, 8)).sum().backward()
    gradients = sum(p.grad.nbytes for p in layers.parameters() if p.grad is not None)
    assert figures["frozen_percent"] == 100 * gradients / sum(p.nbytes for p in layers.parameters())
    figures.settle(
        one_dtype=real_step(*ADAM_FP32)["gradient"] == real_step(*ADAM_FP32)["weight"],
        megatron=kept(MEGATRON).gradient == kept(MEGATRON).weight,
        frozen=figures["frozen_percent"] == 100,
    )


def test_C042(figures):
    assert figures["printed"] == real_step(torch.optim.SGD, torch.float16)["gradient"]
    assert figures["printed"] == kept(BF16_MASTER).gradient
    for dtype in (torch.float16, torch.bfloat16):
        assert figures["autocast"] == real_step(torch.optim.SGD, autocast_dtype=dtype)["gradient"]
    figures.settle(
        sixteen_bit_weights=kept(BF16_MASTER).gradient == figures["printed"],
        autocast=figures["autocast"] == figures["printed"],
    )


def test_C043(figures):
    for name, recipe in (("fp32_percent", FP32), ("master_percent", BF16_MASTER)):
        assert figures[name] == 100 * kept(recipe).optimizer / kept(recipe).total
        assert kept(recipe).optimizer >= max(kept(recipe).weight, kept(recipe).gradient)
    figures.settle(
        **{
            r.name: kept(r).optimizer >= max(kept(r).weight, kept(r).gradient)
            for r in (FP32, BF16_MASTER)
        },
    )


def test_C045(figures):
    for optimizer_class in (torch.optim.Adam, torch.optim.AdamW):
        assert figures["states"] == len(states_of(real_step(optimizer_class)))
        assert figures["amsgrad_states"] == len(states_of(real_step(optimizer_class, amsgrad=True)))
    weight = torch.nn.Parameter(torch.ones(8))
    weight.grad = torch.ones(8)
    optimizer = torch.optim.AdamW([weight])
    optimizer.step()
    assert figures["step_bytes"] == optimizer.state[weight]["step"].nbytes
    figures.settle(
        adam=len(states_of(real_step(torch.optim.Adam))) == figures["states"],
        adamw=len(states_of(real_step(torch.optim.AdamW))) == figures["states"],
    )


@cache
def tokens_that_add(percent: int) -> int:
    """The first length of a sequence whose activations reach so many percent of Llama-2-7B's model states."""
    setup = TrainingSetup(model=LLAMA_2_7B, precision=BF16_MASTER)
    states = kept(BF16_MASTER).total * count_parameters(LLAMA_2_7B)
    return bisect_left(
        range(20_000),
        percent * states,
        lo=1,
        key=lambda n: 100 * activation_bytes(replace(setup, seq_len=n)),
    )


def test_C049(figures):
    assert figures["low_tokens"] == tokens_that_add(figures["printed_low"])
    assert figures["high_tokens"] == tokens_that_add(figures["printed_high"]) - 1
    setup = TrainingSetup(
        model=GPT2_LARGE, precision=BF16_MASTER, micro_batch_size=8, attention="stored", dropout=0.1
    )
    assert figures["gpt2_tokens"] == setup.tokens_per_micro_batch
    states = kept(BF16_MASTER).total * count_parameters(GPT2_LARGE)
    assert rounds_to(100 * activation_bytes(setup) / states, figures["gpt2_percent"])
    figures.settle(
        between=figures["printed_low"]
        <= 100
        * activation_bytes(TrainingSetup(model=LLAMA_2_7B, precision=BF16_MASTER, seq_len=5000))
        / (kept(BF16_MASTER).total * count_parameters(LLAMA_2_7B))
        <= figures["printed_high"],
        gpt2=figures["printed_low"] <= figures["gpt2_percent"] <= figures["printed_high"],
    )


def test_C051(figures):
    for name, bits in (("fp32", 32), ("fp16", 16), ("int8", 8), ("int4", 4)):
        assert figures[name] == bits / 8
        assert (
            figures[f"{name}_gb"]
            == tensor_bytes(SEVEN * BILLION, name.replace("fp", "float")) / BILLION
        )
    # NF4 is no integer format but a table of floats. QLoRA, arXiv:2305.14314, section 3: for 64 weights
    # a scale of 32 bits,
    # or one of 8 bits and a 32-bit scale for every 256 of them
    block, scales_of_a_block, scale_bits, small_scale_bits = 64, 256, 32, 8
    assert figures["block"] == block
    nf4_values = decode(range(2**4), "nf4")
    assert figures["nf4_values"] == len(np.unique(nf4_values))
    assert len(np.unique(np.diff(np.sort(nf4_values)).round(3))) > 2  # its steps differ
    nf4 = 4 + scale_bits / block
    double = 4 + small_scale_bits / block + scale_bits / (block * scales_of_a_block)
    assert rounds_to(nf4, figures["nf4_bits"])
    assert rounds_to(nf4 / 8 * SEVEN, figures["nf4_gb"])
    assert rounds_to(double, figures["double_bits"])
    assert rounds_to(double / 8 * SEVEN, figures["double_gb"])
    figures.settle(
        values=torch.int8.itemsize * SEVEN == figures["int8_gb"],
        with_scales=figures["nf4_gb"] == figures["int4_gb"],
    )


def adamw_by_hand(weights, gradients, *, corrects: bool = True):
    """Loshchilov & Hutter 2019, algorithm 2, on a list of gradients; torch's defaults."""
    lr, beta1, beta2, eps, decay = 1e-3, 0.9, 0.999, 1e-8, 1e-2
    m = v = torch.zeros_like(weights)
    for t, g in enumerate(gradients, start=1):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        m_hat, v_hat = (m / (1 - beta1**t), v / (1 - beta2**t)) if corrects else (m, v)
        weights = weights - lr * decay * weights - lr * m_hat / (v_hat.sqrt() + eps)
    return weights


@cache
def adamw_experiment() -> tuple[bool, float]:
    """Whether the equations give torch's weights after five steps; length of an uncorrected first step."""
    generator = torch.Generator().manual_seed(0)
    start, *gradients = torch.randn(6, 100, dtype=torch.float64, generator=generator)
    weights = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.AdamW([weights])
    for gradient in gradients:
        weights.grad = gradient
        optimizer.step()
    is_same = torch.allclose(weights, adamw_by_hand(start, gradients), rtol=1e-12, atol=0)
    zero = torch.zeros_like(start)
    first, uncorrected = (adamw_by_hand(zero, gradients[:1], corrects=c) for c in (True, False))
    return is_same, (uncorrected / first).median().item()
