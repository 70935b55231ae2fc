"""The trace against real runs of the same code, operation by operation, and what a program may do to it."""

import contextlib
import functools
import gc
import importlib
import itertools
import random
import re
import threading
import warnings
import weakref
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from state_of_torch import state_of_torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from tqdm import tqdm
from training_loop import training

from book import progress
from memkit.formula.parameters import count_parameters
from memkit.measuring.measure import NUMBER, measure_memory
from memkit.program.transformer import training_build
from memkit.setup.models import LLAMA_2_7B, LLAMA_3_70B, TINY_GPT2, TINY_LLAMA
from memkit.setup.recipes import AUTOCAST_BF16, FP32, PURE_BF16, OptimizerConfig
from memkit.setup.training import TrainingSetup
from stepscope.tracing.refusals import NeedsValues
from stepscope.tracing.trace import Tracer, trace_script

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
                event.op.rsplit(".", 1)[0] != last_op if event.op.count(".") > 1 else event.op != last_op
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
    return [tuple(sorted(run)) if run and (run[0] < 0 or sorts_births) else tuple(run) for run in runs]


def is_number(event) -> bool:
    return event.op == NUMBER or event.op.startswith("aten.scalar_tensor") and abs(event.num_bytes) <= 8


def both(build, steps=2):
    return trace_script(build, device="cpu", steps=steps), measure_memory(build, device="cpu", steps=steps)


EXACT = {
    "gpt2": (GPT2, FP32, {}),
    "gpt2 recomputed": (GPT2, FP32, {"recomputation": "full"}),
    "gpt2 selective": (GPT2, FP32, {"recomputation": "selective", "attention": "stored"}),
    "gpt2 accumulated": (GPT2, FP32, {"grad_accum_steps": 3}),
    "gpt2 stored": (GPT2, FP32, {"attention": "stored", "dropout": 0.1}),
    "gpt2 autocast": (GPT2, AUTOCAST_BF16, {}),
    "gpt2 autocast recomputed": (GPT2, AUTOCAST_BF16, {"recomputation": "full", "grad_accum_steps": 2}),
    "gpt2 bf16": (GPT2, PURE_BF16, {"upcasts_logits": True}),
    "llama": (LLAMA, FP32, {}),
    "llama recomputed": (LLAMA, FP32, {"recomputation": "full", "sets_grads_to_none": False}),
    "llama stored": (LLAMA, FP32, {"attention": "stored", "dropout": 0.1, "uses_fused_norm": False}),
    "llama autocast": (LLAMA, AUTOCAST_BF16, {}),
    "llama autocast accumulated": (LLAMA, AUTOCAST_BF16, {"grad_accum_steps": 2, "recomputation": "full"}),
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


@pytest.mark.parametrize("case", ["gpt2", "gpt2 accumulated", "llama autocast", "llama recomputed", "llama bf16"])
def test_a_tracker_that_misses_the_reused_gradients_fails(case, monkeypatch):
    build = training_build(setup_of(case))
    measured = measure_memory(build, device="cpu")
    asks = Tracer.runs_in_place  # still asked, since the tracer learns from the first answer
    monkeypatch.setattr(Tracer, "runs_in_place", lambda *call: asks(*call) and False)
    naive = trace_script(build, device="cpu")
    assert boundaries(naive) != boundaries(measured)
    born = sum(e.num_bytes > 0 and not e.is_scratch and not is_number(e) for e in measured.events)
    assert sum(e.num_bytes > 0 for e in naive.events) > born


# ---- any PyTorch code --------------------------------------------------------------------------------------


def convolutions(device):
    layers = (
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding="same"), nn.GroupNorm(4, 32), nn.SiLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(32, 10),
    )
    model = nn.DataParallel(nn.Sequential(*layers).to(device))
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
            return model(torch.randn(2, 16, 64, device=device), mask=mask, is_causal=True).float().pow(2).mean()

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
        loss = first.sum() + largest.sum() + hidden.sort(dim=1)[0][:, :4].sum() + hidden.topk(3)[0].sum()
        (loss + hidden.cumsum(0).mean() + torch.logsumexp(hidden, 1).sum() + hidden.norm()).backward()
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
    cuda = trace_script(lambda: PROGRAMS[name]("cuda"))
    cpu = trace_script(lambda: PROGRAMS[name]("cpu"), device="cpu")
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
        events = trace_script(training_build(setup), device=device).events
        in_host = ("get_rng_state", "aten.lift_fresh.default")  # random states and step counts
        traces.append([e for e in events if not e.is_scratch and e.op not in in_host])
    cuda, cpu = ([(e.num_bytes, e.op, e.part, e.phase, e.where) for e in events] for events in traces)
    assert cuda == cpu


def test_an_optimizer_of_ones_own_has_its_states_found():
    timeline = trace_script(lambda: own_parts("cpu"), device="cpu")
    weights = 4 * 2 * (64 * 64 + 64)
    assert timeline.at("init").weights == weights
    assert timeline.at("zero_grad", step=2).optimizer_states == weights
    assert timeline.at("backward", step=2).gradients == weights


def test_what_outlives_a_step_is_an_activation():
    def build():
        model, cache = nn.Linear(256, 256, device="cuda"), []
        return lambda: cache.append(model(torch.zeros(256, 256, device="cuda")).detach())

    timeline = trace_script(build, steps=3)
    assert all(timeline.at("zero_grad", step=n).activations == n * 4 * 256 * 256 for n in (1, 2, 3))
    assert timeline.at("zero_grad").temporary == 0


@pytest.mark.parametrize("model", [LLAMA_2_7B, LLAMA_3_70B], ids=lambda m: m.name)
def test_a_model_larger_than_the_machine(model):
    setup = TrainingSetup(model=replace(model, num_layers=4), precision=PURE_BF16, seq_len=2048)
    timeline = trace_script(training_build(setup), steps=1)
    count = count_parameters(setup.model)
    assert timeline.at("init").weights == 2 * count
    assert timeline.at("backward").gradients == 2 * count
    assert timeline.at("zero_grad").optimizer_states == 4 * count  # the step counts stay in the host's memory


# ---- what a program may ask, and what is left behind ------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_value_is_finite_with_one_warning(device):
    seen = []

    def build():
        model = nn.Linear(4, 4, device=device)

        def step():
            loss = model(torch.ones(2, 4, device=device)).sum()
            seen.extend((loss.item(), float(loss), loss.tolist(), loss.detach().cpu().numpy().item()))
            seen.append(float(f"{loss:.3f}"))
            loss.backward()

        return step

    with pytest.warns(UserWarning, match="no values") as caught:
        trace_script(build, device=device)
    assert len(caught) == 1 and caught[0].filename == __file__
    assert len(seen) == 10 and all(value in (1.0, [1.0]) for value in seen)


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
        trace_script(lambda: lambda: asks(torch.rand(4, device=device)), device=device)
    assert "torch.where" in str(caught.value)


def masks(device):
    """Answers that follow from a program's own text, each through another road of torch."""
    mask = torch.ones(4, 6, device=device)
    yield bool(mask.all())
    mask[:, 4:] = 0  # through a view
    yield bool(mask.all()), mask.sum().item(), f"{mask.mean():.3f}"
    yield mask.nonzero().shape, mask[mask > 0].shape, torch.masked_select(mask, mask > 0).shape
    wide = torch.rand(2, 4, 6, device=device)  # of which nobody knows the values, but the mask's are known
    yield wide[:, mask > 0].shape, wide[0][mask.bool()].shape, torch.masked_select(wide, mask > 0).shape
    ends = torch.full((4,), 6, device=device)
    ends[mask[:, 0] == 0] = mask.argmax(1)[mask[:, 0] == 0]  # of no row
    yield ends.tolist()
    yield [rate.item() for rate in torch.linspace(0, 0.1, 3, device=device)]
    yield torch.tensor([3, 1, 2], device=device).sort()[0].tolist(), int(torch.arange(5, device=device)[3])
    count = torch.zeros((), device=device)
    count += 1
    yield float(count), torch.full_like(mask, 7)[0, 0].item(), (mask.cumsum(-1)[:, -1] == 4).all().item()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_follows_from_the_programs_text_is_known(device):
    seen, real = [], list(masks("cpu"))
    trace_script(lambda: lambda: seen.extend(masks(device)), device=device, steps=1)
    assert seen == real


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_constant_that_chance_was_written_into_is_known_no_longer(device):
    def step():
        mask = torch.ones(4, 6, device=device)
        part = nn.Parameter(mask)[:, 1]
        part.data.uniform_()
        return bool(mask.all())

    with pytest.raises(NeedsValues, match="__bool__"):
        trace_script(lambda: step, device=device)


def test_initialisers_that_draw_again_hold_what_they_hold():
    def build(device="cpu"):
        layer = nn.Linear(256, 1024, device=device)
        nn.init.trunc_normal_(layer.weight, std=0.5, a=-0.1, b=0.1)  # one of its two ways
        nn.init.trunc_normal_(layer.weight, std=0.02)
        return lambda: None

    traced, measured = both(build)
    assert traced.peak_bytes == measured.peak_bytes > 4 * traced.at("init").weights
    assert trace_script(lambda: build("cuda")).at("init").weights == traced.at("init").weights


@pytest.mark.parametrize("watch", [trace_script, measure_memory])
@pytest.mark.parametrize("error", [None, KeyError, KeyboardInterrupt])
def test_what_a_program_sets_for_all_of_torch_is_put_back(watch, error):
    """Also the hooks of a checkpoint whose function fails, which torch leaves on while the error is held."""
    def settings():
        context, state = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None), state_of_torch()
        return (context and context.device, torch.get_default_dtype(), torch.is_grad_enabled(),
                *(state[name] for name in ("autocast", "modes", "saved tensors hooks")),
                torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled(),
                torch.get_num_threads(), torch.is_anomaly_enabled(), torch.ones(1).dtype)

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
        watch(build, device="cpu")
    assert settings() == before


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_programs_own_error_comes_through_with_its_own_line(device):
    class Answers:
        def __getattr__(self, name):
            raise LookupError(f"no {name!r}: a box that is asked for anything fails in words of its own")

    def step():
        _ = Answers()
        raise KeyError("the reader's own mistake")

    with pytest.raises(KeyError, match="own mistake") as caught:
        trace_script(lambda: step, device=device)
    assert caught.traceback[-1].name == "step" and str(caught.traceback[-1].path) == __file__

    matrix = functools.partial(torch.ones, 2, 3, device=device)
    with pytest.raises(RuntimeError, match="size|reduction dim"):
        trace_script(lambda: lambda: matrix() @ matrix(), device=device)


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

    trace_script(build if fails_in is None else lambda: lambda: None, device=device, steps=1)  # lazy imports
    before = state_of_torch()
    with pytest.raises(ZeroDivisionError) if fails_in else contextlib.nullcontext():
        trace_script(build, device=device)
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

    trace_script(build)
    reference = weakref.ref(alive.pop())
    gc.collect()
    assert reference() is None


def test_each_allocation_names_the_programs_own_line():
    timeline = trace_script(training_build(setup_of("llama", device="cuda", recomputation="full")), steps=1)
    lines = {event.op: event.where for event in timeline.events if event.phase in ("forward", "backward")}
    assert re.fullmatch(r"transformer.py:\d+ MLP.forward", lines["aten.silu.default"])
    assert lines["aten.silu_backward.default"] == f"{lines['aten.silu.default']} (backward)"
    assert "step" in next(e.where for e in timeline.events if e.phase == "optimizer")


def test_a_whole_number_is_zero_and_the_warning_names_an_early_return():
    seen = []

    def build():
        model = nn.Linear(4, 4)

        def step():
            seen.append(torch.randint_like(torch.ones(3), 9).long().sum().item())
            loss = model(torch.ones(2, 4)).sum()
            if loss.item() < 2:
                return
            loss.backward()

        return step

    with pytest.warns(UserWarning, match="returns early"):
        assert trace_script(build, device="cpu").at("zero_grad").gradients == 0
    assert seen == [0, 0] and all(isinstance(value, int) for value in seen)


def test_what_is_drawn_into_a_tensor_is_not_known():
    seen = []

    def build():
        known = torch.arange(8)

        def step():
            seen.append(known.sum().item())
            torch.randperm(8, out=known)
            seen.append(known.sum().item())

        return step

    trace_script(build, steps=1, device="cpu")
    assert seen == [28, 0]


@pytest.mark.parametrize("build", [nn.Linear(2, 2), lambda: None, lambda: nn.Linear(2, 2)])
@pytest.mark.parametrize("watch", [trace_script, measure_memory])
def test_what_is_not_a_build_is_told_what_one_is(watch, build):
    with pytest.raises(ValueError, match="makes model and optimizer and returns the step"):
        watch(build, device="cpu")


@pytest.mark.parametrize("watch", [trace_script, measure_memory])
@pytest.mark.parametrize("how", ["optimizer", "hand"])
def test_a_model_made_outside_build_is_refused_and_left_alone(watch, how):
    model = nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        model(torch.ones(2, 8)).sum().backward()
        if how == "optimizer":
            optimizer.step()

    with pytest.raises(ValueError, match=r"make model and optimizer inside build\(\)"):
        watch(lambda: step, device="cpu")
    if watch is trace_script:
        assert model.weight.grad is None and not optimizer.state
    with pytest.raises(ValueError, match="make model and optimizer inside"):
        model.weight.grad = torch.ones(8, 8)
        watch(lambda: optimizer.step, device="cpu")
    with pytest.raises(ValueError, match="make model and optimizer inside"):
        trace_script(lambda: lambda: model(torch.ones(2, 8, device="cuda")).sum().backward())


def in_a_thread(device, work=None):
    layer = nn.Linear(64, 64, device=device)

    def step():
        thread = threading.Thread(target=work or (lambda: torch.ones(64, 64, device=device) * 2))
        thread.start()
        thread.join()
        layer(torch.ones(2, 64, device=device)).sum().backward()

    return step


def test_a_thread_that_makes_nothing_on_the_card_goes_on():
    works = lambda: None, lambda: torch.ones(64, 64, device="cpu") * 2
    nothing, in_host = (trace_script(lambda work=work: in_a_thread("cuda", work)) for work in works)
    assert nothing.instants == in_host.instants


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
    [(in_a_thread, "in a thread of its own"), (as_generator, "a generator or a coroutine"),
     (as_coroutine, "a generator or a coroutine")],
)
@pytest.mark.parametrize("way", ["cuda", "cpu", "measured"])
def test_what_cannot_be_followed_is_refused(program, words, way):
    with pytest.raises(ValueError, match=rf"{program.__name__}.*{words}"):
        if way == "measured":
            measure_memory(lambda: program("cpu"), device="cpu")
        else:
            trace_script(lambda: program(way), device=way)


def test_workers_of_a_loader_fill_a_card_as_one_process_does():
    """What workers make is the host's; the card gets the same batches."""

    def trace(workers: int):
        def build():
            data = torch.utils.data.TensorDataset(torch.randn(64, 8, device="cpu"))
            loader = torch.utils.data.DataLoader(
                data, batch_size=8, num_workers=workers, persistent_workers=workers > 0, timeout=workers
            )
            model = torch.nn.Linear(8, 1024, device="cuda")

            def step():
                for (batch,) in loader:
                    model(batch.to("cuda")).sum().backward()

            return step

        return trace_script(build)

    assert trace(2).instants == trace(0).instants


def test_a_storage_that_is_emptied_and_filled_again_is_followed():
    def build():
        weight = torch.ones(1000)

        def step():
            storage = weight.untyped_storage()
            storage.resize_(0)
            torch.ones(10)
            storage.resize_(8000)

        return step

    traced, measured = both(build)
    sizes = [[e.num_bytes for e in t.events if abs(e.num_bytes) > 1000] for t in (traced, measured)]
    assert sizes[0] == sizes[1] == [4000, -4000, 8000, -8000, 8000]


@pytest.mark.parametrize(
    "run, said",
    [(lambda x: nn.LSTM(8, 8, device="cuda")(x), "lstm"),
     (lambda x: nn.Conv1d(5, 8, 3, device="cuda")(x), "convolution"),
     (lambda x: x.cumprod(0), "cumprod"), (lambda x: torch.linalg.eigh(x[:, :, :5]), "linalg_eigh"),
     (lambda x: torch.cdist(x, x), "cdist"), (lambda x: F.unfold(x[:, None], 2), "im2col"),
     (torch.fft.fft2, "cuFFT")],
)
def test_what_a_real_kernel_takes_besides_is_said_once(run, said):
    with pytest.warns(UserWarning, match=said) as caught:
        trace_script(lambda: lambda: run(torch.ones(4, 5, 8, device="cuda")))
    assert sum(said in str(warning.message) for warning in caught) == 1


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_long_trace_says_how_far_it_has_come(monkeypatch, device, capsys):
    """Ten additions are ten operations: the number said last goes up by ten a step, and nothing is said in between
    where less than two seconds have passed."""
    module = importlib.import_module("stepscope.tracing.waiting")
    monkeypatch.setattr(module, "OPERATIONS_BETWEEN_LOOKS", 1)
    said = []

    def build():
        x = torch.ones(8, device=device)
        return lambda: [x + 1 for _ in range(10)]

    trace_script(build, device=device, say=said.append)
    assert said == []
    monkeypatch.setattr(module, "SECONDS_BETWEEN_WORDS", 0.0)
    trace_script(build, device=device, steps=3, say=said.append)
    last = [[words for words in said if words.startswith(f"step {step} of 3, ")][-1] for step in (1, 2, 3)]
    numbers = [int(re.search(r"([\d,]+) operations so far", words)[1].replace(",", "")) for words in last]
    assert [b - a for a, b in itertools.pairwise(numbers)] == [10, 10]
    assert any(words.startswith("build: ") for words in said)
    monkeypatch.setattr("book.patience.tqdm", functools.partial(tqdm, disable=False))
    with progress():
        trace_script(build, device=device)
    assert "step 2 of 2, " in capsys.readouterr().err


def test_host_data_made_without_device_is_counted_and_told_and_with_cpu_is_not():
    def build(**to):
        data = torch.ones(1000, 100, **to)
        model = nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 100)).to("cuda")
        return lambda: model(data[:8].to("cuda")).sum().backward()

    with pytest.warns(UserWarning, match='say device="cpu"') as caught:
        counted = trace_script(build)
    assert len(caught) == 1 and caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        told = trace_script(lambda: build(device="cpu"))
    weights = 2 * (40_448 + 512)  # 4 × 100 × 100 and 4 × 100 in blocks of 512
    assert told.at("init").weights == counted.at("init").weights == weights
    assert told.at("init").total_bytes == weights
    assert counted.at("init").total_bytes >= weights + 4 * 1000 * 100


def test_a_missing_kernel_is_not_taken_for_missing_values():
    with torch.library._scoped_library("memkit_test", "DEF") as library:
        library.define("nothing(Tensor x) -> Tensor")
        words = r"test_trace.py:\d+ .*memkit_test.nothing.default.*register_fake"
        with pytest.raises(NotImplementedError, match=words) as caught:
            trace_script(lambda: lambda: torch.ops.memkit_test.nothing(torch.ones(4)))
    assert not isinstance(caught.value, NeedsValues)


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
    events = trace_script(lambda: build("cuda")).events
    cast = [event for event in events if event.phase == "backward" and event.num_bytes == 4 * 8 * 64]
    assert cast[0].op == "aten._to_copy.default" and cast[0].where == "backward"


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_an_initialiser_under_a_default_device_draws_as_without_it(device):
    """``with torch.device`` is a mode of torch's own: its frame stands between the initialiser and the trace."""

    def build(around):
        def built():
            with around:
                weight = torch.nn.init.trunc_normal_(torch.empty(64, 64, device=device), std=0.02)
            return lambda: weight * 2

        return built

    modes = contextlib.nullcontext(), torch.device(device)
    plain, under = (trace_script(build(mode), device=device) for mode in modes)
    assert [e.num_bytes for e in plain.events] == [e.num_bytes for e in under.events]


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_checkpoint_is_not_written_over_one_that_is_there(device, tmp_path):
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(b"weights of a week")

    def build():
        net = nn.Linear(256, 256).to(device)
        optimizer = torch.optim.AdamW(net.parameters())

        def step():
            net(torch.randn(4, 256, device=device)).sum().backward()
            optimizer.step()
            torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, path)
            optimizer.zero_grad()

        return step

    traced = trace_script(build, device=device)
    assert path.read_bytes() == b"weights of a week"
    if device == "cpu":
        assert abs(traced.peak_bytes - measure_memory(build, device="cpu").peak_bytes) <= 64
