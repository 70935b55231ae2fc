"""A student's program in a namespace of its own, by bubblewrap: it sees no file, process or network of the teacher's.

To read it has the system's programs and libraries, this Python and its packages, ``memkit``, ``stepscope`` and
``book`` without its judges, and what the student handed in. To write it has a home that is memory and ends with it.
There is no network, no other process, no right beyond a plain account's; when its first process ends, all end.

Source: bwrap(1), bubblewrap 0.8, github.com/containers/bubblewrap.
"""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = "/home/student"
"""Where a program starts; what was handed in lies there."""
PROGRAMS = "/srv"
FILE_BYTES = 256 * 2**20
"""What its files may take, in its home and in ``/tmp`` each: they are memory."""
READABLE = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime")
PACKAGES = ("memkit", "stepscope", "chapters/book")
HIDDEN = (ROOT / "chapters/book/exercises", Path("/usr/local/share/nbgrader"))
"""Judges, and nbgrader's usual exchange: folders below the readable ones that are empty inside."""
MISSING = (
    "Grading runs students' programs in bubblewrap, and {why}. On Debian and Ubuntu: sudo apt install bubblewrap. "
    "On macOS, Windows or where namespaces are forbidden, grade on a Linux machine."
)


def sandboxed(
    command: Sequence[str],
    handed_in: Path,
    *,
    programs: Sequence[Path] = (),
    sockets: Path | None = None,
) -> list[str]:
    """The command as bubblewrap starts it, in a home with the files of ``handed_in``; links among them are left out.

    ``programs`` are files of ours that stand in ``/srv`` there. ``sockets`` is a folder that both sides write to,
    for a kernel's Unix sockets.

    >>> words = sandboxed(["python", "-V"], ROOT / "course/labs") if shutil.which("bwrap") else ["-V"]
    >>> words[-1]
    '-V'

    Raises: RuntimeError: there is no bubblewrap.
    """
    bwrap = shutil.which("bwrap")
    if not bwrap:
        raise RuntimeError(MISSING.format(why="there is no bwrap on the PATH"))
    size = str(FILE_BYTES)
    words = [bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    words += ["--uid", "1000", "--gid", "1000", "--hostname", "class"]
    words += ["--proc", "/proc", "--dev", "/dev", "--size", size, "--tmpfs", "/tmp"]
    pythons = {sys.prefix, sys.base_prefix, str(Path(sys.executable).resolve().parents[1])}
    for place in (*READABLE, *sorted(pythons), *(ROOT / package for package in PACKAGES)):
        words += ["--ro-bind-try", str(place), str(place)]
    for place in HIDDEN:
        words += ["--tmpfs", str(place)] if place.is_dir() else []
    words += ["--size", size, "--tmpfs", HOME]
    for path in sorted(handed_in.iterdir()):
        if not path.is_symlink():
            words += ["--ro-bind", str(path), f"{HOME}/{path.name}"]
    for path in programs:
        words += ["--ro-bind", str(path), f"{PROGRAMS}/{path.name}"]
    if sockets:
        words += ["--bind", str(sockets), str(sockets)]
    for name in ("USER", "LOGNAME"):
        words += ["--setenv", name, "student"]
    # a kernel that is told its parent's number ends as soon as that is 1, which it is in here from the start
    words += ["--unsetenv", "JPY_PARENT_PID", "--setenv", "HOME", HOME, "--chdir", HOME]
    return [*words, "--", *command]


def require_sandbox() -> None:
    """Try one. Raises: RuntimeError: there is no bubblewrap, or the system forbids its namespaces."""
    done = subprocess.run(
        sandboxed(["true"], Path(__file__).parent), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(MISSING.format(why=f"it does not start here: {done.stderr.strip()}"))
