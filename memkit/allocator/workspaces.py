"""Memory that no tensor asks for: the workspaces of cuBLAS and cuBLASLt, per card and version of torch.

The first matrix product of a process makes PyTorch allocate a scratch buffer for cuBLAS from the caching
allocator, and keep it. It counts in ``memory_allocated``, yet no tensor owns it. This is the 8,519,680 B
(8.125 MiB) that stay after everything is deleted (pytorch/pytorch#95668).

A buffer belongs to a cuBLAS handle and a stream, and a handle belongs to a thread. Autograd runs the backward
in a thread of its own, so a training step holds **two** buffers and inference one.
"""

import re
from dataclasses import dataclass

from memkit.units import KIB


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """Bytes of one library's workspace on cards of some compute capabilities, with its source."""

    library: str
    majors: tuple[int, ...]  # major compute capability of the card; empty means every other card
    since: tuple[int, int]  # torch's version
    num_bytes: int
    is_kept: bool  # kept per thread and stream, or allocated and freed around each call
    source: str


_HANDLE_POOL = "aten/src/ATen/cuda/CublasHandlePool.cpp"
WORKSPACES = (
    Workspace(
        library="cublas",
        majors=(9,),
        since=(2, 0),
        num_bytes=8 * 4096 * KIB,
        is_kept=True,
        source=f"{_HANDLE_POOL}, parseChosenWorkspaceSize (pytorch/pytorch#91564)",
    ),
    Workspace(
        library="cublas",
        majors=(10, 12),
        since=(2, 12),
        num_bytes=8 * 4096 * KIB,
        is_kept=True,
        source="pytorch/pytorch#175344; a B200 with torch 2.11 took the smaller one (tests/allocator/test_b200.py)",
    ),
    Workspace(
        library="cublas",
        majors=(11,),
        since=(2, 14),
        num_bytes=8 * 4096 * KIB,
        is_kept=True,
        source="pytorch/pytorch#189312, merged in July 2026, after 2.13 was cut",
    ),
    Workspace(
        library="cublas",
        majors=(),
        since=(2, 0),
        num_bytes=2 * 4096 * KIB + 8 * 16 * KIB,  # ":4096:2:16:8"
        is_kept=True,
        source=f"{_HANDLE_POOL}, parseChosenWorkspaceSize (pytorch/pytorch#91564)",
    ),
    Workspace(
        library="cublaslt",
        majors=(),
        since=(2, 0),
        num_bytes=1024 * KIB,
        is_kept=False,
        source="aten/src/ATen/cuda/CUDABlas.cpp, _parseChosenWorkspaceSize (pytorch/pytorch#73328)",
    ),
)
"""cuBLASLt's own 1 MiB exists only where it does not share cuBLAS's workspace.

Sharing is the default since pytorch/pytorch#168175; ``TORCH_CUBLASLT_UNIFIED_WORKSPACE=0`` ends it. Versions
between (#156495) kept a second buffer for cuBLASLt.
"""


NEWEST = "2.13"
"""The version of torch that is meant where none is named."""


def workspace_bytes(
    compute_capability: tuple[int, int], config: str | None = None, torch_version: str = NEWEST
) -> int:
    """Bytes of one cuBLAS workspace; ``config`` is the text of ``CUBLAS_WORKSPACE_CONFIG``, ``:KiB:count``
    pairs.

    Raises: ValueError: a text without such a pair, a version that is none or is below 2.0.

    >>> workspace_bytes((8, 0)), workspace_bytes((9, 0)), workspace_bytes((9, 0), ":16:8")
    (8519680, 33554432, 131072)
    >>> workspace_bytes((10, 0), torch_version="2.11.0+cu128"), workspace_bytes((10, 0), torch_version="2.12.0")
    (8519680, 33554432)
    """
    pairs = re.findall(r":(\d+):(\d+)", config or "")
    if pairs:
        return sum(int(kib) * KIB * int(count) for kib, count in pairs)
    if config:
        raise ValueError(f"CUBLAS_WORKSPACE_CONFIG={config!r} has no :KiB:count pair, such as :4096:2:16:8")
    found = re.match(r"(\d+)\.(\d+)", torch_version)
    version = (int(found[1]), int(found[2])) if found else (0, 0)
    for row in WORKSPACES:
        is_of_card = not row.majors or compute_capability[0] in row.majors
        if row.library == "cublas" and is_of_card and version >= row.since:
            return row.num_bytes
    raise ValueError(f"torch_version={torch_version!r} is not 2.0 or later")


def training_workspace_bytes(compute_capability: tuple[int, int]) -> int:
    """Bytes of workspaces that a training step holds: one for the forward's thread, one for the backward's.

    >>> training_workspace_bytes((8, 0))
    17039360
    """
    return 2 * workspace_bytes(compute_capability)
