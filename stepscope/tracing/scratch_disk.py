"""A scratch folder over the disk: a program writes its files and finds them again, and the disk stays as it was.

A trace runs a program's own code, which saves checkpoints, empties folders and keeps caches. In ``on_scratch_disk()``
who opens a file for writing gets a copy in a scratch folder, who reads looks there first, and what is removed or moved
is only marked. At the end the folder goes. No file of the disk is ever open for writing, so that a trace that fails, is
stopped or is killed harms as little as one that ends.

Here stands what passes none of Python's doors. Libraries that open files in C are listed in ``LIBRARIES`` with the
argument that names the file. An audit hook sees what comes another way, such as another program that is started, and
refuses it before it happens.
"""

import atexit
import functools
import importlib
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from unittest.mock import patch

from stepscope.tracing.scratch_doors import ON, all_doors, as_door, put_in_place, seeing
from stepscope.tracing.scratch_files import (
    HAS_DOORS,
    REAL,
    SWITCH,
    WRITES,
    LeavesTheDisk,
    ScratchDisk,
    mode_of,
    path_of_open,
)

# --- libraries that open files in C -------------------------------------------------------------------------------


def whole(disk: ScratchDisk, path: object, mode: str) -> object:
    """The real path for C: mode "r" only reads, "w" writes anew, "a" goes on from what is there."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        return path
    if not HAS_DOORS:
        if mode != "r" and not may_change(disk, path):
            raise LeavesTheDisk(f"writes {os.fsdecode(path)!r}")
        return path
    flags = {"r": 0, "w": os.O_CREAT | os.O_TRUNC, "a": os.O_CREAT | os.O_RDWR}[mode]
    found = disk.opened(path, flags, 0o666)
    return os.fsencode(found) if isinstance(path, bytes) else found


def at_argument(number: int, name: str, mode: str | Callable[[tuple, dict], str]) -> Callable:
    """A door for a function whose argument of this number, or name, is a file."""

    def through(disk, real, *args, **kwargs):
        wanted = mode if isinstance(mode, str) else mode(args, kwargs)
        if len(args) > number:
            args = (*args[:number], whole(disk, args[number], wanted), *args[number + 1 :])
        elif name in kwargs:
            kwargs[name] = whole(disk, kwargs[name], wanted)
        return real(*args, **kwargs)

    return through


def mode_at(number: int, name: str = "mode", otherwise: str = "r") -> Callable[[tuple, dict], str]:
    """The mode is an argument too: "w", or for reading and writing "a"."""

    def mode(args: tuple, kwargs: dict) -> str:
        said = str(args[number] if len(args) > number else kwargs.get(name, otherwise))
        return "w" if said[:1] == "w" else "r" if said in ("r", "rb") else "a"

    return mode


def connects(disk, real, database, *args, **kwargs):
    """``sqlite3.connect``: the data base is copied with the journals that may lie beside it."""
    name = os.fsdecode(database)
    uri, _, query = name.removeprefix("file:").partition("?")
    is_uri = kwargs.get("uri") and name.startswith("file:")
    path = uri if is_uri else name
    if path in ("", ":memory:") or "mode=memory" in query or not HAS_DOORS:
        return real(database, *args, **kwargs)
    for beside in ("-wal", "-shm", "-journal"):
        if disk.mode(disk.place(path + beside)) is not None:
            disk.copied(disk.place(path + beside))
    found = whole(disk, path, "a")
    if mode_of(found) is None and not mode_of(os.path.dirname(found)):
        return real(database, *args, **kwargs)
    return real(f"file:{found}?{query}" if is_uri else found, *args, **kwargs)


LARGE_BYTES = 2**26
"""A data set of more bytes is not copied, because numpy maps it for writing where nobody says otherwise."""


def maps(disk, real, kind, filename, dtype="uint8", mode="r+", *args, **kwargs):
    """``np.memmap``: what is written to a large file stays in this mapping alone."""
    if mode in ("r+", "readwrite") and isinstance(filename, (str, bytes, os.PathLike)) and HAS_DOORS:
        found = disk.found(filename)
        is_below = not found.startswith(disk.home)
        if is_below and mode_of(found) is not None and REAL.stat(found).st_size > LARGE_BYTES:
            mode = "copyonwrite"
    with seeing(is_real=False):
        return real(kind, filename, dtype, mode, *args, **kwargs)


def opens_ndbm(disk, real, filename, *args, **kwargs):
    """``dbm.ndbm``: the library in C adds an ending of its own to the name."""
    name = os.fsdecode(filename)
    for ending in (".db", ".dir", ".pag"):
        if disk.mode(disk.place(name + ending)) is not None:
            disk.copied(disk.place(name + ending))
    return real(whole(disk, name, "a"), *args, **kwargs)


READ, WRITE, CHANGE = (lambda number, name, mode=mode: at_argument(number, name, mode) for mode in "rwa")
LIBRARIES = {
    "torch._C": {
        "PyTorchFileReader": READ(0, "file"), "PyTorchFileWriter": WRITE(0, "file"),
        "import_ir_module": READ(1, "file"),
    },
    "torch.jit._script": {"RecursiveScriptModule.save": WRITE(1, "f")},
    "torch": {"from_file": CHANGE(0, "filename")},
    "torch.autograd.profiler": {"profile.export_chrome_trace": WRITE(1, "path")},
    "torch.storage": {"UntypedStorage.from_file": CHANGE(0, "filename")},
    "sqlite3": {"connect": connects},
    "numpy": {"memmap.__new__": maps},
    "_gdbm": {"open": CHANGE(0, "filename")}, "_dbm": {"open": opens_ndbm},
    "safetensors": {"safe_open": READ(0, "filename"), "serialize_file": WRITE(1, "filename")},
    "tokenizers": {
        "Tokenizer.save": WRITE(1, "path"), "Tokenizer.from_file": READ(0, "path"),
    },
    "h5py.h5f": {"create": WRITE(0, "name"), "open": CHANGE(0, "name")},
    "pyarrow.lib": {
        "OSFile": at_argument(0, "path", mode_at(1)), "memory_map": at_argument(0, "path", mode_at(1)),
        "create_memory_map": WRITE(0, "path"),
    },
    "pyarrow.parquet.core": {
        "ParquetWriter.__init__": WRITE(1, "where"), "ParquetFile.__init__": READ(1, "source"),
        "ParquetDataset.__init__": READ(1, "path_or_paths"),
    },
    "pyarrow._csv": {"write_csv": WRITE(1, "output_file"), "read_csv": READ(0, "input_file")},
    "pyarrow.feather": {"write_feather": WRITE(1, "dest"), "read_table": READ(0, "source")},
    "torchvision.io.image": {"read_file": READ(0, "path")} | {
        name: WRITE(number, "filename") for name, number in (("write_file", 0), ("write_png", 1), ("write_jpeg", 1))},
    "cv2": {"imwrite": WRITE(0, "filename"), "imread": READ(0, "filename"), "VideoWriter": WRITE(0, "filename")},
    "soundfile": {"SoundFile.__init__": at_argument(1, "file", mode_at(2))},
    "lmdb": {"open": CHANGE(0, "path"), "Environment": CHANGE(0, "path")},
}
"""By module: functions that open a file in C, and the door of each."""


def look(disk: ScratchDisk, stack: ExitStack) -> None:
    """Lead the libraries that have been loaded since through the disk."""
    doors = {}
    for module in [name for name in disk.waiting if name in sys.modules]:
        for name, through in disk.waiting.pop(module).items():
            home, _, last = name.rpartition(".")
            owner = getattr(sys.modules[module], home, None) if home else sys.modules[module]
            real = getattr(owner, last, None)
            if real is None:
                continue
            if home:
                door = as_door(real, through)
                is_static = isinstance(vars(owner).get(last), staticmethod)
                stack.enter_context(patch.object(owner, last, staticmethod(door) if is_static else door))
            else:
                doors[id(real)] = as_door(real, through)
    if doors:
        put_in_place(stack, doors)


# --- other programs -------------------------------------------------------------------------------------------------

ONLY_READ = set(
    "arch cat date df du echo false file free getconf git head hostname id ldconfig ls lsb_release lscpu lspci lsof "
    "nproc nvidia-smi objdump printenv ps pwd rocm-smi rocminfo stat sw_vers sysctl tail true uname wc where whereis "
    "which whoami".split()
)
GIT_ONLY_READS = set("--version cat-file describe diff log ls-files rev-list rev-parse show status".split())
"""Programs, and commands of git, that write nothing: scripts ask them for a commit or a card."""

OF_A_SHELL, TO_NOBODY = re.compile(r"[<>;&`$(){}\n]"), re.compile(r"[12&]?> ?/dev/null|2>&1")
VERSIONS = ("--version", "-V", "--help")


def is_only_read(command: object) -> bool:
    """Whether a command, as ``subprocess`` is given it, starts a program that is known to write nothing."""
    if isinstance(command, (str, bytes, os.PathLike)):
        text = TO_NOBODY.sub("", os.fsdecode(command))
        if OF_A_SHELL.search(text):
            return False
        if "|" in text:
            return all(map(is_only_read, text.split("|")))
        words = text.split()
    else:
        words = list(map(os.fsdecode, command))
    if len(words) > 2 and os.path.basename(words[0]) in ("sh", "bash") and words[1] == "-c":
        return is_only_read(words[2])
    name = os.path.basename(words[0]).removesuffix(".exe") if words else ""
    if name == "git":
        rest = iter(words[1:])
        for word in rest:
            if word == "-C":
                next(rest, None)
            elif word != "--no-pager":
                return word in GIT_ONLY_READS and not any(other.startswith("--output") for other in words)
        return False
    return name in ONLY_READ or (len(words) == 2 and words[1] in VERSIONS)


def spawns(*_, **__):
    """A process of Python's own that starts empty has no doors."""
    raise LeavesTheDisk("starts a process by 'spawn' or 'forkserver'")


# --- what comes another way ------------------------------------------------------------------------------------------


def may_change(disk: ScratchDisk, path: object, folder: int = -1) -> bool:
    """Whether a real path, or an open file, may be changed: it is in the scratch folder, or no file of a disk."""
    try:
        if isinstance(path, int):
            path = path_of_open(path)
        elif folder >= 0 and not os.path.isabs(os.fsdecode(path)):
            path = os.path.join(path_of_open(folder), os.fsdecode(path))
    except OSError:
        return True  # a system that does not tell what is open
    path = os.path.join(REAL.getcwd(), os.fsdecode(path))
    if not HAS_DOORS:  # "C:\\..."
        path, home = os.path.normcase(os.path.abspath(path)), os.path.normcase(os.path.join(disk.home, ""))
        return path.startswith((home, "\\\\.\\")) or os.path.basename(path) in ("nul", "con")
    if not path.startswith("/") or disk.is_outside(path):
        return True
    mode = mode_of(path)
    return mode is not None and stat.S_IFMT(mode) in (stat.S_IFCHR, stat.S_IFIFO, stat.S_IFSOCK)


CHANGES = {
    "os.mkdir": 1, "os.rmdir": 1, "os.remove": 1, "os.rename": 2, "os.symlink": 2, "os.link": 2, "os.chmod": 1,
    "os.chown": 1, "os.utime": 1, "os.truncate": 1, "os.setxattr": 1, "os.removexattr": 1, "os.chflags": 1,
    "sqlite3.connect": 1,
}
"""Audit events that change files, and how many of their arguments name one."""

STARTS = {
    "subprocess.Popen": 1, "os.system": 0, "os.posix_spawn": 1, "os.exec": 1, "os.startfile": 0,
    "_winapi.CreateProcess": 1,
}
"""Audit events that start another program, and which argument has its words."""


def refuse_past_the_doors(event: str, args: tuple) -> None:
    """The audit hook: what would change a real file is refused, whoever does it. Raises: LeavesTheDisk."""
    if not ON or not (event == "open" or event in CHANGES or event in STARTS):
        return
    disk = ON[-1]
    if event in STARTS:
        if not is_only_read(args[STARTS[event]]):
            raise LeavesTheDisk(f"starts another program, {words_of(args[STARTS[event]])!r}")
    elif event == "open":
        path, _, flags = args
        if isinstance(flags, int) and flags & WRITES and not isinstance(path, int) and not may_change(disk, path):
            raise LeavesTheDisk(f"opens {os.fsdecode(path)!r} for writing past Python's own open")
    else:
        folder = args[-1] if isinstance(args[-1], int) else -1
        named = args[1:2] if event in ("os.symlink", "os.link") else args[: CHANGES[event]]
        for path in named:
            text = path if isinstance(path, int) else os.fsdecode(path)
            if event == "sqlite3.connect":
                text = text.removeprefix("file:").partition("?")[0]
                if text in ("", ":memory:") or "mode=memory" in str(path):
                    continue
                path = text
            if not may_change(disk, path, folder):
                raise LeavesTheDisk(f"{event} of {text!r} past Python's own doors")


def words_of(command: object) -> str:
    """A command as one would type it."""
    return " ".join(map(os.fsdecode, command)) if isinstance(command, (list, tuple)) else os.fsdecode(command)


# --- what is around a disk -------------------------------------------------------------------------------------------


def prepare(disk: ScratchDisk, stack: ExitStack) -> None:
    """What else has to be otherwise while there is a scratch disk."""
    install_hook()
    for name in ("dbm.gnu", "dbm.ndbm"):  # ``dbm.open`` loads one and opens with it in the same breath
        with suppress(ImportError):
            import_module(name)
    disk.waiting = dict(LIBRARIES)
    disk.look = lambda: look(disk, stack)
    disk.look()
    register = atexit.register

    def register_on_scratch(function, *args, **kwargs):
        """What a program leaves to be done at the exit is done on a scratch disk too."""
        register(at_exit, function, args, kwargs)
        return function

    starts = [importlib.import_module(f"multiprocessing.{name}").Popen
              for name in ("popen_forkserver", "popen_spawn_posix") if HAS_DOORS]
    names = {"TMPDIR": disk.temp, SWITCH: "1", "GIT_OPTIONAL_LOCKS": "0", "HF_HUB_DISABLE_XET": "1"}
    for change in (
        patch.dict(os.environ, names),
        patch.object(tempfile, "tempdir", disk.temp),
        patch.object(sys, "dont_write_bytecode", True),
        patch.object(shutil, "_use_fd_functions", False),
        patch.object(atexit, "register", register_on_scratch),
        *(patch.object(kind, "_launch", spawns) for kind in starts),
    ):
        stack.enter_context(change)


def at_exit(function: Callable, args: tuple, kwargs: dict) -> None:
    """A function that a program wanted called when Python ends."""
    with on_scratch_disk():
        function(*args, **kwargs)


@functools.cache
def install_hook() -> None:
    """An audit hook stays for as long as the process; without a scratch disk it does nothing."""
    sys.addaudithook(refuse_past_the_doors)
@contextmanager
def on_scratch_disk() -> Iterator[ScratchDisk]:
    """Inside, nothing that a program does changes the disk; where a scratch disk is in use already, it is that one."""
    if ON:
        yield ON[-1]
        return
    disk = ScratchDisk()
    with ExitStack() as stack:
        stack.callback(remove_scratch, disk)
        stack.callback(REAL.chdir, disk.started_in)
        prepare(disk, stack)
        put_in_place(stack, all_doors() if HAS_DOORS else {})
        ON.append(disk)
        stack.callback(ON.remove, disk)
        yield disk


def remove_scratch(disk: ScratchDisk) -> None:
    """The scratch folder goes, but not with a child that a program has forked."""
    if os.getpid() == disk.process:
        shutil.rmtree(disk.home, ignore_errors=True)
