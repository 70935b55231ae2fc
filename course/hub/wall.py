"""A wall around each student's server, by bubblewrap: no file of another student, no solution of a lab, no process.

The server keeps the machine's network, cards and programs, and may read what else the hub's account may read, except
what lies in that account's home. It writes to its own home and to memory: an environment or a kit that one student
changes would run in the others' kernels. What is hidden is empty inside. Signals go to the whole group, and what
starts ``bwrap`` ignores those that ask: the server ends in its own time, and with it, as the first process of its
namespace, everything that it has started.

Source: bwrap(1), bubblewrap 0.8.
"""

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NONE = (
    "Students can read each other's files and the labs' solutions: there is no bubblewrap that starts here "
    "(Debian, Ubuntu: sudo apt install bubblewrap)."
)


PRIVATE = (*map(Path, ("/tmp", "/var/tmp", "/dev/shm", "/run")), Path.home())
"""Folders that a server has for itself, in memory: the account's keys lie there, and sockets that obey the account."""
PRIVATE_BYTES = 512 * 2**20
"""What each of them may take."""
BASE, NAMES = Path(sys.base_prefix), Path("/etc/resolv.conf")
READ = (ROOT, Path(sys.prefix).resolve(), BASE, BASE.resolve(), NAMES.resolve())
"""What is there to read all the same: the book, its Python, where names of the network are asked for."""


def walled(
    command: Sequence[str], hidden: Iterable[Path], read: Iterable[Path], written: Iterable[Path]
) -> list[str]:
    """The command behind the wall: folders of ``hidden`` are empty, and below them those of the other two are there.

    >>> walled(["true"], [], [], [])[-2:]
    ['--', 'true']
    """
    words = ["bwrap", "--ro-bind", "/", "/", "--dev-bind", "/dev", "/dev", "--proc", "/proc"]
    words += ["--unshare-pid", "--as-pid-1", "--cap-drop", "ALL"]
    for place in filter(Path.is_dir, PRIVATE):
        words += ["--size", str(PRIVATE_BYTES), "--tmpfs", str(place)]
    for place in filter(Path.exists, READ):
        if any(place.is_relative_to(folder) for folder in PRIVATE):
            words += ["--ro-bind", str(place), str(place)]
    for place in filter(Path.is_dir, hidden):
        words += ["--size", "4096", "--tmpfs", str(place)]
    for kind, places in (("--ro-bind", read), ("--bind", written)):
        for place in places:
            words += [kind, str(place), str(place)]
    return [*words, "--", *command]


def can_wall() -> bool:
    """Whether bubblewrap is there and this system lets it start."""
    if not shutil.which("bwrap"):
        return False
    done = subprocess.run(walled(["true"], [], [], []), capture_output=True, check=False)
    return done.returncode == 0


def ignore_requests_to_end() -> None:
    """Before ``bwrap`` starts: it would end at once, and leave the server without anybody who waits for it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
