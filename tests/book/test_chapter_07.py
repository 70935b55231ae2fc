"""What chapter 07 quotes in a fence: PyTorch's own ``memory_summary`` on the figures of the allocator's model."""

import json
from collections import defaultdict
from pathlib import Path

import torch

from memkit.allocator import CachingAllocator, Driver
from memkit.units import GIB, KIB, MIB

CHAPTER = Path(__file__).parents[2] / "chapters" / "07_measuring_and_oom.ipynb"


def quoted_lines() -> list[str]:
    cells = {cell["id"]: "".join(cell["source"]) for cell in json.loads(CHAPTER.read_text("utf-8"))["cells"]}
    return cells["four-read"].partition("```text\n")[2].partition("\n```")[0].splitlines()


def test_the_quoted_summary_is_pytorchs_own_text_of_the_models_figures(monkeypatch):
    allocator = CachingAllocator(driver=Driver(8 * GIB, outside_bytes=450 * MIB))
    held = [allocator.malloc(size) for size in (4, 700 * KIB, 3 * MIB, 25 * MIB)]
    made = dict(allocator.current)
    for address in held[2:]:
        allocator.free(address)
    stats = defaultdict(int)
    for name, total in made.items():
        prefix = f"{name}_bytes.all."
        stats[prefix + "current"], stats[prefix + "peak"] = allocator.current[name], allocator.peak[name]
        stats[prefix + "allocated"], stats[prefix + "freed"] = total, total - allocator.current[name]
    stats["num_ooms"], stats["num_alloc_retries"] = 0, 0
    monkeypatch.setattr("torch.cuda.memory.memory_stats", lambda device=None: stats)
    monkeypatch.setattr("torch.cuda.memory._get_device_index", lambda *args, **kwargs: 0)
    said = torch.cuda.memory.memory_summary(abbreviated=True).splitlines()
    assert len(quoted_lines()) == 3
    assert all(line in said for line in quoted_lines())
