"""``MEMKIT_GPU_GIB`` holds in every chapter from its first CUDA call on; a bad value is refused in the setup cell."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from dev.notebooks import kind_of, notebooks, place_of

ROOT = Path(__file__).parents[2]
NOTEBOOKS = notebooks()
CHAPTERS = [path for path in NOTEBOOKS if not kind_of(path)]
PLAYED = """
import sys
from types import SimpleNamespace
import torch

torch.cuda.is_available = lambda: True
torch.cuda.get_device_properties = lambda *_: SimpleNamespace(total_memory=8 * 2**30)
torch.cuda.set_per_process_memory_fraction = lambda fraction, *_: print("fraction", fraction)
exec(compile(sys.stdin.read(), "setup cell", "exec"), {})
for call, _ in torch.cuda._queued_calls:  # what torch does at the first use of CUDA
    if call.__module__.startswith("book"):
        call()
"""


def setup_cell(chapter: Path) -> str:
    """The cell with the imports."""
    cells = nbformat.read(chapter, as_version=4).cells
    return next(cell.source for cell in cells if "setup" in cell.metadata.get("tags", []))


def in_a_kernel(chapter: Path, gib: str) -> subprocess.CompletedProcess:
    """The setup cell in a process of its own, on a card of 8 GiB that is pretended."""
    return subprocess.run(
        [sys.executable, "-c", PLAYED],
        input=setup_cell(chapter),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={
            **os.environ,
            "MEMKIT_GPU_GIB": gib,
            "MPLBACKEND": "agg",
            "PYTHONPATH": f"{ROOT}:{ROOT / 'chapters'}",
        },
        check=False,
    )


@pytest.mark.parametrize("chapter", NOTEBOOKS, ids=place_of)
def test_each_setup_cell_imports_the_book_which_caps_the_process(chapter):
    """Nothing of a chapter runs before its setup cell, and importing ``book`` is what caps; see the next test."""
    source = setup_cell(chapter)
    nodes = list(ast.walk(ast.parse(source)))
    modules = [node.module for node in nodes if isinstance(node, ast.ImportFrom)]
    modules += [
        alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names
    ]
    assert "book" in {module.partition(".")[0] for module in modules}
    assert "cuda" not in source


@pytest.mark.parametrize("number", [1, 7])
def test_the_cap_is_a_fraction_of_the_card_once_cuda_is_used(number):
    done = in_a_kernel(CHAPTERS[number], "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["fraction", "0.25"]


def test_a_bad_value_is_refused_and_named():
    done = in_a_kernel(CHAPTERS[1], "abc")
    assert (
        done.returncode and "MEMKIT_GPU_GIB='abc' is not a number of GiB above zero" in done.stderr
    )
