"""One step under torch's profiler, and its operations by the memory that each took itself."""

import os
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

from memkit.units import aligned_table, as_whole_number, format_bytes


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
