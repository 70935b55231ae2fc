"""The processes that a student's process has started, also those that left its session or lost their parents."""

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
"""Linux, ``prctl(2)``: orphans below this process become its own children, and not those of process 1."""


def adopt_orphans() -> None:
    """Keep every later descendant in this process's family; a system other than Linux has no such call."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children_of(pid: int) -> set[int]:
    """The living children of a process, by Linux's list of processes; none elsewhere."""
    children = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                children.add(int(folder.name))
    return children


def descendants_of(pid: int) -> Iterator[int]:
    """All living processes below one."""
    for child in children_of(pid):
        yield child
        yield from descendants_of(child)


def end_family(pid: int, own_before: set[int]) -> None:
    """End a process, all below it, and the orphans it left to us: those that were not among our children before."""
    while family := {*descendants_of(pid), *orphans_of(own_before | {pid})}:
        for process in family:  # a process that is born meanwhile is found in the next round
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            # a child of ours stays a zombie until it is waited for
            with suppress(ChildProcessError):
                os.waitpid(process, os.WNOHANG)


def orphans_of(own: set[int]) -> set[int]:
    """Our living children besides our own, and all below them."""
    adopted = children_of(os.getpid()) - own
    return adopted | {process for child in adopted for process in descendants_of(child)}
