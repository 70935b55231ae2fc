"""The light side of the book: ``import memkit``, and a kernel that has not needed torch yet."""

import queue
import statistics
import subprocess
import sys
import time

import psutil
from jupyter_client.manager import start_new_kernel

from dev.bench import Row

ROUNDS = 15
KERNEL_LIMIT_BYTES = 120 * 1024**2

# What a reader's kernel holds after the explorers are open and before a cell trains anything.
EXPLORING = """
import sys
from memkit.widgets.memory_explorer import MemoryExplorer
from stepscope.widgets import AdapterExplorer
panels = [MemoryExplorer(), AdapterExplorer()]
print("torch" in sys.modules)
"""


def seconds_to_import(module: str) -> float:
    """Wall seconds of a fresh interpreter that imports ``module`` and ends."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
    return time.perf_counter() - start


def import_row(module: str) -> Row:
    """Imports alternate, so that a busy second of the machine falls on both; each module's best counts."""
    rounds = [(seconds_to_import(module), seconds_to_import("numpy")) for _ in range(ROUNDS)]
    ours, numpy = (min(column) for column in zip(*rounds, strict=True))
    median = statistics.median(mine / theirs for mine, theirs in rounds)
    return Row(
        name=f"import {module} / import numpy",
        ratio=ours / numpy,
        at_most=1.5,
        detail=f"{1e3 * ours:.0f} ms / {1e3 * numpy:.0f} ms, median of {ROUNDS} ratios {median:.2f}",
    )


def run_in(client, code: str) -> str:
    """What ``code`` prints in the kernel.

    Raises: RuntimeError: the code raised.
    """
    request, printed = client.execute(code), ""
    while True:
        try:
            message = client.get_iopub_msg(timeout=120)
        except queue.Empty:
            raise RuntimeError("the kernel did not answer in 120 s") from None
        if message["parent_header"].get("msg_id") != request:
            continue
        if message["msg_type"] == "stream" and message["content"]["name"] == "stdout":
            printed += message["content"]["text"]
        if message["msg_type"] == "error":
            raise RuntimeError("\n".join(message["content"]["traceback"]))
        if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
            return printed.strip()


def kernel_row() -> Row:
    """Resident memory of a real kernel with both explorers of chapter 01 open."""
    manager, client = start_new_kernel()
    try:
        if run_in(client, EXPLORING) != "False":
            raise RuntimeError("the explorers loaded torch")
        pid = int(run_in(client, "import os; print(os.getpid())"))
        used = psutil.Process(pid).memory_info().rss
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    return Row(
        name="kernel with explorers / 120 MiB",
        ratio=used / KERNEL_LIMIT_BYTES,
        at_most=1.0,
        detail=f"{used / 1024**2:.0f} MiB resident, torch not loaded",
    )


def run() -> list[Row]:
    return [import_row("memkit"), import_row("memkit.formula.estimate"), kernel_row()]
