"""A wall around each student's server, by bubblewrap: no file of another student, no solution of a lab, no process.

The server keeps the machine's network, cards and programs, and everything else that the hub's account may read. What
is hidden is empty inside. Signals go to the whole group, and what starts ``bwrap`` ignores those that ask: the server
ends in its own time, and with it, as the first process of its namespace, everything that it has started.

Source: bwrap(1), bubblewrap 0.8.
"""

import shutil
import signal
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

NONE = (
    "Students can read each other's files and the labs' solutions: there is no bubblewrap that starts here "
    "(Debian, Ubuntu: sudo apt install bubblewrap)."
)


def walled(command: Sequence[str], hidden: Iterable[Path], shown: Iterable[Path]) -> list[str]:
    """The command behind the wall: folders of ``hidden`` are empty, and below them those of ``shown`` are there.

    >>> walled(["true"], [], [])[-2:]
    ['--', 'true']
    """
    words = [
        "bwrap",
        "--dev-bind",
        "/",
        "/",
        "--unshare-pid",
        "--as-pid-1",
        "--proc",
        "/proc",
        "--cap-drop",
        "ALL",
    ]
    for folder in hidden:
        if folder.is_dir():
            words += ["--tmpfs", str(folder)]
    for folder in shown:
        words += ["--bind", str(folder), str(folder)]
    return [*words, "--", *command]


def can_wall() -> bool:
    """Whether bubblewrap is there and this system lets it start."""
    if not shutil.which("bwrap"):
        return False
    done = subprocess.run(walled(["true"], [], []), capture_output=True, check=False)
    return done.returncode == 0


def ignore_requests_to_end() -> None:
    """Before ``bwrap`` starts: it would end at once, and leave the server without anybody who waits for it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
