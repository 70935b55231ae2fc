"""Read what a profiler's trace tells: launches, kernels, streams, and what overlaps.

``torch.profiler`` writes a JSON list of events with a start and a length in microseconds. Operations and
launches belong to threads of the host, kernels and copies to streams of the GPU. The host only launches; a
kernel starts when its stream gets there.

Source: the "Trace Event Format" of Chrome's tracing, and the categories that Kineto writes (torch 2.13).
"""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from memkit.allocator.recorded import checked, field
from memkit.allocator.snapshot_files import MAX_BYTES
from memkit.units import aligned_table, as_whole_number, format_bytes

HOST, LAUNCH, DEVICE = ("cpu_op",), ("cuda_runtime", "cuda_driver"), ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCH_WORDS = ("Launch", "Memcpy", "Memset")
MOST_MICROSECONDS = 1e18  # some 30,000 years; a clock that counts from 1970 has 1.8e15


@dataclass(frozen=True, kw_only=True)
class ExecutionTrace:
    """What a trace holds, in counts and microseconds. ``streams`` maps a stream to its (start, end) spans."""

    num_operations: int
    num_launches: int
    num_kernels: int
    streams: dict[int, tuple[tuple[float, float], ...]]
    launch_delay_us: float  # from a launch to its kernel's start, the longest

    def __str__(self) -> str:
        counts = f"{self.num_operations} operations, {self.num_launches} launches, {self.num_kernels} kernels"
        busy = "".join(f"stream {stream} busy {time:g} µs, " for stream, time in self.busy_us.items())
        return f"{counts}\n{busy}overlap {self.overlap_us:g} µs, idle {self.idle_us:g} µs"

    @property
    def busy_us(self) -> dict[int, float]:
        """Time in which each stream runs something."""
        return {stream: _length(_union(spans)) for stream, spans in self.streams.items()}

    @property
    def overlap_us(self) -> float:
        """What running side by side saves: the streams' busy times less the time in which any of them runs."""
        together = _length(_union([span for spans in self.streams.values() for span in spans]))
        return sum(self.busy_us.values()) - together

    @property
    def idle_us(self) -> float:
        """Time between the first kernel's start and the last one's end in which no stream runs anything."""
        spans = _union([span for spans in self.streams.values() for span in spans])
        return spans[-1][1] - spans[0][0] - _length(spans) if spans else 0.0


def read_execution_trace(source: str | Path | Sequence[dict]) -> ExecutionTrace:
    """The trace in a file of ``export_chrome_trace``, or in a list of its events.

    Raises: ValueError: the file is no such trace, or is larger than ``MAX_BYTES``; a field of an event is missing,
    of another type or out of its range.
    """
    events = _events_in(Path(source)) if isinstance(source, (str, Path)) else source
    whole = []
    for index, event in enumerate(events):
        if checked(event, f"event {index}", dict).get("ph") == "X":
            whole.append((event, f"event {index}"))
    launches, kernels = [], []
    for event, place in whole:
        kind = event.get("cat")
        if kind in DEVICE:
            kernels.append((event, place))
        elif kind in LAUNCH and any(word in field(event, place, "name", str) for word in LAUNCH_WORDS):
            launches.append((event, place))
    streams: dict[int, list] = {}
    for kernel, place in kernels:
        start = _moment(kernel, place, "ts")
        stream = field(field(kernel, place, "args", dict), f"{place}.args", "stream", int)
        streams.setdefault(stream, []).append((start, start + _moment(kernel, place, "dur")))
    launched = {_correlation(event, place): _moment(event, place, "ts") for event, place in launches}
    launched.pop(None, None)
    pairs = [(_correlation(event, place), _moment(event, place, "ts")) for event, place in kernels]
    delays = [start - launched[number] for number, start in pairs if number in launched]
    return ExecutionTrace(
        num_operations=sum(event.get("cat") in HOST for event, _ in whole),
        num_launches=len(launches),
        num_kernels=len(kernels),
        streams={stream: tuple(sorted(spans)) for stream, spans in sorted(streams.items())},
        launch_delay_us=max(delays, default=0.0),
    )


def _events_in(path: Path) -> list:
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{path.name} has {path.stat().st_size} B; up to {MAX_BYTES} are read as a trace")
    try:
        return checked(json.loads(path.read_text(encoding="utf-8"))["traceEvents"], "traceEvents", list)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path.name} is not a trace of torch.profiler: {error}") from error


def _moment(event: dict, place: str, key: str) -> float:
    """A time or a length in microseconds."""
    value = event.get(key)
    if type(value) not in (int, float) or not 0 <= value < MOST_MICROSECONDS:
        raise ValueError(f"{place}.{key}={str(value)[:60]!r} is not a number of microseconds")
    return float(value)


def _correlation(event: dict, place: str) -> int | None:
    """The number that a launch shares with its kernel."""
    return field(field(event, place, "args", dict, {}), f"{place}.args", "correlation", int, None)


def _union(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The same moments in spans that do not touch."""
    joined: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _length(spans: Sequence[tuple[float, float]]) -> float:
    return sum(end - start for start, end in spans)


def profiled_step(step: Callable[[], object]) -> profile:
    """Run ``step()`` once under ``torch.profiler`` with ``profile_memory=True``; its own log lines stay away."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, profile_memory=True, acc_events=True) as profiler:
        step()
    return profiler


def own_memory_table(profiler: profile, num_rows: int = 8) -> str:
    """``key_averages`` by the memory each operation took itself, less what it gave back, the largest first.

    On a GPU the device's memory; without one, the CPU's.
    """
    kind = "device" if torch.cuda.is_available() else "cpu"
    rows = [["operation", "calls", "own memory, net"]]
    averages = [(getattr(row, f"self_{kind}_memory_usage"), row) for row in profiler.key_averages()]
    ranked = sorted(averages, key=lambda pair: (-pair[0], pair[1].key))
    for num_bytes, row in ranked[: as_whole_number("num_rows", num_rows, minimum=1)]:
        rows.append([row.key, str(row.count), format_bytes(num_bytes)])
    return aligned_table(rows)
