"""The measurement against programs whose memory is known by construction."""

import datetime
import os
from itertools import pairwise

import pytest
import torch
from torch import nn

from memkit.measure import (
    NUMBER,
    RecordLine,
    cuda_entries,
    is_composite,
    measure_memory,
    replayed,
)
from memkit.models import TINY_LLAMA
from memkit.program.transformer import training_build
from memkit.recipes import AUTOCAST_BF16
from memkit.setup import TrainingSetup
from memkit.timeline import PARTS, MemoryTimeline


def known_program():
    """One weight of 4 MB, one activation of 4 KB that is kept, one tensor of 8 KB that is not."""
    weight = nn.Parameter(torch.zeros(1000, 1000))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)

    def step():
        x = torch.ones(1, 1000)
        torch.zeros(2000)
        (x @ weight).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@pytest.fixture(scope="module")
def known() -> MemoryTimeline:
    return measure_memory(known_program, device="cpu")


def test_each_part_of_a_known_program(known):
    weight = 4 * 1000 * 1000
    assert known.source == "measured" and known.device == "cpu"
    assert known.at("init").parts == dict.fromkeys(PARTS, 0) | {"weights": weight}
    forward = known.at("forward", step=1)
    # x, the sum, its gradient
    assert forward.weights == weight and forward.activations == 4 * 1000 + 4 + 4
    assert known.at("backward", step=1).gradients == weight
    assert known.at("zero_grad", step=1).optimizer_states == weight
    assert (
        known.at("optimizer", step=2).total_bytes
        == 3 * weight + known.at("optimizer", step=2).activations
    )
    thrown_away = [event for event in known.events if abs(event.num_bytes) == 8000]
    assert len(thrown_away) == 4 and {event.part for event in thrown_away} == {"temporary"}


def test_events_add_up_to_the_instants(known):
    live, peak = {}, 0
    for event in known.events:
        if event.num_bytes > 0:
            live[event.block] = event.num_bytes
        else:
            assert live.pop(event.block) == -event.num_bytes
        peak = max(peak, sum(live.values()))
    assert peak == known.peak_bytes
    assert all(event.part and event.phase for event in known.events)


def test_the_phases_follow_each_other(known):
    order = list(dict.fromkeys((i.step, i.name.removesuffix(" peak")) for i in known.instants))
    names = ["forward", "backward", "optimizer", "zero_grad"]
    assert order == [(1, "init"), *((step, name) for step in (1, 2) for name in names)]


def test_the_machine_and_its_versions_are_named(known):
    assert known.provenance["torch"] == torch.__version__ and "CPU" in known.provenance["machine"]
    assert datetime.date.fromisoformat(known.provenance["date"]) <= datetime.date.today()
    assert known.reserved_peak_bytes is None


def test_nothing_watches_the_program_while_it_is_measured():
    seen = []

    def build():
        def step():
            tensor = torch.ones(2, requires_grad=True) * 2
            tensor.register_hook(lambda grad: seen.append(torch._C._len_torch_dispatch_stack()))
            tensor.sum().backward()
            seen.append(torch._C._len_torch_dispatch_stack() + torch._C._len_torch_function_stack())

        return step

    measure_memory(build, device="cpu", steps=1)
    assert seen == [0, 0]


def test_two_measurements_agree():
    build = training_build(TrainingSetup(model=TINY_LLAMA, seq_len=32, device="cpu"))
    first, second = (measure_memory(build, device="cpu", steps=1) for _ in range(2))
    assert first.instants == second.instants
    assert [event.num_bytes for event in first.events] == [
        event.num_bytes for event in second.events
    ]


def test_scratch_and_weight_casts_are_told_apart():
    setup = TrainingSetup(model=TINY_LLAMA, precision=AUTOCAST_BF16, seq_len=32, device="cpu")
    timeline = measure_memory(training_build(setup), device="cpu", steps=1)
    scratch = [event for event in timeline.events if event.is_scratch]
    assert scratch and sum(event.num_bytes for event in scratch) == 0
    for born, freed in pairwise(scratch):
        if born.block == freed.block:
            assert born.op == freed.op
    weight = 2 * 688 * 256  # bf16 copy of an MLP matrix
    casts = [
        event
        for event in timeline.events
        if event.num_bytes == weight and event.op == "aten._to_copy"
    ]
    assert len(casts) >= 3 * 4 and {event.part for event in casts if event.phase == "forward"} == {
        "temporary"
    }


def test_a_python_number_on_its_way_into_an_operation_is_named():
    timeline = measure_memory(lambda: lambda: torch.ones(3) / 2, device="cpu", steps=1)
    assert [event.num_bytes for event in timeline.events if event.op == NUMBER] == [8, -8]


def test_hooks_are_gone_and_errors_come_through():
    def build():
        raise LookupError("the reader's own mistake")

    before = vars(torch.autograd)["_engine_run_backward"], torch.enable_grad.__enter__
    with pytest.raises(LookupError, match="own mistake"):
        measure_memory(build, device="cpu")
    assert (vars(torch.autograd)["_engine_run_backward"], torch.enable_grad.__enter__) == before


def test_composite_operations_are_seen_through():
    assert all(
        is_composite(f"aten::{name}")
        for name in ("linear", "matmul", "to", "reshape", "softmax", "layer_norm")
    )
    assert not any(
        is_composite(f"aten::{name}")
        for name in ("mm", "addmm", "sum", "_softmax", "clone", "unknown")
    )


def test_cudas_record_is_read_without_a_card():
    """Lines as ``torch.cuda.memory._snapshot`` writes them; a mark is two blocks, whose sizes a tensor may have."""

    def line(action, address, size):
        return {"action": action, "addr": address, "size": size, "stream": 0, "frames": []}

    actions, sizes = ("alloc", "free_requested", "free_completed"), (100, 7)
    mark = [line(action, 512, size) for size in sizes for action in actions]
    lines = [
        line("segment_alloc", 0, 2097152),
        line("alloc", 4096, 4000),
        *mark,
        line("alloc", 8192, 100),
        line("free_requested", 8192, 100),
        line("free_completed", 8192, 100),
        *mark,
        line("alloc", 512, 300),
        line("free_requested", 512, 300),
    ]
    entries = cuda_entries(lines, sizes)
    assert entries == [
        RecordLine(4096, 4000),
        RecordLine(),
        RecordLine(8192, 100),
        RecordLine(8192, -100),
        RecordLine(),
        RecordLine(512, 300),
        RecordLine(512, -300),
    ]
    log = replayed(
        entries,
        [
            ([("weights", {4096})], "mark", ("init",)),
            ([], "start_step", (1,)),
            ([], "end_step", ()),
        ],
    )
    assert log.parts() == ["weights", "temporary", "temporary"]
    assert log.events == [0, 1, ~1, 2, ~2] and log.live == {0}


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_missing_card_is_said():
    with pytest.raises(ValueError, match="no CUDA device"):
        measure_memory(known_program, device="cuda")


@pytest.mark.gpu
def test_a_card_is_measured_as_it_is_traced():
    from memkit.tracing.trace import trace_memory

    build = training_build(TrainingSetup(model=TINY_LLAMA, micro_batch_size=2, seq_len=128))
    measured, traced = measure_memory(build, device="cuda"), trace_memory(build)
    assert measured.reserved_peak_bytes >= measured.peak_bytes
    assert int(measured.provenance["max_memory_allocated"]) == pytest.approx(
        measured.peak_bytes, rel=0.01
    )
    assert traced.peak_bytes == pytest.approx(measured.peak_bytes, rel=0.05)


def test_a_profiler_or_a_measurement_inside_another_is_refused_in_words():
    with pytest.raises(ValueError, match="one at a time"):
        measure_memory(lambda: lambda: measure_memory(known_program, device="cpu"), device="cpu")
    with torch.profiler.profile(), pytest.raises(ValueError, match="one at a time"):
        measure_memory(known_program, device="cpu")
    assert measure_memory(known_program, device="cpu").peak_bytes > 0


def test_the_environment_is_as_it_was(monkeypatch):
    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    measure_memory(known_program, device="cpu", steps=1)
    assert "KINETO_LOG_LEVEL" not in os.environ
