"""A diagnosis finds what was planted and promises nothing; a report promises what the changed program takes."""

import re
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
import torch
from training_loop import training

from memkit.timeline import Event, Instant, MemoryTimeline
from memkit.units import MIB, format_bytes
from stepscope.advice.changes import EXPANDABLE_SEGMENTS, FOR_LOOP, NO_GRAD, SET_TO_NONE
from stepscope.advice.diagnosis import diagnose_memory, growing_lines
from stepscope.allocator.replay import replay_trace
from stepscope.allocator.snapshots import predicted_snapshot
from stepscope.tool.program_report import report_on
from stepscope.tracing.trace import trace_script


def build(batch: int = 2048, leak: list | None = None):
    model = torch.nn.Sequential(
        torch.nn.Linear(1000, 4000), torch.nn.GELU(), torch.nn.Linear(4000, 1000)
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(batch, 1000, device="cuda")

    def step():
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if leak is not None:
            leak.append(x.sign())

    return step


@pytest.mark.parametrize("steps", [2, 3, 6])
def test_a_planted_leak_is_named_with_its_bytes_and_is_to_be_mended_first(steps):
    trace = trace_script(lambda: build(leak=[]), steps=steps)
    page = diagnose_memory(trace)
    [leak] = growing_lines(trace.events)
    assert leak.num_bytes == steps * 2048 * 1000 * 4
    file, number = re.match(r"(.+):(\d+)", leak.where).groups()
    assert file == Path(__file__).name
    assert "leak.append" in Path(__file__).read_text(encoding="utf-8").splitlines()[int(number) - 1]
    assert page.growing == (leak,)
    assert page.cures[0].name == f"let go of what {leak.where} leaves behind"


@pytest.mark.parametrize("steps", [2, 3, 6])
def test_a_run_without_a_leak_grows_nowhere(steps):
    assert not growing_lines(trace_script(build, steps=steps).events)


def test_a_trace_s_page_counts_workspaces_where_a_card_is_named():
    trace = trace_script(build)
    without, page = diagnose_memory(trace), diagnose_memory(trace, compute_capability=(9, 0))
    assert (
        page.result.peak_allocated_bytes
        == replay_trace(trace, compute_capability=(9, 0)).peak_allocated_bytes
    )
    # one thread's at least
    assert page.result.peak_allocated_bytes >= without.result.peak_allocated_bytes + 32 * MIB
    assert page.parts == without.parts  # a workspace is in no tensor


def test_the_page_says_what_stands_at_the_peak():
    page = diagnose_memory(trace_script(build))
    trace = trace_script(build)
    asked = {part: size for part, size in trace.peak.parts.items() if size}
    assert page.parts.keys() == asked.keys()
    for part, size in page.parts.items():
        assert 0 <= asked[part] - size < 64 * 512  # the trace rounds each block up to 512 bytes
    text = str(page)
    assert (
        f"reached in {trace.peak.name.removesuffix(' peak')} of step {trace.peak.step} of 2" in text
    )
    assert f"{Path(__file__).name}:" in text and "point to" in text
    assert sum(line.num_bytes for line in page.lines) <= sum(page.parts.values())


def deep(foreach: bool):
    model = torch.nn.Sequential(*(torch.nn.Linear(1000, 1000) for _ in range(12))).cuda()
    adamw = partial(torch.optim.AdamW, foreach=foreach)
    return training(model, lambda: model(torch.ones(16, 1000, device="cuda")).sum(), adamw)


def test_a_change_is_promised_what_the_program_with_it_takes():
    """Seen by the page without a number; by the report with the bytes of the program that steps so by itself."""
    page = diagnose_memory(trace_script(lambda: deep(foreach=True)))
    assert FOR_LOOP in page.cures and all(change.how == "replay" for change in page.changes)
    report = report_on(lambda: deep(foreach=True))
    change = next(
        change for change in report.changes if change.change.program in ("for_loop", "fused")
    )
    real = replay_trace(trace_script(lambda: deep(foreach=False))).peak_reserved_bytes
    assert change.how == "second trace" and change.after_bytes <= real
    assert change.saved_bytes > 30 * MIB


def test_a_page_says_since_when_a_line_holds_its_bytes():
    page = diagnose_memory(trace_script(build))
    since = {line.part: line.since for line in page.lines}
    assert since["weights"] == "init" and since["optimizer_states"] == "step 1, optimizer"
    recorded = diagnose_memory(predicted_snapshot(replay_trace(trace_script(build))))
    assert all(
        line.since and line.since in " ".join(str(recorded).split()) for line in recorded.lines
    )


def test_the_page_of_a_recording_says_what_a_recording_says():
    recorded = predicted_snapshot(replay_trace(trace_script(lambda: build(leak=[]), steps=6)))
    page, text = diagnose_memory(recorded), " ".join(str(diagnose_memory(recorded)).split())
    assert set(page.parts) == {None} and "in memory at the peak" not in text
    kept = sum(
        b["requested_size"]
        for s in recorded["segments"]
        for b in s["blocks"]
        if b["state"] != "inactive"
    )
    assert (
        f"A recording names no parts. At its end {format_bytes(kept)} stand, 0 B of them from before it."
        in text
    )
    reserved = page.recorded.timeline.reserved_peak_bytes
    assert page.peak_reserved_bytes == page.result.peak_reserved_bytes == reserved
    assert page.cures[0].name.startswith("let go of what ") and str(page.cures[0].name) in text
    assert all(change.change is EXPANDABLE_SEGMENTS for change in page.changes)
    assert all(change.before_bytes == reserved > change.after_bytes for change in page.changes)


def test_a_failure_is_part_of_the_page():
    page = diagnose_memory(trace_script(build), capacity_bytes=60 * MIB)
    assert page.result.failure is not None
    assert "CUDA out of memory. Tried to allocate" in " ".join(str(page).split())


def test_a_run_that_nothing_helps_says_so():
    end = Instant(name="end", total_bytes=0)
    page = diagnose_memory(
        MemoryTimeline(instants=(end,), source="traced", events=(Event(0, 512),))
    )
    assert page.changes == page.cures == ()
    assert "Of what was tried, nothing lowers what the allocator reserves." in str(
        page
    ) and "point to no cure" in str(page)
    with pytest.raises(ValueError, match="no events"):
        diagnose_memory(MemoryTimeline(instants=(end,), source="traced"))


def twelve_layers() -> torch.nn.Module:
    """Twelve times a Linear and a GELU."""
    layers = (torch.nn.Sequential(torch.nn.Linear(500, 500), torch.nn.GELU()) for _ in range(12))
    return torch.nn.Sequential(*layers).cuda()


def deep_training():
    model, x = twelve_layers(), torch.randn(4096, 500, device="cuda")
    return training(model, lambda: model(x).sum())


def forward_only(keeps_graph: bool):
    model = twelve_layers()

    def step():
        with nullcontext() if keeps_graph else torch.no_grad():
            model(torch.randn(4096, 500, device="cuda"))

    return step


def test_a_forward_without_a_backward_brings_no_grad():
    """And the report says what the same program takes when it does so."""
    real = replay_trace(trace_script(lambda: forward_only(keeps_graph=False))).peak_reserved_bytes
    trace = trace_script(lambda: forward_only(keeps_graph=True))
    for source in (trace, predicted_snapshot(replay_trace(trace))):
        assert diagnose_memory(source).cures[0] is NO_GRAD
    assert report_on(lambda: forward_only(keeps_graph=True)).changes[0].after_bytes == real
    plain = trace_script(lambda: forward_only(keeps_graph=False))
    for source in (plain, predicted_snapshot(replay_trace(plain))):
        assert NO_GRAD not in diagnose_memory(source).cures


@pytest.mark.parametrize("name", ["look_backward.py:10 run", "eval.py:10 look_backward"])
def test_a_name_with_backward_in_it_is_no_backward(name):
    """The cure is the same whatever a reader calls his file and his function."""
    snapshot = predicted_snapshot(
        replay_trace(trace_script(lambda: forward_only(keeps_graph=True)))
    )
    file, function = name.split(":10 ")
    for entry in snapshot["device_traces"][0]:
        entry["frames"] = [{"filename": file, "line": 10, "name": function}]
    assert diagnose_memory(snapshot).cures[0] is NO_GRAD
    births = [entry for entry in snapshot["device_traces"][0] if entry["action"] == "alloc"]
    births[-1]["frames"] = [{"filename": "own_function.py", "line": 7, "name": "backward"}]
    assert NO_GRAD not in diagnose_memory(snapshot).cures


@pytest.mark.parametrize("capacity", [60, 80, 100, 140])
def test_a_training_that_dies_in_its_first_forward_is_not_told_to_need_no_gradients(capacity):
    """The dying forward lets its graph go, as an evaluation does; what follows was never recorded."""
    snapshot = predicted_snapshot(
        replay_trace(trace_script(deep_training), capacity_bytes=capacity * MIB)
    )
    events = snapshot["device_traces"][0]
    assert events[-1]["action"] == "oom"
    standing = {entry["addr"]: entry for entry in events if entry["action"] == "alloc"}
    for entry in events:
        if entry["action"] == "free_completed":
            standing.pop(entry["addr"])
    for entry in list(standing.values())[25:]:  # all but the weights and the batch
        events += [{**entry, "action": action} for action in ("free_requested", "free_completed")]
        for block in (block for segment in snapshot["segments"] for block in segment["blocks"]):
            if block["address"] == entry["addr"]:
                block["state"] = "inactive"
    assert NO_GRAD not in diagnose_memory(snapshot).cures
    died = trace_script(deep_training)
    assert NO_GRAD not in diagnose_memory(died, capacity_bytes=capacity * MIB).cures


def test_gradients_that_stand_through_the_forward_are_seen_and_set_to_none():
    def trained(set_to_none: bool):
        model = torch.nn.Sequential(*(torch.nn.Linear(1000, 1000) for _ in range(8))).to("cuda")
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

        def step():
            torch.ones(64_000_000, device="cuda").sum()  # the peak: what stands through it counts
            model(torch.ones(16, 1000, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)

        return step

    assert (
        SET_TO_NONE
        in diagnose_memory(trace_script(lambda: trained(set_to_none=False), steps=3)).cures
    )
    assert (
        SET_TO_NONE
        not in diagnose_memory(trace_script(lambda: trained(set_to_none=True), steps=3)).cures
    )
    before, after = (
        replay_trace(trace_script(partial(trained, way), steps=3)) for way in (False, True)
    )
    assert before.peak_allocated_bytes > after.peak_allocated_bytes
    promised = {
        effect.change for effect in report_on(lambda: trained(set_to_none=False), steps=3).changes
    }
    # holes took it here
    assert (SET_TO_NONE in promised) == (before.peak_reserved_bytes > after.peak_reserved_bytes)
