"""A process that the kernel lets write in one folder only, for what passes the doors of ``tracing.scratch_disk``.

A library that opens files in C or Rust, and that is on no list, meets no door of Python's and no audit hook. Where
Linux has Landlock (since 5.13) the command line gives up the right to change any other folder before a program runs:
it, its threads and the programs that it starts get "Permission denied". Elsewhere the doors stand alone.

Source: https://docs.kernel.org/userspace-api/landlock.html
"""

import ctypes
import os
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""System calls, of the same numbers on x86-64 and on ARM64."""

VERSION, PATH_BENEATH, NO_NEW_PRIVS = 1, 1, 38
WRITE_FILE, REMOVE_DIR, REMOVE_FILE, REFER, TRUNCATE = 1 << 1, 1 << 4, 1 << 5, 1 << 13, 1 << 14
MAKES = sum(1 << bit for bit in range(6, 13))  # devices, folders, files, sockets, pipes, links
SINCE = {1: WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKES, 2: REFER, 3: TRUNCATE}
"""What each version of Landlock can forbid."""

NO_DISK = ("/dev", "/proc")
"""Places that are no part of a disk."""


def seal(folder: str) -> bool:
    """From now on this thread, and what it starts, writes in ``folder`` only; whether the kernel can say so."""
    if not sys.platform.startswith("linux"):
        return False
    call = ctypes.CDLL(None, use_errno=True).syscall
    version = call(CREATE_RULESET, None, ctypes.c_size_t(0), VERSION)
    if version < 1:
        return False
    rights = sum(right for since, right in SINCE.items() if since <= version)
    rules = call(CREATE_RULESET, struct.pack("Q", rights), ctypes.c_size_t(8), 0)
    if rules < 0:
        return False
    try:
        for place in (folder, *NO_DISK):
            beneath = os.open(place, os.O_PATH | os.O_CLOEXEC)
            call(ADD_RULE, rules, PATH_BENEATH, struct.pack("=Qi", rights, beneath), 0)
            os.close(beneath)
        ctypes.CDLL(None).prctl(NO_NEW_PRIVS, 1, 0, 0, 0)
        return call(RESTRICT_SELF, rules, 0) == 0
    finally:
        os.close(rules)


SWITCH = "STEPSCOPE_REPORT"
"""The environment of a program has this name while it is traced, as ``stepscope.tracing.scratch_files`` says it."""

FREE: list[ThreadPoolExecutor] = []
"""A thread that was there before the process was sealed, and writes what is the command's own."""


def unsealed(function: Callable, *args: object) -> object:
    """What a function returns that may write anywhere."""
    return FREE[-1].submit(function, *args).result() if FREE else function(*args)


@contextmanager
def sealed() -> Iterator[None]:
    """The rest of this thread's life writes in a folder for temporary files, which goes at the end."""
    folder, before = tempfile.mkdtemp(prefix="stepscope-"), tempfile.tempdir
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()  # its thread has to start before
        FREE.append(pool)
        tempfile.tempdir = folder
        try:
            seal(folder)
            yield
        finally:
            tempfile.tempdir = before
            unsealed(shutil.rmtree, folder, True)
            FREE.pop()
