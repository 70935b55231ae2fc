"""Recorded CUDA memory snapshots, no part of the book: in ``$MEMKIT_SNAPSHOTS`` or ``../shared/snapshots``."""

import os
from functools import lru_cache
from pathlib import Path

import pytest

from memkit.allocator.snapshot_files import load_snapshot

FOLDER = Path(os.environ.get("MEMKIT_SNAPSHOTS") or Path(__file__).parents[2] / "shared" / "snapshots")


@lru_cache
def recording(name: str) -> dict:
    path = FOLDER / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"{path.name} is not in $MEMKIT_SNAPSHOTS or ../shared/snapshots")
    return load_snapshot(path)
