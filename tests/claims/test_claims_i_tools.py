"""Group I of the ledger, second half: the allocator, its counters, the tools, leaks and cures (C279-C308).

What only a GPU does is asked of the model of its allocator, which replays recorded runs of real cards
to the byte (tests/stepscope/allocator/test_real_cards.py). What PyTorch prints and offers is asked of PyTorch.
"""

import json
import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from claims.test_claims_i import STEP, bytes_at, card_of, in_gib, in_mib, step_2, summary
from torch.profiler import ProfilerActivity, profile, tensorboard_trace_handler

from memkit.cards import CARDS
from memkit.formula.estimate import estimate_memory
from memkit.models import GPT2_SMALL
from memkit.recipes import OptimizerConfig
from memkit.units import MIB
from stepscope.allocator.caching import CachingAllocator, OutOfMemory
from stepscope.small_card import SimulatedCard


def peak_of(**changes) -> int:
    return step_2(**changes).peak_bytes


def with_holes() -> CachingAllocator:
    """A card of 96 MiB after eight blocks of 8 MiB came and every second one went."""
    allocator = card_of(96)
    blocks = [allocator.malloc(8 * MIB) for _ in range(8)]
    for address in blocks[::2]:
        allocator.free(address)
    return allocator


def after_a_peak() -> CachingAllocator:
    """The same card after one block of 80 MiB came and went."""
    allocator = card_of(96)
    allocator.free(allocator.malloc(80 * MIB))
    return allocator


def fits(allocator: CachingAllocator, num_bytes: int) -> bool:
    try:
        allocator.malloc(num_bytes)
    except OutOfMemory:
        return False
    return True


def split_bytes(allocator: CachingAllocator) -> int:
    return sum(
        block.size
        for run in allocator.segments()
        for block in run
        if block.is_free and block.is_split
    )


def test_C279(figures):
    allocator = card_of(96)
    address = allocator.malloc(figures["asked_mib"] * MIB)
    used = allocator.driver.used_bytes
    allocator.free(address)
    assert allocator.allocated_bytes == 0
    assert figures["reserved_mib"] == in_mib(allocator.reserved_bytes)
    assert allocator.driver.used_bytes == used
    assert figures["reserved_mib"] == figures["asked_mib"] + 1  # to the next even MiB
    assert allocator.malloc(figures["asked_mib"] * MIB) == address
    allocator.free(address)
    allocator.empty_cache()
    assert allocator.driver.used_bytes == 0
    figures.settle(keeps=figures["reserved_mib"] * MIB == used)


def test_C280(figures):
    allocator = card_of(96)
    allocator.malloc(figures["asked"])
    assert figures["block"] == allocator.allocated_bytes
    assert figures["segment_mib"] * MIB == allocator.reserved_bytes
    assert figures["asked"] == torch.zeros(()).nbytes  # a loss
    assert figures["unused"] == allocator.reserved_bytes - allocator.allocated_bytes
    figures.settle(
        reserved_holds_it=allocator.reserved_bytes > allocator.allocated_bytes >= figures["asked"]
    )


def test_C281(figures):
    allocator = card_of(96)
    allocator.malloc(figures["asked_mib"] * MIB)
    assert figures["reserved_mib"] == in_mib(allocator.reserved_bytes)
    assert figures["unused_mib"] == in_mib(allocator.reserved_bytes - allocator.allocated_bytes)
    held = allocator.reserved_bytes
    allocator.malloc(figures["unused_mib"] * MIB)
    figures.settle(held_for_others=allocator.reserved_bytes == held)


def test_C282(figures):
    peak, holes = after_a_peak(), with_holes()
    assert figures["reserved_mib"] == in_mib(peak.reserved_bytes) == in_mib(holes.reserved_bytes)
    assert figures["card_mib"] == in_mib(holes.driver.capacity_bytes)
    assert split_bytes(peak) == 0
    assert figures["split_mib"] == in_mib(split_bytes(holes))
    request = figures["request_mib"] * MIB
    peak.malloc(request)
    with pytest.raises(OutOfMemory):
        holes.malloc(request)
    assert figures["request_mib"] * 2 == figures["split_mib"]
    figures.settle(
        holes=not fits(with_holes(), request), after_a_peak=not fits(after_a_peak(), request)
    )


def test_C283(figures):
    full = after_a_peak()
    full.malloc(90 * MIB)  # finds no block, empties the cache, asks again
    actions = [entry.action for entry in full.trace]
    assert actions[-3:] == ["segment_free", "segment_alloc", "alloc"]
    holes = with_holes()
    before = holes.reserved_bytes
    holes.empty_cache()
    assert holes.reserved_bytes == before
    assert figures["unused_mib"] == in_mib(holes.reserved_bytes - holes.allocated_bytes)
    peak = after_a_peak()
    before = {"whole_segments": (peak, peak.reserved_bytes), "holes": (holes, holes.reserved_bytes)}
    peak.empty_cache()
    figures.settle(**{name: card.reserved_bytes < held for name, (card, held) in before.items()})


def test_C285(figures):
    [header] = [line for line in summary(num_alloc_retries=234).splitlines() if "234" in line]
    assert f"| {figures['field']}: 234 " in re.sub(" +", " ", header)
    assert "cudaMallocs" not in header
    figures.settle(counts_them="cudaMallocs" in header)


def test_C286(figures):
    assert figures["missing"] == figures["allocated"] - figures["active"] > 0
    sample = PRINTED_ROWS
    assert (figures["allocated"], figures["active"]) == (
        sample["Allocated"][0],
        sample["Active"][0],
    )
    figures.settle(can_be=figures["active"] >= figures["allocated"])


PRINTED_ROWS = {
    "Allocated": (4096, 12345, 8249),
    "Active": (3800, 11000, 7200),
    "Requested": (3750, 10800, 7050),
}
"""MiB now, taken so far and given back so far, as a survey on mixed precision prints them."""


def summary_rows(rows: dict) -> dict[str, tuple[int, ...]]:
    """What torch's own memory_summary prints in its columns for these (current, allocated, freed) in MiB."""
    counters = {
        f"{name.lower()}_bytes.all.{key}": value * MIB
        for name, values in rows.items()
        for key, value in zip(("current", "allocated", "freed"), values, strict=True)
    }
    lines = summary(**counters).splitlines()
    cells = {line[1:23].strip(): re.findall(r"(\d+) M?i?B", line) for line in lines}
    return {name: tuple(int(cells[f"{name} memory"][i]) for i in (0, 2, 3)) for name in rows}


def test_C287(figures):
    documented = torch.cuda.memory_stats.__doc__
    assert (
        "total increase in this metric" in documented
        and "total decrease in this metric" in documented
    )
    assert summary_rows(PRINTED_ROWS) == PRINTED_ROWS
    for name, row in PRINTED_ROWS.items():
        now, taken, freed = (
            figures[f"{name.lower()}_{column}"] for column in ("now", "taken", "freed")
        )
        assert (now, taken, freed) == row
        assert now == taken - freed
    figures.settle(**{name: row[0] == row[1] - row[2] for name, row in PRINTED_ROWS.items()})


def test_C288(figures):
    holes = with_holes()
    with pytest.raises(OutOfMemory):
        holes.malloc(figures["request_mib"] * MIB)
    assert figures["card_mib"] == in_mib(holes.driver.capacity_bytes)
    assert figures["allocated_mib"] == in_mib(holes.allocated_bytes)
    assert (
        figures["sum_mib"]
        == figures["allocated_mib"] + figures["request_mib"]
        < figures["card_mib"]
    )
    assert figures["peak_mib"] == in_mib(holes.peak["allocated"])
    sums = figures["request_mib"] * MIB + holes.allocated_bytes
    figures.settle(
        an_empty_card=fits(card_of(96), sums),
        among_holes=fits(with_holes(), figures["request_mib"] * MIB),
    )


def test_C289(figures):
    readings = []
    for resets in (False, True):
        allocator = card_of(512)
        file, _model = (allocator.malloc(figures["copy_mib"] * MIB) for _ in range(2))
        allocator.free(file)
        if resets:
            allocator.reset_peak()
        allocator.malloc(60 * MIB)  # training
        readings.append(in_mib(allocator.peak["allocated"]))
    assert readings == [figures["loading_mib"], figures["training_mib"]]
    assert figures["loading_mib"] == 2 * figures["copy_mib"]
    words = " ".join(torch.cuda.max_memory_allocated.__doc__.split())
    assert "since the beginning of this program" in words
    assert "reset the starting point" in words
    figures.settle(of_training=readings[0] == readings[1])


def test_C291(figures):
    allocator, peaks = card_of(96), []
    for num_bytes in (40 * MIB, 8 * MIB):
        allocator.reset_peak()
        allocator.free(allocator.malloc(num_bytes))
        peaks.append(in_mib(allocator.peak["allocated"]))
    assert peaks == [figures["first_mib"], figures["second_mib"]]
    assert callable(torch.cuda.reset_peak_memory_stats)
    figures.settle(of_each_part=peaks[1] < peaks[0])


def test_C293(figures):
    allocator = with_holes()
    try:
        allocator.malloc(24 * MIB)
    except OutOfMemory:
        armed = len(allocator.trace)  # a recorder that starts here sees what follows
    assert len(allocator.trace) == armed
    # the counters were there all the time
    assert figures["peak_mib"] == in_mib(allocator.peak["allocated"])
    figures.settle(armed_before=armed > 0, armed_after=len(allocator.trace) - armed > 0)


def test_C295(figures):
    for context_mib in (0, 300, 500):
        allocator = card_of(8192, outside_mib=context_mib)
        address = allocator.malloc(figures["asked"])
        assert figures["segment_mib"] == in_mib(allocator.driver.used_bytes) - context_mib
        allocator.free(address)
        assert figures["segment_mib"] == in_mib(allocator.driver.used_bytes) - context_mib
    assert figures["asked"] == torch.zeros(()).nbytes
    assert figures["kind"] == CARDS["RTX 4090"].memory_kind
    figures.settle(
        **{name: "HBM" in CARDS[name].memory_kind for name in ("A100 SXM 80 GB", "RTX 4090")}
    )


def profiled() -> profile:
    """Three relus, recorded with their memory."""
    x = torch.ones(64, 64)
    with profile(
        activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True
    ) as profiler:
        for _ in range(3):
            x.relu()
    return profiler


@cache
def relu_averages():
    return profiled().key_averages()


def test_C297(figures):
    averages = relu_averages()
    [row] = [row for row in averages if row.key == "aten::relu"]
    assert figures["calls"] == row.count
    assert averages.table(sort_by="cuda_memory_usage") == averages.table(
        sort_by="device_memory_usage"
    )
    figures.settle(
        a_moment_for_each_call=len([row for row in averages if row.key == "aten::relu"])
        == row.count
    )


@cache
def exported() -> tuple[str, bool, bool]:
    """The file of TensorBoard's handler: its ending, and whether it holds what the Chrome export holds."""
    with TemporaryDirectory() as folder:
        tensorboard_trace_handler(folder, worker_name="worker")(profiled())
        [file] = Path(folder).iterdir()
        profiled().export_chrome_trace(f"{folder}/chrome.json")
        keys = [set(json.loads(path.read_text())) for path in (file, Path(folder, "chrome.json"))]
        return re.sub(r"^worker\.\d+", "", file.name), "traceEvents" in keys[0], keys[0] == keys[1]


@cache
def growth(runs_backward: bool, adds) -> int:
    """By how many bytes a loop's floor rises per iteration."""
    model = torch.nn.Sequential(
        torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)
    )
    floors, total = [], 0.0
    with SimulatedCard(256 * MIB) as card:
        for _ in range(5):
            loss = model(torch.randn(64, 512)).square().mean()
            if runs_backward:
                loss.backward()
            total = total + adds(loss)
            floors.append(card.allocated_bytes)
    steps = [after - before for before, after in pairwise(floors[1:])]
    assert len(set(steps)) == 1
    return steps[0]


def kept_nodes(adds) -> int:
    """How many nodes of autograd's graphs a running total holds more after each iteration with a backward."""
    model = torch.nn.Sequential(
        torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)
    )
    counts, total = [], 0.0
    for _ in range(4):
        loss = model(torch.randn(64, 512)).square().mean()
        loss.backward()
        total = total + adds(loss)
        waiting, seen = [getattr(total, "grad_fn", None)], set()
        while waiting:
            node = waiting.pop()
            if node is not None and node not in seen:
                seen.add(node)
                waiting.extend(following for following, _ in node.next_functions)
        counts.append(len(seen))
    steps = [after - before for before, after in pairwise(counts[1:])]
    assert len(set(steps)) == 1
    return steps[0]


def itself(loss: torch.Tensor) -> torch.Tensor:
    return loss


@cache
def kept_by(keep) -> int:
    """Bytes per iteration that a list of outputs holds."""
    model, outputs, floors = torch.nn.Linear(512, 512), [], []
    with SimulatedCard(256 * MIB) as card:
        for _ in range(4):
            outputs.append(keep(model(torch.randn(64, 512)).relu()))
            floors.append(card.allocated_bytes)
    return floors[-1] - floors[-2]


def test_C302(figures):
    allocator = card_of(512)
    asked = []
    for _ in range(2):
        length = len(allocator.trace)
        for address in [allocator.malloc(size * MIB) for size in (3, 30, 90)]:
            allocator.free(address)
        asked.append([e.action for e in allocator.trace[length:]].count("segment_alloc"))
    assert asked == [figures["first"], 0]
    figures.settle(grows=asked[1] > 0)


def test_C303(figures):
    assert issubclass(torch.OutOfMemoryError, RuntimeError)
    assert torch.cuda.OutOfMemoryError is torch.OutOfMemoryError
    with SimulatedCard(MIB), pytest.raises(RuntimeError, match="out of memory"):
        torch.empty(2, MIB, dtype=torch.uint8)
    figures.settle(caught=issubclass(torch.OutOfMemoryError, RuntimeError))


def forward_peak(**changes) -> float:
    return in_gib(bytes_at("forward peak", **({"attention": "stored"} | changes)))


def test_C306(figures):
    assert figures["gib"] == in_gib(bytes_at("backward peak"))
    assert figures["recomputed_gib"] == in_gib(bytes_at("backward peak", recomputation="full"))
    assert figures["accumulated_gib"] == in_gib(
        bytes_at("backward peak", micro_batch_size=2, grad_accum_steps=2)
    )
    logits = STEP.tokens_per_micro_batch * GPT2_SMALL.vocab_size * 4
    peak = estimate_memory(STEP).at("backward peak", 2)
    assert figures["logits"] == round(peak.temporary / logits, 2)
    assert figures["logits_gib"] == in_gib(peak.temporary)
    advice = {
        "recomputed": {"recomputation": "full"},
        "accumulated": {"micro_batch_size": 2, "grad_accum_steps": 2},
    }
    lower = {name: bytes_at("backward peak", **change) for name, change in advice.items()}
    figures.settle(
        **{name: num_bytes < bytes_at("backward peak") for name, num_bytes in lower.items()}
    )


def step_peak(**optimizer) -> float:
    changes = {"micro_batch_size": 1, "seq_len": 128, "optimizer": OptimizerConfig(**optimizer)}
    return in_gib(bytes_at("optimizer peak", **changes))
