"""The trace against real runs of the same code, operation by operation, and what a program may do to it."""

import contextlib
import functools
import gc
import random
import re
import warnings
import weakref
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from state_of_torch import state_of_torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)
from training_loop import training

from memkit.formula.parameters import count_parameters
from memkit.measure import NUMBER, measure_memory
from memkit.models import LLAMA_2_7B, LLAMA_3_70B, TINY_GPT2, TINY_LLAMA
from memkit.program.transformer import training_build
from memkit.recipes import AUTOCAST_BF16, FP32, PURE_BF16, OptimizerConfig
from memkit.setup import TrainingSetup
from memkit.tracing.shapes import NeedsValues
from memkit.tracing.trace import Tracer, trace_memory

SMALL = {"num_layers": 2, "hidden_size": 128, "vocab_size": 512, "max_seq_len": 128}
GPT2, LLAMA = (replace(TINY_GPT2, **SMALL), replace(TINY_LLAMA, intermediate_size=344, **SMALL))


def boundaries(timeline, sorts_births=False) -> list[tuple[int, ...]]:
    """What is allocated and freed between operations: the live bytes at each boundary, and every kind of
    difference that there may be between a traced and a real run left out by name.

    - scratch: born and freed inside one operation (``Event.is_scratch``); a dispatch mode cannot see it;
    - a Python number made a tensor of 8 bytes on its way into an operation, which a mode sees as a number;
    - a result that nobody keeps, born and freed before another operation allocates (where a recomputation
      stops early, a real run drops the last result inside the operation, a trace after it);
    - the order of frees between two allocations: autocast's cache is a hash table over addresses;
    - with ``sorts_births``: the order of one operation's results, which a kernel and its fake twin may
      differ in.
    """
    left_out = {event.block for event in timeline.events if event.is_scratch or is_number(event)}
    births, operation, last_op = {}, 0, None
    for event in timeline.events:
        if event.block not in left_out and event.num_bytes > 0:
            operation += (
                event.op.rsplit(".", 1)[0] != last_op
                if event.op.count(".") > 1
                else event.op != last_op
            )
            last_op = event.op.rsplit(".", 1)[0] if event.op.count(".") > 1 else event.op
            births[event.block] = operation
        elif births.get(event.block) == operation:
            left_out.add(event.block)
    runs: list[list[int]] = [[]]
    for event in timeline.events:
        if event.block in left_out:
            continue
        if runs[-1] and (runs[-1][-1] > 0) != (event.num_bytes > 0):
            runs.append([])
        runs[-1].append(event.num_bytes)
    return [
        tuple(sorted(run)) if run and (run[0] < 0 or sorts_births) else tuple(run) for run in runs
    ]


def is_number(event) -> bool:
    return (
        event.op == NUMBER
        or event.op.startswith("aten.scalar_tensor")
        and abs(event.num_bytes) <= 8
    )


def both(build, steps=2):
    return trace_memory(build, device="cpu", steps=steps), measure_memory(
        build, device="cpu", steps=steps
    )


EXACT = {
    "gpt2": (GPT2, FP32, {}),
    "gpt2 recomputed": (GPT2, FP32, {"recomputation": "full"}),
    "gpt2 selective": (GPT2, FP32, {"recomputation": "selective", "attention": "stored"}),
    "gpt2 accumulated": (GPT2, FP32, {"grad_accum_steps": 3}),
    "gpt2 stored": (GPT2, FP32, {"attention": "stored", "dropout": 0.1}),
    "gpt2 autocast": (GPT2, AUTOCAST_BF16, {}),
    "gpt2 autocast recomputed": (
        GPT2,
        AUTOCAST_BF16,
        {"recomputation": "full", "grad_accum_steps": 2},
    ),
    "gpt2 bf16": (GPT2, PURE_BF16, {"upcasts_logits": True}),
    "llama": (LLAMA, FP32, {}),
    "llama recomputed": (LLAMA, FP32, {"recomputation": "full", "sets_grads_to_none": False}),
    "llama stored": (
        LLAMA,
        FP32,
        {"attention": "stored", "dropout": 0.1, "uses_fused_norm": False},
    ),
    "llama autocast": (LLAMA, AUTOCAST_BF16, {}),
    "llama autocast accumulated": (
        LLAMA,
        AUTOCAST_BF16,
        {"grad_accum_steps": 2, "recomputation": "full"},
    ),
    "llama bf16": (LLAMA, PURE_BF16, {"recomputation": "full"}),
    "llama bf16 accumulated": (LLAMA, PURE_BF16, {"grad_accum_steps": 2}),
    "llama for-loop": (LLAMA, FP32, {"optimizer": OptimizerConfig(implementation="for-loop")}),
}


def setup_of(case: str, **changes) -> TrainingSetup:
    model, precision, choices = EXACT[case]
    shape = {"micro_batch_size": 2, "seq_len": 64, "device": "cpu"}
    return TrainingSetup(model=model, precision=precision, **shape | choices | changes)


@pytest.mark.parametrize("case", EXACT)
def test_live_bytes_equal_a_real_runs_at_every_operation_boundary(case):
    build = training_build(setup_of(case))
    traced, measured = both(build)
    assert boundaries(traced) == boundaries(measured)
    # A processor with AMX packs the factors of a product in 16 bits: the trace says "measure it there".
    most = 0.01 if torch.cpu._is_amx_tile_supported() and "bf16" in case else 0.003
    assert abs(traced.peak_bytes - measured.peak_bytes) <= most * measured.peak_bytes
    ends = [(t.name, t.step, t.micro_batch) for t in traced.instants]
    assert ends == [(m.name, m.step, m.micro_batch) for m in measured.instants]
    for instant, real in zip(traced.instants, measured.instants, strict=True):
        if not instant.name.endswith("peak"):  # a peak may hold scratch
            assert instant.weights == real.weights and instant.gradients == real.gradients
            assert instant.optimizer_states == real.optimizer_states
            numbers = sum(e.num_bytes for e in measured.events if is_number(e) and e.num_bytes > 0)
            assert 0 <= real.activations - instant.activations <= numbers
            assert 0 <= real.total_bytes - instant.total_bytes <= numbers


@pytest.mark.parametrize(
    "case", ["gpt2", "gpt2 accumulated", "llama autocast", "llama recomputed", "llama bf16"]
)
def test_a_tracker_that_misses_the_reused_gradients_fails(case, monkeypatch):
    build = training_build(setup_of(case))
    measured = measure_memory(build, device="cpu")
    asks = Tracer.runs_in_place  # still asked, since the tracer learns from the first answer
    monkeypatch.setattr(Tracer, "runs_in_place", lambda *call: asks(*call) and False)
    naive = trace_memory(build, device="cpu")
    assert boundaries(naive) != boundaries(measured)
    born = sum(e.num_bytes > 0 and not e.is_scratch and not is_number(e) for e in measured.events)
    assert sum(e.num_bytes > 0 for e in naive.events) > born


# ---- any PyTorch code --------------------------------------------------------------------------------------


def convolutions(device, wrap=nn.Sequential):
    layers = (
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding="same"),
        nn.GroupNorm(4, 32),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    model = wrap(nn.Sequential(*layers).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step():
        x, y = torch.randn(8, 3, 32, 32, device=device), torch.randint(10, (8,), device=device)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def self_attention(device):
    layer = nn.MultiheadAttention(64, 4, dropout=0.1, batch_first=True, device=device)

    def loss():
        x = torch.randn(2, 16, 64, device=device)
        kept, weights = layer(x, x, x, need_weights=True)
        fused, _ = layer(x, x, x, need_weights=False)
        return kept.square().mean() + fused.abs().mean() + weights.std()

    return training(layer, loss, torch.optim.Adam)


def encoder(device, uses_autocast=False):
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.1)
    model = nn.TransformerEncoder(layer, 2).to(device)
    mask = nn.Transformer.generate_square_subsequent_mask(16).to(device)

    def loss():
        with torch.autocast(device, torch.bfloat16, enabled=uses_autocast):
            return (
                model(torch.randn(2, 16, 64, device=device), mask=mask, is_causal=True)
                .float()
                .pow(2)
                .mean()
            )

    return training(model, loss)


def checkpointed(device, how):
    parts = [nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 64), nn.LayerNorm(64)]
    blocks = nn.ModuleList(nn.Sequential(*parts) for _ in range(3)).to(device)

    def policy(context, op, *args, **kwargs):
        is_saved = op is torch.ops.aten.addmm.default
        return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE

    def run(block, x):
        if how == "policy":
            contexts = functools.partial(create_selective_checkpoint_contexts, policy)
            return checkpoint(block, x, use_reentrant=False, context_fn=contexts)
        if how == "offloaded":
            with torch.autograd.graph.save_on_cpu(pin_memory=device == "cuda"):
                return block(x)
        return checkpoint(block, x, use_reentrant=how == "reentrant")

    def loss():
        x = torch.randn(16, 64, device=device, requires_grad=True)
        for block in blocks:
            x = run(block, x)
        return x.square().mean()

    return training(blocks, loss)


def optimizer_in_backward(device):
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).to(device)
    optimizers = {p: torch.optim.AdamW([p], foreach=False) for p in model.parameters()}

    def update(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    return lambda: model(torch.randn(16, 64, device=device)).square().mean().backward()


def by_hand(device):
    """No module and no optimizer; operations whose backward torch runs in place when nobody watches."""
    weight = torch.randn(64, 64, device=device, requires_grad=True)
    table = torch.randn(100, 64, device=device, requires_grad=True)
    rows = torch.tensor([1, 2, 3, 4, 3]).to(device)

    def step():
        hidden = torch.relu(table[rows] @ weight)
        first = hidden.gather(1, torch.zeros(5, 3, dtype=torch.long, device=device))
        largest, _ = hidden.max(dim=1)
        loss = (
            first.sum()
            + largest.sum()
            + hidden.sort(dim=1)[0][:, :4].sum()
            + hidden.topk(3)[0].sum()
        )
        (
            loss + hidden.cumsum(0).mean() + torch.logsumexp(hidden, 1).sum() + hidden.norm()
        ).backward()
        with torch.no_grad():
            for tensor in (weight, table):
                tensor -= 0.1 * tensor.grad
                tensor.grad = None

    return step


class Heavyball(torch.optim.Optimizer):
    """A reader's own optimizer, which replaces its state in each step."""

    def __init__(self, parameters, lr=0.1):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                before = self.state[parameter].get("velocity", torch.zeros_like(parameter))
                self.state[parameter]["velocity"] = 0.9 * before + parameter.grad
                parameter -= group["lr"] * self.state[parameter]["velocity"]


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x + grad * x


def own_parts(device):
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).to(device)
    model[0].weight.register_hook(lambda grad: 2 * grad)
    optimizer = Heavyball(model.parameters())

    def step():
        y = model(torch.randn(3, 5, 64, device=device).transpose(0, 1))
        (Square.apply(y) + Square.apply(y) + y).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    return step


PROGRAMS = {
    "convolutions": convolutions,
    "self-attention": self_attention,
    "encoder": encoder,
    "encoder, autocast": functools.partial(encoder, uses_autocast=True),
    "reentrant": functools.partial(checkpointed, how="reentrant"),
    "non-reentrant": functools.partial(checkpointed, how="non-reentrant"),
    "policy": functools.partial(checkpointed, how="policy"),
    "offloaded": functools.partial(checkpointed, how="offloaded"),
    "optimizer in backward": optimizer_in_backward,
    "by hand": by_hand,
    "own parts": own_parts,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_any_program_is_traced_as_it_runs(name):
    traced, measured = both(lambda: PROGRAMS[name]("cpu"))
    assert boundaries(traced, sorts_births=True) == boundaries(measured, sorts_births=True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_program_is_traced_for_cuda(name):
    cuda = trace_memory(lambda: PROGRAMS[name]("cuda"))
    cpu = trace_memory(lambda: PROGRAMS[name]("cpu"), device="cpu")
    for event in ("init", "zero_grad"):
        ours, theirs = cuda.at(event), cpu.at(event)
        blocks = sum(e.num_bytes > 0 for e in cuda.events)
        assert 0 <= ours.weights - theirs.weights < 512 * blocks  # rounded up, each
    assert cuda.at("backward").activations > 0


@pytest.mark.parametrize("recomputation", ["none", "full", "selective"])
@pytest.mark.parametrize("model", [GPT2, LLAMA], ids=lambda m: m.name)
def test_where_the_devices_agree_cudas_trace_is_the_cpus_event_by_event(model, recomputation):
    """No fused kernel and no autocast: the trace on meta tensors is as exact as the one held against real runs."""
    choices = {"attention": "stored", "uses_fused_norm": False, "recomputation": recomputation}
    shape = {"micro_batch_size": 2, "seq_len": 64, "grad_accum_steps": 2}
    traces = []
    for device in ("cuda", "cpu"):
        setup = TrainingSetup(model=model, device=device, **choices, **shape)
        events = trace_memory(training_build(setup), device=device).events
        in_host = ("get_rng_state", "aten.lift_fresh.default")  # random states and step counts
        traces.append([e for e in events if not e.is_scratch and e.op not in in_host])
    cuda, cpu = (
        [(e.num_bytes, e.op, e.part, e.phase, e.where) for e in events] for events in traces
    )
    assert cuda == cpu


def test_an_optimizer_of_ones_own_has_its_states_found():
    timeline = trace_memory(lambda: own_parts("cpu"), device="cpu")
    weights = 4 * 2 * (64 * 64 + 64)
    assert timeline.at("init").weights == weights
    assert timeline.at("zero_grad", step=2).optimizer_states == weights
    assert timeline.at("backward", step=2).gradients == weights


def test_what_outlives_a_step_is_an_activation():
    def build():
        model, cache = nn.Linear(256, 256, device="cuda"), []
        return lambda: cache.append(model(torch.zeros(256, 256, device="cuda")).detach())

    timeline = trace_memory(build, steps=3)
    assert all(timeline.at("zero_grad", step=n).activations == n * 4 * 256 * 256 for n in (1, 2, 3))
    assert timeline.at("zero_grad").temporary == 0


@pytest.mark.parametrize("model", [LLAMA_2_7B, LLAMA_3_70B], ids=lambda m: m.name)
def test_a_model_larger_than_the_machine(model):
    setup = TrainingSetup(model=replace(model, num_layers=4), precision=PURE_BF16, seq_len=2048)
    timeline = trace_memory(training_build(setup), steps=1)
    count = count_parameters(setup.model)
    assert timeline.at("init").weights == 2 * count
    assert timeline.at("backward").gradients == 2 * count
    # the step counts stay in the host's memory
    assert timeline.at("zero_grad").optimizer_states == 4 * count


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    "asks, name",
    [
        (lambda x: 1 if x.sum() > 0 else 0, "__bool__"),
        (lambda x: int(x.sum()), "__int__"),
        (lambda x: x[x > 0], "index"),
        (lambda x: x.nonzero(), "nonzero"),
        (lambda x: torch.masked_select(x, x > 0), "masked_select"),
        (lambda x: x.unique(), "unique"),
    ],
    ids=["if", "int", "mask", "nonzero", "masked_select", "unique"],
)
def test_a_branch_or_a_shape_that_depends_on_values_is_refused_by_name(device, asks, name):
    with pytest.raises(NeedsValues, match=name) as caught:
        trace_memory(lambda: lambda: asks(torch.rand(4, device=device)), device=device)
    assert "torch.where" in str(caught.value)


def watch(how, build):
    return (trace_memory if how == "traced" else measure_memory)(build, device="cpu")


each_way = pytest.mark.parametrize("how", ["traced", "measured"])


@each_way
@pytest.mark.parametrize("error", [None, KeyError, KeyboardInterrupt])
def test_what_a_program_sets_for_all_of_torch_is_put_back(how, error):
    """Also the hooks of a checkpoint whose function fails, which torch leaves on while the error is held."""

    def settings():
        context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
        state = state_of_torch()
        return (
            context and context.device,
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
            *(state[name] for name in ("autocast", "modes", "saved tensors hooks")),
            torch.get_float32_matmul_precision(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_num_threads(),
            torch.is_anomaly_enabled(),
            torch.ones(1).dtype,
        )

    def build():
        torch.set_default_device("cpu")
        torch.set_default_dtype(torch.bfloat16)
        torch.set_grad_enabled(False)
        torch.set_float32_matmul_precision("high")
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.set_num_threads(2)
        torch.autograd.set_detect_anomaly(True)
        torch.set_autocast_enabled("cpu", True)
        if error:
            checkpoint(fails, torch.ones(1), use_reentrant=False)
        return lambda: torch.ones(3)

    def fails(_):
        raise error

    before = settings()
    with pytest.raises(error) if error else contextlib.nullcontext():
        watch(how, build)
    assert settings() == before


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_programs_own_error_comes_through_with_its_own_line(device):
    class Answers:
        def __getattr__(self, name):
            raise LookupError(
                f"no {name!r}: a box that is asked for anything fails in words of its own"
            )

    def step():
        _ = Answers()
        raise KeyError("the reader's own mistake")

    with pytest.raises(KeyError, match="own mistake") as caught:
        trace_memory(lambda: step, device=device)
    assert caught.traceback[-1].name == "step" and str(caught.traceback[-1].path) == __file__

    matrix = functools.partial(torch.ones, 2, 3, device=device)
    with pytest.raises(RuntimeError, match="size|reduction dim"):
        trace_memory(lambda: lambda: matrix() @ matrix(), device=device)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("fails_in", [None, "build", "forward", "backward", "optimizer"])
def test_torch_is_as_it_was_afterwards(device, fails_in):
    def fail(place):
        if place == fails_in:
            raise ZeroDivisionError

    def build():
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).to(device)
        model[0].weight.register_hook(lambda grad: fail("backward"))
        optimizer = torch.optim.AdamW(model.parameters())
        optimizer.register_step_pre_hook(lambda *_: fail("optimizer"))
        fail("build")

        def step():
            with torch.autocast(device, torch.bfloat16):
                loss = model(torch.ones(2, 8, device=device)).sum()
                fail("forward")
            loss.backward()
            optimizer.step()

        return step

    # lazy imports
    trace_memory(build if fails_in is None else lambda: lambda: None, device=device, steps=1)
    before = state_of_torch()
    with pytest.raises(ZeroDivisionError) if fails_in else contextlib.nullcontext():
        trace_memory(build, device=device)
    assert state_of_torch() == before
    real = torch.ones(2, requires_grad=True)
    (real * 2).sum().backward()
    assert real.grad.tolist() == [2.0, 2.0]


def test_no_tensor_is_kept_after_a_trace():
    alive = []

    def build():
        model = nn.Linear(8, 8, device="cuda")
        alive.append(model.weight)
        return lambda: model(torch.ones(2, 8, device="cuda")).sum().backward()

    trace_memory(build)
    reference = weakref.ref(alive.pop())
    gc.collect()
    assert reference() is None


def test_each_allocation_names_the_programs_own_line():
    timeline = trace_memory(
        training_build(setup_of("llama", device="cuda", recomputation="full")), steps=1
    )
    lines = {
        event.op: event.where for event in timeline.events if event.phase in ("forward", "backward")
    }
    assert re.fullmatch(r"transformer.py:\d+ MLP.forward", lines["aten.silu.default"])
    assert lines["aten.silu_backward.default"] == f"{lines['aten.silu.default']} (backward)"
    assert "step" in next(e.where for e in timeline.events if e.phase == "optimizer")


@pytest.mark.parametrize("build", [nn.Linear(2, 2), lambda: None, lambda: nn.Linear(2, 2)])
@each_way
def test_what_is_not_a_build_is_told_what_one_is(how, build):
    with pytest.raises(ValueError, match="makes model and optimizer and returns the step"):
        watch(how, build)


@each_way
@pytest.mark.parametrize("steps_by", ["optimizer", "hand"])
def test_a_model_made_outside_build_is_refused_and_left_alone(how, steps_by):
    model = nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        model(torch.ones(2, 8)).sum().backward()
        if steps_by == "optimizer":
            optimizer.step()

    with pytest.raises(ValueError, match=r"make model and optimizer inside build\(\)"):
        watch(how, lambda: step)
    if how == "traced":
        assert model.weight.grad is None and not optimizer.state
    with pytest.raises(ValueError, match="make model and optimizer inside"):
        model.weight.grad = torch.ones(8, 8)
        watch(how, lambda: optimizer.step)
    with pytest.raises(ValueError, match="make model and optimizer inside"):
        trace_memory(lambda: lambda: model(torch.ones(2, 8, device="cuda")).sum().backward())


def as_generator(device):
    def step():
        yield torch.ones(2, device=device)

    return step


def as_coroutine(device):
    async def step():
        torch.ones(2, device=device)

    return step


@pytest.mark.parametrize(
    "program, words",
    [(as_generator, "a generator or a coroutine"), (as_coroutine, "a generator or a coroutine")],
)
@pytest.mark.parametrize("way", ["cuda", "cpu", "measured"])
def test_what_cannot_be_followed_is_refused(program, words, way):
    with pytest.raises(ValueError, match=rf"{program.__name__}.*{words}"):
        if way == "measured":
            measure_memory(lambda: program("cpu"), device="cpu")
        else:
            trace_memory(lambda: program(way), device=way)


@pytest.mark.parametrize("seed", range(6))
def test_random_expressions_accumulate_gradients_as_a_real_engine_does(seed):
    """Sums of random shapes of sharing: views, the same tensor twice, a gradient that somebody keeps."""
    draw = random.Random(seed)
    plan = [(draw.randrange(7), draw.randrange(100), draw.randrange(100)) for _ in range(40)]

    def build():
        start, kept = torch.ones(32, 32, requires_grad=True), []

        def step():
            values = [start * 2]
            for kind, left, right in plan:
                a, b = values[left % len(values)], values[right % len(values)]
                reshaped, expanded = a.view(16, 64).view(32, 32) * 2, a.expand(2, 32, 32).sum(0)
                values.append([a + b, a * b, a - b.t(), reshaped, expanded, a + a, a.relu()][kind])
                if kind == 3:
                    values[-1].register_hook(kept.append)
            sum(value.sum() for value in values).backward()
            kept.clear()
            start.grad = None

        return step

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        traced, measured = both(build)
    assert boundaries(traced) == boundaries(measured)


def test_a_roots_gradient_in_another_dtype_is_cast_before_any_node_runs():
    def build(device):
        x = torch.randn(8, 64, dtype=torch.bfloat16, device=device, requires_grad=True)
        weight = nn.Parameter(torch.ones(64, device=device))
        gradient = torch.randn(8, 64, dtype=torch.bfloat16, device=device)
        return lambda: (weight * x).backward(gradient)

    traced, measured = both(lambda: build("cpu"))
    assert boundaries(traced) == boundaries(measured) and traced.peak_bytes == measured.peak_bytes
    events = trace_memory(lambda: build("cuda")).events
    cast = [
        event for event in events if event.phase == "backward" and event.num_bytes == 4 * 8 * 64
    ]
    assert cast[0].op == "aten._to_copy.default" and cast[0].where == "backward"
