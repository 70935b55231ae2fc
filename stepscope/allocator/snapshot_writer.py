"""A memory snapshot of a run that has not happened: a traced step in the format of PyTorch's own tools.

``torch.cuda.memory._snapshot()`` writes what a GPU did. This module writes what the model predicts, in the
same form, so that https://pytorch.org/memory_viz and ``torch/cuda/_memory_viz.py`` open it, on a machine
without a GPU.
"""

import pickle
import re
from pathlib import Path

from memkit.timeline import Event
from stepscope.allocator.heap import Block
from stepscope.allocator.replays import Replay

CATEGORIES = {
    "weights": "parameter",
    "gradients": "gradient",
    "optimizer_states": "optimizer_state",
    "activations": "activation",
    "temporary": "temporary",
}
"""Our parts in the words that the visualiser colours by."""

WORKSPACE = {"filename": "??", "line": 0, "name": "cuBLAS workspace"}


def predicted_snapshot(result: Replay) -> dict:
    """The snapshot that the replay of a trace would have left, with the traced lines as stack frames."""
    trace, frames_at, served = [], {}, set()
    events = result.timeline.events
    for index, (action, address, size) in enumerate(result.allocator.trace):
        event = events[result.causes[index]]
        is_workspace = action == "alloc" and result.causes[index] in served  # the event's second block
        frames = [WORKSPACE, *frames_of(event)] if is_workspace else frames_of(event)
        entry = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": index}
        if action == "oom":
            entry["device_free"] = entry.pop("addr")
        elif action == "alloc":
            served.add(result.causes[index])
            frames_at[address] = frames
            part = "temporary" if is_workspace else event.part
            entry["category"] = CATEGORIES.get(part, "unknown")
        elif action.startswith("free"):
            frames = frames_at[address]
        trace.append({**entry, "frames": frames})
    segments = [_segment(run, frames_at) for run in result.allocator.segments()]
    return {
        "segments": segments,
        "device_traces": [trace],
        "allocator_settings": {"max_split_size": -1, "expandable_segments": result.config.expandable_segments},
        "external_annotations": [],
    }


def frames_of(event: Event) -> list[dict]:
    """Stack frames, innermost first: the operation, the model's line, the phase of the step."""
    frames = [{"filename": "??", "line": 0, "name": event.op}] if event.op else []
    for where in event.where.splitlines():
        match = re.fullmatch(r"(backward of )?(.+?):(\d+)\s*(.*)", where)
        side, file, line, name = match.groups() if match else ("", "??", 0, where)
        frames.append({"filename": file, "line": int(line), "name": (side or "") + name})
    return [*frames, {"filename": "??", "line": 0, "name": event.phase or "unknown phase"}]


def _segment(run: list[Block], frames_at: dict[int, list[dict]]) -> dict:
    head = run[0]
    return {
        "device": 0,
        "address": head.address,
        "total_size": sum(block.size for block in run),
        "allocated_size": sum(block.size for block in run if block.allocated),
        "active_size": sum(block.size for block in run if not block.is_free),
        "requested_size": sum(block.requested_bytes for block in run if not block.is_free),
        "stream": 0,
        "segment_type": "small" if head.pool.is_small else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": head.span is not None,
        "frames": [],
        "blocks": [
            {
                "address": block.address,
                "size": block.size,
                "requested_size": block.requested_bytes,
                "state": block.state,
                "frames": [] if block.is_free else frames_at[block.address],
            }
            for block in run
        ],
    }


def write_snapshot(snapshot: dict, path: str | Path) -> Path:
    """Write a snapshot as the pickle that pytorch.org/memory_viz reads.

    It has protocol 4: the public viewer refuses protocol 5, which is Python 3.14's default (pytorch/pytorch#183842).
    Whoever dumps a snapshot there writes it again with this function.
    """
    path = Path(path)
    path.write_bytes(pickle.dumps(snapshot, protocol=4))
    return path
