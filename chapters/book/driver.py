"""What NVIDIA's driver says about the cards of this machine, asked without loading torch.

Loading torch takes seconds, and its first CUDA call takes some hundred MiB of the card. ``nvidia-smi`` costs
neither. It counts what every program holds, and its total is the whole card: a process gets a little less.
"""

import csv
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from memkit.units import GIB, MIB

_FIELDS = "name uuid driver_version memory.total memory.used memory.free compute_cap".split()
_SECONDS = 20


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A card as ``nvidia-smi`` lists it; ``None`` where the driver does not tell."""

    name: str
    uuid: str
    driver_version: str
    total_bytes: int | None
    used_bytes: int | None
    free_bytes: int | None
    compute_capability: tuple[int, int] | None


@dataclass(frozen=True, kw_only=True)
class DriverAnswer:
    """The cards that a program started now would see, and a sentence about what went wrong, or ''."""

    gpus: tuple[Gpu, ...] = ()
    problem: str = ""


def ask_driver(environment: Mapping[str, str] | None = None) -> DriverAnswer:
    """Ask ``nvidia-smi`` for the cards, and keep those that ``CUDA_VISIBLE_DEVICES`` leaves visible.

    ``environment`` is this process's own where none is given.
    """
    environment = os.environ if environment is None else environment
    command = ["nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    how = {"capture_output": True, "text": True, "timeout": _SECONDS, "env": dict(environment)}
    try:
        done = subprocess.run(command, check=False, **how)
    except FileNotFoundError:
        return DriverAnswer()
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = f"nvidia-smi is there but gives no answer ({type(error).__name__})"
        return DriverAnswer(problem=problem)
    if done.returncode:
        first, *_ = *(done.stdout + done.stderr).strip().splitlines(), f"exit {done.returncode}"
        return DriverAnswer(problem=f"nvidia-smi fails: {first}")
    rows = [row for row in csv.reader(done.stdout.splitlines(), skipinitialspace=True) if row]
    if any(len(row) != len(_FIELDS) for row in rows):
        form = repr(done.stdout.splitlines()[0])
        return DriverAnswer(problem=f"nvidia-smi answers in an unknown form: {form}")
    gpus = tuple(_gpu(dict(zip(_FIELDS, row, strict=True))) for row in rows)
    visible = visible_gpus(gpus, environment.get("CUDA_VISIBLE_DEVICES"))
    hidden = "CUDA_VISIBLE_DEVICES hides every card" if gpus and not visible else ""
    return DriverAnswer(gpus=visible, problem=hidden)


def visible_gpus(gpus: tuple[Gpu, ...], setting: str | None) -> tuple[Gpu, ...]:
    """The cards that ``CUDA_VISIBLE_DEVICES=setting`` leaves, in its order.

    CUDA reads numbers or the beginnings of UUIDs and stops at the first that is no card. A MIG slice counts
    as the first card here, because its name does not tell whose it is.
    """
    if setting is None:
        return gpus
    visible = []
    for entry in (part.strip() for part in setting.split(",")):
        if entry.isdecimal() and int(entry) < len(gpus):
            visible.append(gpus[int(entry)])
        elif entry.startswith("GPU-") and any(gpu.uuid.startswith(entry) for gpu in gpus):
            visible.append(next(gpu for gpu in gpus if gpu.uuid.startswith(entry)))
        elif entry.startswith("MIG") and gpus:
            visible.append(gpus[0])
        else:
            break
    return tuple(visible)


def available_ram_bytes(system: Path = Path("/")) -> int | None:
    """Bytes of RAM a new program can have, a container's limit counted; ``None`` where nothing tells."""
    sizes = []
    try:
        text = (system / "proc/meminfo").read_text()
        sizes += [
            int(kib) * 1024 for kib in re.findall(r"^MemAvailable: *(\d+) kB", text, re.MULTILINE)
        ]
        limit = int((system / "sys/fs/cgroup/memory.max").read_text())
        sizes.append(limit - int((system / "sys/fs/cgroup/memory.current").read_text()))
    except (OSError, ValueError):
        pass
    return min(sizes, default=None)


def _gpu(fields: Mapping[str, str]) -> Gpu:
    sizes = [fields[name] for name in ("memory.total", "memory.used", "memory.free")]
    total, used, free = (int(size) * MIB if size.isdecimal() else None for size in sizes)
    major, _, minor = fields["compute_cap"].partition(".")
    capability = (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None
    named = {name: fields[name] for name in ("name", "uuid", "driver_version")}
    return Gpu(
        **named,
        total_bytes=total,
        used_bytes=used,
        free_bytes=free,
        compute_capability=capability,
    )


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
