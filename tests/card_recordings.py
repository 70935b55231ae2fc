"""Recorded CUDA memory snapshots, no part of the book: in ``$MEMKIT_SNAPSHOTS`` or ``../shared/snapshots``.

They are kept as compact JSON: ``events`` are rows of ``events_fields``, a segment's blocks rows of ``blocks_fields``,
of one device and without stacks.
"""

import gzip
import json
import os
from functools import lru_cache
from pathlib import Path

import pytest

FOLDER = Path(
    os.environ.get("MEMKIT_SNAPSHOTS") or Path(__file__).parents[2] / "shared" / "snapshots"
)


@lru_cache
def recording(name: str) -> dict:
    path = FOLDER / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"{path.name} is not in $MEMKIT_SNAPSHOTS or ../shared/snapshots")
    return in_torch_layout(json.loads(gzip.decompress(path.read_bytes())))


def in_torch_layout(compact: dict) -> dict:
    """The same snapshot as ``torch.cuda.memory._snapshot`` lays it out."""
    events = [dict(zip(compact["events_fields"], row, strict=True)) for row in compact["events"]]
    segments = [
        {
            **segment,
            "blocks": [
                dict(zip(compact["blocks_fields"], row, strict=True)) for row in segment["blocks"]
            ],
        }
        for segment in compact["segments"]
    ]
    kept = {key: compact[key] for key in ("source", "allocator_settings") if key in compact}
    return {**kept, "segments": segments, "device_traces": [events]}
