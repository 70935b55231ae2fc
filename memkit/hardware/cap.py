"""The reader's own cap on a shared card, read without loading torch."""

import os
from collections.abc import Mapping

from memkit.units import GIB

CAP_VARIABLE = "MEMKIT_GPU_GIB"
"""The environment variable that caps what this process may take of the card, in GiB."""


def gpu_cap_bytes(environment: Mapping[str, str] | None = None) -> int | None:
    """Bytes that ``MEMKIT_GPU_GIB`` allows this process on the card, or ``None`` where it is not set.

    >>> gpu_cap_bytes({"MEMKIT_GPU_GIB": "1.5"})
    1610612736

    Raises: ValueError: the variable is no number above zero.
    """
    environment = os.environ if environment is None else environment
    text = environment.get(CAP_VARIABLE, "").strip()
    if not text:
        return None
    try:
        cap = int(float(text) * GIB)
    except (ValueError, OverflowError):
        cap = 0
    if cap <= 0:
        raise ValueError(f"{CAP_VARIABLE}={text[:60]!r} is not a number of GiB above zero")
    return cap
