"""Memory that no tensor asks for: the workspaces of cuBLAS and cuBLASLt, per card and version of torch.

The first matrix product of a process makes PyTorch allocate a scratch buffer for cuBLAS from the caching
allocator, and keep it. It counts in ``memory_allocated``, yet no tensor owns it. This is the 8,519,680 B
(8.125 MiB) that stay after everything is deleted (pytorch/pytorch#95668).

A buffer belongs to a cuBLAS handle and a stream, and a handle belongs to a thread. Autograd runs the backward
in a thread of its own, so a training step holds **two** buffers and inference one.
"""

import re

from memkit.units import KIB

SMALLER_BYTES, LARGER_BYTES = 2 * 4096 * KIB + 8 * 16 * KIB, 8 * 4096 * KIB
"""``:4096:2:16:8`` and ``:4096:8``.

Source: aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize (pytorch/pytorch#91564). cuBLASLt has 1 MiB of
its own (CUDABlas.cpp, _parseChosenWorkspaceSize, #73328), allocated and freed around each call, only where it does not
share cuBLAS's. Sharing is the default since #168175; ``TORCH_CUBLASLT_UNIFIED_WORKSPACE=0`` ends it. Versions between
(#156495) kept a second buffer for cuBLASLt.
"""

LARGER_SINCE = {
    9: (2, 0),  # pytorch/pytorch#91564
    10: (2, 12),  # pytorch/pytorch#175344; a B200 with torch 2.11 took the smaller one (test_b200.py)
    11: (2, 14),  # pytorch/pytorch#189312, merged in July 2026, after 2.13 was cut
    12: (2, 12),  # pytorch/pytorch#175344
}
"""By major compute capability, the version of torch from which on it takes the larger one; all others never do."""

NEWEST = "2.13"
"""The version of torch that is meant where none is named."""


def workspace_bytes(compute_capability: tuple[int, int], torch_version: str = NEWEST) -> int:
    """Bytes of one cuBLAS workspace, where ``CUBLAS_WORKSPACE_CONFIG`` does not say otherwise.

    Raises: ValueError: a version that is none or is below 2.0, no pair of numbers.

    >>> workspace_bytes((8, 0)), workspace_bytes((9, 0))
    (8519680, 33554432)
    >>> workspace_bytes((10, 0), torch_version="2.11.0+cu128"), workspace_bytes((10, 0), torch_version="2.12.0")
    (8519680, 33554432)
    """
    digits = re.match(r"(\d+)\.(\d+)", torch_version)
    version = (int(digits[1]), int(digits[2])) if digits else (0, 0)
    if version < (2, 0):
        raise ValueError(f"torch_version={torch_version!r} is not 2.0 or later")
    return LARGER_BYTES if version >= LARGER_SINCE.get(compute_capability[0], (99, 0)) else SMALLER_BYTES


def training_workspace_bytes(compute_capability: tuple[int, int]) -> int:
    """Bytes of workspaces that a training step holds: one for the forward's thread, one for the backward's.

    >>> training_workspace_bytes((8, 0))
    17039360
    """
    return 2 * workspace_bytes(compute_capability)
