"""Group I of the ledger, first half: what stands when in a step, the message, and recovery (C253-C278).

Steps are traced: the real PyTorch code on tensors without data. What only a GPU does is asked of the model
of its allocator, which replays recorded runs of real cards to the byte (tests/stepscope/allocator/test_real_cards.py).
"""

import gc
import inspect
import re
from collections import defaultdict
from dataclasses import replace
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from book.small_programs import ragged_build
from memkit.formula.estimate import estimate_memory
from memkit.measure import saved_tensors
from memkit.models import GPT2_SMALL, LLAMA_32_1B, TINY_GPT2
from memkit.program.transformer import Transformer, training_build
from memkit.recipes import AUTOCAST_BF16, PURE_BF16
from memkit.setup import TrainingSetup
from memkit.timeline import MemoryTimeline
from memkit.units import GIB, MIB
from stepscope.allocator.caching import AllocatorConfig, CachingAllocator, Driver, OutOfMemory
from stepscope.allocator.replay import Replay, replay_trace
from stepscope.small_card import SimulatedCard
from stepscope.tracing.trace import trace_script

STEP = TrainingSetup(model=GPT2_SMALL, micro_batch_size=4, attention="efficient")
"""GPT-2 small in FP32, four sequences of 1,024 tokens: the step that most answers speak of."""

PRINTED_MESSAGE = (
    "Tried to allocate 2.50 GiB (GPU 0; 39.59 GiB total capacity; 36.83 GiB already allocated; "
    "1.47 GiB free; 37.50 GiB reserved"
)
"""Source: https://engineersofai.com/docs/ai-systems/gpu-tpu-infrastructure/cuda-programming-model"""

RECENT_MESSAGE = (
    "Tried to allocate 22.78 GiB. GPU 0 has a total capacity of 31.47 GiB of which 12.73 GiB is free. "
    "Including non-PyTorch memory, this process has 18.73 GiB memory in use. Of the allocated memory "
    "9.08 GiB is allocated by PyTorch, and 9.35 GiB is reserved by PyTorch but unallocated."
)
"""Source: https://github.com/murong-xu/CADS/issues/4. What torch 2.9 obeys: pytorch/pytorch#183387."""

SIZE = r"[\d.]+ [KMG]iB"


def in_gib(num_bytes: int, decimals: int = 2) -> float:
    return round(num_bytes / GIB, decimals)


def in_mib(num_bytes: int) -> int:
    return round(num_bytes / MIB)


@cache
def traced(setup: TrainingSetup = STEP, steps: int = 2) -> MemoryTimeline:
    return trace_script(training_build(setup), steps=steps)


def step_2(**changes) -> MemoryTimeline:
    return estimate_memory(replace(STEP, **changes)).for_step(2)


def bytes_at(instant: str, step: int = 2, **changes) -> int:
    return estimate_memory(replace(STEP, **changes)).at(instant, step).total_bytes


def card_of(num_mib: int, outside_mib: int = 0) -> CachingAllocator:
    return CachingAllocator(driver=Driver(num_mib * MIB, outside_mib * MIB))


def summary(**counters: int) -> str:
    """What torch's own ``memory_summary`` prints for these counters; the others are 0."""
    stats = defaultdict(int, num_ooms=0, num_alloc_retries=0) | counters
    with patch.object(torch.cuda.memory, "memory_stats", lambda device: stats):
        return torch.cuda.memory_summary(0)


@cache
def memory_events(**options) -> int:
    """Memory events in the profiler's record of a small forward and backward."""
    layer, x = torch.nn.Linear(64, 64), torch.ones(8, 64)
    with profile(activities=[ProfilerActivity.CPU], acc_events=True, **options) as profiler:
        layer(x).sum().backward()
    return sum(event.name == "[memory]" for event in profiler.events())


def test_C255(figures):
    [library] = (Path(torch.__file__).parent / "lib").glob("*c10.*")
    strings = library.read_bytes()
    for name in (figures["option"], figures["old_option"]):
        assert b"\0" + name.encode() + b"\0" in strings
    allocator = card_of(96)
    with pytest.raises(OutOfMemory) as caught:
        allocator.malloc(100 * MIB)
    assert figures["option"] in str(caught.value).replace("=", " ").split()
    words = re.split(SIZE, RECENT_MESSAGE)
    assert all(word.strip() in re.sub(SIZE, "", str(caught.value)) for word in words[1:-1])
    assert not all(word.strip() in str(caught.value) for word in re.split(SIZE, PRINTED_MESSAGE))
    figures.settle(once="(GPU 0;" in PRINTED_MESSAGE, now="(GPU 0;" in str(caught.value))


def test_C256(figures):
    printed = [float(number) for number in re.findall(r"([\d.]+) GiB", PRINTED_MESSAGE)]
    assert [
        figures[name] for name in ("request", "total", "allocated", "free", "reserved")
    ] == printed
    assert figures["outside"] == round(figures["total"] - figures["reserved"] - figures["free"], 2)
    assert figures["available"] == round(
        figures["reserved"] - figures["allocated"] + figures["free"], 2
    )
    assert figures["available"] < figures["request"]
    figures.settle(fails=figures["request"] > figures["available"])


LENGTHS = (531, 354, 604, 866, 249, 274, 748, 296)
ONE_LLAMA = replace(
    STEP,
    model=LLAMA_32_1B,
    micro_batch_size=1,
    seq_len=2048,
    precision=PURE_BF16,
    attention="flash",
)


@cache
def ragged() -> MemoryTimeline:
    return trace_script(
        ragged_build(replace(STEP, model=TINY_GPT2, micro_batch_size=1), LENGTHS), steps=8
    )


@cache
def on_a_card(trace: str, expandable: bool = False) -> Replay:
    timelines = {"small": traced, "llama": lambda: traced(ONE_LLAMA), "ragged": ragged}
    return replay_trace(
        timelines[trace](),
        AllocatorConfig(expandable_segments=expandable),
        compute_capability=(8, 0),
    )


def cached_percent(trace: str, expandable: bool = False) -> float:
    """What is reserved and not allocated, at the moment when most is allocated."""
    return 100 * on_a_card(trace, expandable).fragmentation


def test_C259(figures):
    run = on_a_card("ragged")
    assert figures["needed_mib"] == in_mib(run.peak_allocated_bytes)
    assert figures["allowance_mib"] == in_mib(
        run.peak_allocated_bytes * figures["printed_percent"] / 100
    )
    assert figures["gap_mib"] == in_mib(run.peak_reserved_bytes - run.peak_allocated_bytes)
    run = on_a_card("llama")
    assert figures["llama_percent"] == round(
        100 * run.peak_reserved_bytes / run.peak_allocated_bytes - 100
    )
    runs = {name: on_a_card(name) for name in ("llama", "ragged")}
    rule = 1 + figures["printed_percent"] / 100
    figures.settle(
        **{name: r.peak_reserved_bytes <= rule * r.peak_allocated_bytes for name, r in runs.items()}
    )


def train(card: SimulatedCard, recomputes: bool):
    """One step of a stack of layers, with AdamW; returns what a script's variables would still hold."""
    layers = torch.nn.ModuleList(torch.nn.Linear(512, 512) for _ in range(8))
    optimizer = torch.optim.AdamW(layers.parameters())
    x = torch.randn(512, 512)
    for layer in layers:
        x = checkpoint(layer, x, use_reentrant=False) if recomputes else layer(x).relu()
    loss = x.square().mean()
    loss.backward()
    optimizer.step()
    return layers, optimizer, loss


@cache
def peak_with_recomputation(in_one_scope: bool) -> int:
    """What a comparison reads for its second run; the script's variables are bound again only at its end."""
    with SimulatedCard(GIB) as card:
        held = train(card, recomputes=False)
        if not in_one_scope:
            del held
            gc.collect()
        card.reset_peak()
        held = train(card, recomputes=True)
        return card.peak_allocated_bytes


def test_C263(figures):
    rows = [line.split("|")[1] for line in summary().splitlines() if line.count("|") == 6]
    metrics = [row for row in rows[1:] if "pool" not in row]
    assert figures["metrics"] == len(metrics)
    assert figures["pools"] == len({row for row in rows if "pool" in row})
    assert not re.search("weight|gradient|optimizer|activation", "".join(rows), re.IGNORECASE)
    figures.settle(
        by_category=bool(
            re.search("weight|gradient|optimizer|activation", "".join(rows), re.IGNORECASE)
        )
    )


def seen_by_python() -> dict[int, int]:
    """Bytes of every storage on the CPU that a walk through Python's objects finds."""
    tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
    plain = [
        tensor for tensor in tensors if not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    ]
    storages = [tensor.untyped_storage() for tensor in plain if tensor.device.type == "cpu"]
    return {storage._cdata: storage.nbytes() for storage in storages}


@cache
def seen_and_kept() -> tuple[int, int, int]:
    """Bytes after a forward: what a walk through Python's objects finds, what autograd keeps, its largest."""
    model = Transformer(TrainingSetup(model=TINY_GPT2, device="cpu"))
    tokens = torch.zeros(2, 128, dtype=torch.long)
    before = seen_by_python()
    loss = model(tokens, tokens)
    after = seen_by_python()
    saved = saved_tensors(lambda: model(tokens, tokens), elsewhere=model.parameters())
    kept = [tensor.untyped_storage().nbytes() for tensor in saved]
    del loss
    return sum(after[storage] for storage in after.keys() - before.keys()), sum(kept), max(kept)


def test_C264(figures):
    seen, kept, largest = seen_and_kept()
    assert figures["seen_mib"] == round(seen / MIB, 1)
    assert figures["kept_mib"] == in_mib(kept)
    assert figures["largest_mib"] == in_mib(largest)
    with pytest.raises(TypeError):  # what the printed loop sorts by: size, shape, dtype
        sorted([(8, (2,), torch.float32), (8, (2,), torch.int32)])
    figures.settle(seen_by_python=seen > 0, largest_of_all=seen >= largest)


@cache
def events_of_a_late_recording() -> tuple[int, int]:
    """Events before and after the moment in which a full card's error reaches the program."""
    allocator = card_of(96)
    try:
        while True:
            allocator.malloc(16 * MIB)
    except OutOfMemory:
        armed = len(allocator.trace)
    births = [entry for entry in allocator.trace if entry[0] == "alloc"]
    return len(births), len(allocator.trace) - armed


@cache
def allocated_around_the_handler() -> tuple[int, int]:
    """MiB inside the ``except`` of a failed step, after everything one can call there, and behind it."""

    def step():
        batch = torch.empty(40, MIB, dtype=torch.uint8)
        return batch, torch.empty(40, MIB, dtype=torch.uint8)

    with SimulatedCard(64 * MIB) as card:
        try:
            step()
        except torch.OutOfMemoryError:
            gc.collect()
            card.empty_cache()
            inside = card.allocated_bytes
        return in_mib(inside), in_mib(card.allocated_bytes)


def test_C268(figures):
    driver = Driver(10 * GIB)
    jobs = [CachingAllocator(driver=driver) for _ in range(figures["jobs"])]
    assert figures["percent"] == round(100 * figures["fraction"] * len(jobs))
    # what each asks for is within its own limit
    assert figures["fraction"] * driver.capacity_bytes > 6 * GIB
    jobs[0].malloc(6 * GIB)
    with pytest.raises(OutOfMemory):
        jobs[1].malloc(6 * GIB)
    figures.settle(leaves_room_for_each=figures["jobs"] * figures["fraction"] <= 1)


@cache
def peak_over_forward(micro_batch_size: int, seq_len: int) -> float:
    """The whole second step's peak, by that of a first forward alone."""
    changes = {"micro_batch_size": micro_batch_size, "seq_len": seq_len}
    return step_2(**changes).peak_bytes / bytes_at("forward peak", 1, **changes)


def test_C270(figures):
    for name in ("low", "high"):
        tokens = figures[f"{name}_tokens"]
        assert (
            peak_over_forward(1, tokens)
            >= figures[f"printed_{name}"]
            > peak_over_forward(1, tokens + 1)
        )
    assert figures["least"] == round(peak_over_forward(32, 1024), 1)
    assert figures["most"] == round(peak_over_forward(1, 128), 1)
    low, high = figures["printed_low"], figures["printed_high"]
    shapes = {"500 tokens": (1, 500), "few tokens": (1, 128), "many tokens": (32, 1024)}
    figures.settle(
        **{name: low <= peak_over_forward(*shape) <= high for name, shape in shapes.items()}
    )


@cache
def first_step_that_fails(capacity_bytes: int) -> int:
    setup = replace(STEP, model=TINY_GPT2)
    return next(
        n
        for n in (1, 2, 3)
        if replay_trace(traced(setup, n), capacity_bytes=capacity_bytes).failure
    )


def test_C272(figures):
    assert callable(torch.cuda.memory_snapshot)
    allocator = card_of(96)
    allocator.malloc(3 * MIB)
    before = {block.address for run in allocator.segments() for block in run if block.allocated}
    kept = allocator.malloc(5 * MIB)
    after = {block.address for run in allocator.segments() for block in run if block.allocated}
    assert after - before == {kept}
    figures.settle(only_in_the_second=after - before == {kept})


@cache
def gradient_bytes_after_zero_grad(**options) -> float:
    weight = torch.nn.Parameter(torch.ones(8))
    optimizer = torch.optim.AdamW([weight])
    weight.sum().backward()
    optimizer.zero_grad(**options)
    return 0 if weight.grad is None else weight.grad.nbytes / weight.numel()


def test_C273(figures):
    for zero_grad in (torch.optim.Optimizer.zero_grad, torch.nn.Module.zero_grad):
        assert inspect.signature(zero_grad).parameters["set_to_none"].default is True
    assert gradient_bytes_after_zero_grad() == 0
    assert figures["kept"] == gradient_bytes_after_zero_grad(set_to_none=False)
    figures.settle(
        once=gradient_bytes_after_zero_grad(set_to_none=False) > 0,
        now=gradient_bytes_after_zero_grad() > 0,
    )


def test_C276(figures):
    timeline = traced(replace(STEP, precision=AUTOCAST_BF16, attention="flash"), 1)
    init, forward = timeline.at("init"), timeline.at("forward")
    assert figures["jump_gib"] == in_gib(forward.total_bytes - init.total_bytes)
    assert figures["activations_gib"] == in_gib(forward.activations)
    assert figures["casts_mib"] == in_mib(forward.temporary)
    assert figures["passing_gib"] == in_gib(
        timeline.at("forward peak").total_bytes - forward.total_bytes
    )
    plain = [traced().at(name, 1) for name in ("init", "forward")]
    jumps = {"fp32": plain, "autocast": [init, forward]}
    figures.settle(
        **{
            name: abs((b.total_bytes - a.total_bytes) / b.activations - 1) < 0.01
            for name, (a, b) in jumps.items()
        }
    )
