"""Is this machine ready for the book, and what is to be done if not?

``doctor()`` reads package metadata, asks the driver and looks at the memory. It loads no torch, so that a
kernel that only moves a slider stays small. It writes no path and no name: a page may keep its output.
"""

import importlib.util
import logging
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from book.driver import CAP_VARIABLE, Gpu, ask_driver, available_ram_bytes, gpu_cap_bytes
from memkit.cards import MIN_CAPABILITY, matrix_dtypes
from memkit.units import GIB, Printable, aligned_table, format_bytes, on_page

OLDEST_TORCH, NEWEST_TORCH = (2, 11), (2, 14)
OLDEST_IPYWIDGETS = (8, 1)
OLDEST_PYTHON = (3, 11)
WANTED_RAM_BYTES = 4 * GIB
WANTED_GPU_BYTES = 2 * GIB
"""No chapter takes more of a card; see the second line of each chapter."""

OTHER_PACKAGES = {
    "ipywidgets": "each explorer is the picture above it",
    "numpy": "nothing runs without it",
    "resvg-py": "cells store their pictures as SVG, which GitHub and an untrusted notebook may not show",
    "jupyterlab": "another notebook program is needed",
    "anywidget": "sliders work, but screen readers hear no names and Notebook takes the arrow keys",
}


@dataclass(frozen=True)
class Finding:
    """One thing looked at: what is there, in a word how it is, and what to do about it ('' if nothing)."""

    name: str
    found: str
    verdict: str = "ok"
    advice: str = ""


@dataclass(frozen=True, kw_only=True)
class Diagnosis(Printable):
    """What ``doctor()`` found; ``mode`` is ``"GPU"`` or ``"CPU"``: where this book's cells will run."""

    mode: str
    gpu: Gpu | None
    cap_bytes: int | None
    findings: tuple[Finding, ...]

    @property
    def advice(self) -> tuple[str, ...]:
        """What to do, one sentence a piece."""
        return tuple(finding.advice for finding in self.findings if finding.advice)

    @property
    def headline(self) -> str:
        """Whether everything is there, in a sentence or two."""
        if self.advice:
            return f"{len(self.advice)} {'thing needs' if len(self.advice) == 1 else 'things need'} a look, said below."
        if self.gpu is None:
            return "Everything is there. No NVIDIA card: that is fine, every cell runs on the CPU."
        return f"Everything is there. The cells run on the {self.gpu.name}."

    def table(self) -> str:
        """Whether everything is there, the findings as aligned text, and what to do."""
        rows = [[finding.name, finding.found, finding.verdict] for finding in self.findings]
        table = aligned_table([[f"{self.mode} mode", "found", ""], *rows])
        advice = (f"{number}. {text}" for number, text in enumerate(self.advice, 1))
        return on_page(self.headline, table, *advice, between="\n")

    __str__ = __repr__ = table


def doctor(environment: Mapping[str, str] | None = None) -> Diagnosis:
    """Look at Python, packages, driver, card and RAM; a cell that ends in this call shows the table.

    ``environment`` are variables to look at in place of this process's own.

    >>> from book import doctor
    >>> doctor({"CUDA_VISIBLE_DEVICES": ""}).mode
    'CPU'
    """
    environment = os.environ if environment is None else environment
    answer = ask_driver(environment)
    gpu = answer.gpus[0] if answer.gpus else None
    try:
        cap_bytes, cap = gpu_cap_bytes(environment), None
    except ValueError as error:
        cap_bytes = None
        cap = Finding("cap", "unreadable", "!", f"{error}.")
    if cap_bytes is not None:
        cap = Finding("cap", format_bytes(cap_bytes), CAP_VARIABLE)
    torch, runs_cuda = _torch_finding(gpu)
    findings = [
        _python_finding(),
        torch,
        *(_package_finding(name, without) for name, without in OTHER_PACKAGES.items()),
        *_gpu_findings(gpu, answer.problem, cap_bytes),
        *([cap] if cap else []),
        _ram_finding(),
    ]
    mode = "GPU" if gpu is not None and runs_cuda else "CPU"
    return Diagnosis(mode=mode, gpu=gpu, cap_bytes=cap_bytes, findings=tuple(findings))


@contextmanager
def quietly() -> Iterator[None]:
    """No logged warnings inside: while it is imported, torchao tells of kernels that this machine has no use for."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def installed_version(package: str) -> str | None:
    """The version a package's metadata names, or ``None``; the package is not loaded."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def torch_backend() -> str | None:
    """``"cuda 13.0"``, ``"rocm 6.4"`` or ``None``, read from torch's version file; torch is not loaded."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.origin:
        return None
    try:
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    for variable, backend in (("cuda", "cuda"), ("hip", "rocm")):
        if found := re.search(rf"^{variable}\b[^=]*= *'([^']+)'", text, re.MULTILINE):
            return f"{backend} {found[1]}"
    return None


def version_numbers(version: str) -> tuple[int, int]:
    """The first two numbers of a version."""
    major, minor = (re.findall(r"\d+", version) + ["0", "0"])[:2]
    return int(major), int(minor)


def _python_finding() -> Finding:
    version = platform.python_version()
    if sys.version_info[:2] < OLDEST_PYTHON:
        return Finding("Python", version, "old", "Use Python 3.11 or later.")
    return Finding("Python", version)


def _torch_finding(gpu: Gpu | None) -> tuple[Finding, bool]:
    version, backend = installed_version("torch"), torch_backend()
    if version is None:
        advice = (
            "Install torch 2.13 (`make lab` does); without it only formulas and explorers work."
        )
        return Finding("torch", "not installed", "missing", advice), False
    found = f"{version.split('+')[0]}, {backend or 'CPU build'}"
    span = f"{OLDEST_TORCH[0]}.{OLDEST_TORCH[1]} to {NEWEST_TORCH[0]}.{NEWEST_TORCH[1]}"
    if version_numbers(version) < OLDEST_TORCH:
        verdict = "old"
        advice = f"This book's byte counts hold for torch {span}; install one of them."
    elif gpu is not None and backend is None:
        verdict = "CPU only"
        advice = "The card lies idle: this torch was built without CUDA; reinstall it."
    elif backend and backend.startswith("rocm"):
        verdict = "untested"
        advice = "torch for ROCm calls an AMD card cuda; this book is not tested there."
    elif version_numbers(version) > NEWEST_TORCH:
        verdict = "newer"
        advice = f"The book is tested with torch {span}: with yours its cells run, and a byte count may differ."
    else:
        verdict, advice = "ok", ""
    return Finding("torch", found, verdict, advice), backend is not None


def _package_finding(name: str, without: str) -> Finding:
    version = installed_version(name)
    if version is None:
        advice = f"Without {name}: {without}. pip install {name}"
        return Finding(name, "not installed", "missing", advice)
    if name == "ipywidgets" and version_numbers(version) < OLDEST_IPYWIDGETS:
        advice = f"ipywidgets {version} lacks what the explorers use: pip install 'ipywidgets>=8.1'"
        return Finding(name, version, "old", advice)
    return Finding(name, version)


def _gpu_findings(gpu: Gpu | None, problem: str, cap_bytes: int | None) -> list[Finding]:
    if gpu is None:
        return [_no_gpu_finding(problem)]
    findings = [
        Finding("card", gpu.name),
        Finding("driver", gpu.driver_version),
    ]
    free, verdict, advice = gpu.free_bytes, "ok", ""
    limits = (free, cap_bytes, gpu.total_bytes, WANTED_GPU_BYTES)
    usable = min(size for size in limits if size is not None)
    if usable < WANTED_GPU_BYTES:
        verdict = "little"
        advice = (
            f"{format_bytes(usable)} of the card are usable; chapters make themselves that small."
        )
    found = f"{format_bytes(free)} of {format_bytes(gpu.total_bytes)}"
    findings.append(Finding("free on the card", found, verdict, advice))
    if gpu.compute_capability:
        runs = matrix_dtypes(gpu.compute_capability)
        lacks = [dtype for dtype in MIN_CAPABILITY if dtype not in runs]
        findings.append(Finding("multiplies", ", ".join(runs) or "float32 only"))
        if lacks:
            findings.append(Finding("lacks", ", ".join(lacks), "emulated"))
    return findings


def _no_gpu_finding(problem: str) -> Finding:
    if problem:
        return Finding("card", "none usable", "!", f"{problem}.")
    if sys.platform == "darwin" and platform.machine() == "arm64":
        return Finding("card", "Apple GPU, which has no CUDA allocator", "not used")
    return Finding("card", "none", "not needed")


def _ram_finding() -> Finding:
    available = available_ram_bytes()
    if available is not None and available < WANTED_RAM_BYTES:
        advice = f"{format_bytes(available)} of RAM are free; close other kernels, some cells want 2 GiB."
        return Finding("free RAM", format_bytes(available), "little", advice)
    return Finding("free RAM", format_bytes(available))


if __name__ == "__main__":
    print(doctor())
