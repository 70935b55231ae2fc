"""A scratch folder over the disk: a program writes its files and finds them again, and the disk stays as it was.

A trace runs a program's own code, which saves checkpoints, empties folders and keeps caches. In ``on_scratch_disk()``
who opens a file for writing gets a copy in a scratch folder, who reads looks there first, and what is removed or moved
is only marked. At the end the folder goes. No file of the disk is ever open for writing, so that a trace that fails,
is stopped or is killed harms as little as one that ends. Four parts, in this order:

- ``sealed``: where Linux has Landlock (since 5.13) the command line gives up the right to change any other folder
  before a program runs. It, its threads and the programs that it starts get "Permission denied", whatever library they
  write with: https://docs.kernel.org/userspace-api/landlock.html
- ``ScratchDisk``: what is found at a path: a file in the scratch folder if the program has written it, the disk's if
  not, and nothing if it was removed.
- ``REDIRECTED``: Python's functions that reach files (``open``, those of ``os``, ``io.FileIO``), through which
  ``pathlib``, ``shutil``, ``tempfile``, ``logging``, ``pickle`` and numpy go. ``put_in_place`` replaces each wherever
  a loaded module holds it.
- ``LIBRARIES``: functions that open files in C, with the argument that names the file. An audit hook sees what comes
  another way, such as another program that is started, and refuses it before it happens.
"""

import atexit
import ctypes
import errno
import functools
import glob
import importlib
import io
import os
import re
import shutil
import stat
import struct
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from types import SimpleNamespace
from unittest.mock import patch

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
"""The environment has this name while a program is traced: how a script can know it."""
"""The environment of a program has this name while it is traced, as ``stepscope.tracing.scratch_disk`` says it."""

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


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

REAL = SimpleNamespace(
    **{name: getattr(os, name) for name in dir(os) if callable(getattr(os, name))}
)
"""What ``os`` has when nothing is replaced."""

MOST_LINKS = 40
"""A path that leads through more symbolic links than this goes in a circle, as Linux has it."""

CACHES = ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME")
"""Names in the environment of folders to which libraries download; ``~/.cache`` where none is named."""

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CAN_REDIRECT = os.name == "posix"
"""On Windows paths have other rules: there is no scratch folder over them, and what would write is refused."""

REFUSED: list[str] = []
"""What was refused since the disk was last as it was found: a program may go on without it."""


class LeavesTheDisk(PermissionError, ValueError):
    """What a program was about to do would change the disk, past the scratch folder."""

    def __init__(self, what: str):
        # loads torch, which the commands that trace nothing lack
        from stepscope.tracing.refusals import own_line

        REFUSED.append(f"{own_line()}: {what}")
        super().__init__(
            f"{REFUSED[-1]}, which could change the disk, and a report leaves it as it found it; write the file "
            f"in Python (open, shutil), or leave this out where os.environ has {SWITCH}"
        )


class ScratchDisk:
    """The file system as a program sees it: ``place`` names a path without links, ``where`` says where it really lies.

    ``origins`` has, by place, which real path is seen there: another one where a folder was moved, ``None`` where
    nothing of the disk is seen any more. What is written lies in ``folder``, each file under its whole path.
    """

    def __init__(self):
        self.home = os.path.realpath(tempfile.mkdtemp(prefix="stepscope-"))
        # what the program itself calls its folder for temporary files
        self.temp = f"{self.home}/tmp"
        self.started_in = self.cwd = REAL.getcwd()
        self.process, self.number = os.getpid(), 0
        # by file descriptor: of those that were opened
        self.folders: dict[int, tuple[str, tuple[int, int]]] = {}
        self.first: tuple[str, dict] | None = None
        self.given: set[str] = set()  # files that whoever traces may write
        self.start_anew()

    def start_anew(self) -> None:
        """The disk is as it was found, but for what was written before the first call, and for what was downloaded."""
        before = getattr(self, "folder", ""), getattr(self, "origins", {})
        if self.number == 1:
            self.first = before
        self.number += 1
        self.folder, self.origins, self.is_touched = f"{self.home}/{self.number}", {}, False
        if self.first and (self.first[1] or os.path.isdir(self.first[0])):
            shutil.copytree(self.first[0], self.folder, symlinks=True, dirs_exist_ok=True)
            self.origins, self.is_touched = dict(self.first[1]), True
        if self.number > 2:
            self.keep_downloads(*before)
        os.makedirs(self.folder, exist_ok=True)
        shutil.rmtree(self.temp, ignore_errors=True)
        os.makedirs(self.temp)
        self.cwd = self.started_in
        REAL.chdir(self.cwd)
        REFUSED.clear()

    def keep_downloads(self, folder: str, origins: dict[str, str | None]) -> None:
        """What libraries have put into the user's cache stays: a model is downloaded once for all traces."""
        for name in CACHES:
            place = os.path.realpath(os.path.expanduser(os.environ.get(name, "~/.cache")))
            if os.path.isdir(folder + place):
                shutil.copytree(
                    folder + place, self.folder + place, symlinks=True, dirs_exist_ok=True
                )
                self.origins |= {
                    key: value for key, value in origins.items() if key.startswith(f"{place}/")
                }
                self.is_touched = True

    # --- where things are ---------------------------------------------------------------------------------------

    def is_outside(self, place: str) -> bool:
        """Whether a place is no part of the disk: the scratch folder itself, devices and what the kernel shows."""
        if f"{place}/".startswith("/dev/"):
            return not f"{place}/".startswith("/dev/shm/")
        return f"{place}/".startswith((f"{self.home}/", "/proc/", "/sys/")) or place in self.given

    def place(self, path: object, follows: bool = True) -> str:
        """The absolute path without links; ``follows`` the one at its end, too."""
        path = os.fsdecode(path)
        if not path:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        here, waiting, num_links = "", os.path.join(self.cwd, path).split("/")[::-1], 0
        while waiting:
            name = waiting.pop()
            if name in ("", "."):
                continue
            if name == "..":
                here = here.rpartition("/")[0]
                continue
            target = self.link_at(f"{here}/{name}") if follows or waiting else None
            if target is None:
                here = f"{here}/{name}"
                continue
            num_links += 1
            if num_links > MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            here = "" if target.startswith("/") else here
            waiting += target.split("/")[::-1]
        return here or "/"

    def link_at(self, place: str) -> str | None:
        """Where a symbolic link leads; None for what is none, or is no file's."""
        if self.is_outside(place) and place != "/dev/shm":
            return None
        try:
            return REAL.readlink(self.where(place))
        except OSError:
            return None

    def beneath(self, place: str) -> str | None:
        """The path of the disk that is seen at a place, where nothing is written over it."""
        head, tail = place, ""
        while self.origins and head:
            if head in self.origins:
                origin = self.origins[head]
                return None if origin is None else origin + tail
            head, _, name = head.rpartition("/")
            tail = f"/{name}{tail}"
        return place

    def above(self, place: str) -> str:
        """The path in the scratch folder at which a place is written."""
        return place if self.is_outside(place) else self.folder + place

    def where(self, place: str) -> str:
        """The real path of what the program finds at a place; it may not exist."""
        if self.is_outside(place):
            return place
        above, beneath = self.above(place), self.beneath(place)
        mode = mode_of(above)
        if mode is None:
            return beneath or above
        is_both = stat.S_ISDIR(mode) and beneath is not None and stat.S_ISDIR(mode_of(beneath) or 0)
        return beneath if is_both else above

    def found(self, path: object, follows: bool = True) -> str:
        """``where``, of a path as the program writes it."""
        return os.fsdecode(path) if not self.is_touched else self.where(self.place(path, follows))

    def mode(self, place: str) -> int | None:
        """Kind and rights of what is at a place; None where nothing is."""
        return mode_of(self.where(place))

    def names(self, place: str) -> list[str]:
        """What is in a folder."""
        beneath = self.beneath(place)
        lists = [
            path
            for path in (beneath, self.above(place))
            if path and stat.S_ISDIR(mode_of(path) or 0)
        ]
        if not lists or self.is_outside(place):
            return REAL.listdir(self.where(place))
        inside = place.rstrip("/")
        names = dict.fromkeys(name for path in lists for name in REAL.listdir(path))
        names |= dict.fromkeys(
            key.rpartition("/")[2] for key in self.origins if key.rpartition("/")[0] == inside
        )
        return [name for name in names if self.mode(f"{inside}/{name}") is not None]

    # --- what changes -------------------------------------------------------------------------------------------

    def room_for(self, place: str) -> str:
        """The path in the scratch folder for something new, whose folder must be there."""
        self.is_touched = True
        folder = os.path.dirname(place)
        mode = self.mode(folder)
        if mode is None or not stat.S_ISDIR(mode):
            code = errno.ENOENT if mode is None else errno.ENOTDIR
            raise OSError(code, os.strerror(code), place)
        os.makedirs(self.above(folder), exist_ok=True)
        return self.above(place)

    def copied(self, place: str, is_emptied: bool = False) -> str:
        """The path in the scratch folder of what is at a place, copied there if it is not yet; devices stay.

        ``is_emptied``: its bytes are not wanted.
        """
        found, above = self.where(place), self.above(place)
        mode = mode_of(found)
        if mode is None:
            return self.room_for(place)
        if found == above or stat.S_IFMT(mode) not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
            return found
        self.room_for(place)
        if stat.S_ISDIR(mode):
            os.makedirs(above, exist_ok=True)
        elif is_emptied:
            REAL.close(REAL.open(above, os.O_CREAT | os.O_WRONLY, stat.S_IMODE(mode)))
        else:
            size = REAL.lstat(found).st_size
            if size > (space := shutil.disk_usage(self.home).free):
                raise LeavesTheDisk(
                    f"changes {place!r} of {size:,} B, for a copy of which {self.home} has {space:,} B"
                )
            shutil.copy2(found, above, follow_symlinks=False)
        return above

    def hide(self, place: str) -> None:
        """Nothing of the disk is seen at a place, or below it, any more."""
        self.is_touched = True
        for key in [key for key in self.origins if key.startswith(f"{place}/")]:
            del self.origins[key]
        self.origins[place] = None

    def remove(self, place: str) -> None:
        """``os.remove`` and, of an empty folder, ``os.rmdir``."""
        above = self.above(place)
        if (mode := mode_of(above)) is not None:
            (REAL.rmdir if stat.S_ISDIR(mode) else REAL.unlink)(above)
        if not self.is_outside(place):
            self.hide(place)

    def move(self, source: str, target: str) -> None:
        """``os.replace``: what is below the source is below the target from now on, wherever it lies."""
        mode, old = self.mode(source), self.mode(target)
        if mode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        if source == target:
            return
        is_folder = stat.S_ISDIR(mode)
        if old is not None and stat.S_ISDIR(old) != is_folder:
            code = errno.ENOTDIR if is_folder else errno.EISDIR
            raise OSError(code, os.strerror(code), target)
        if old is not None and is_folder and self.names(target):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), target)
        if self.is_outside(target) and is_folder and not self.is_outside(source):
            # as from disk to disk: shutil.move copies
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source)
        above = self.room_for(target)
        if old is not None:
            self.remove(target)
        if self.is_outside(target) and not self.is_outside(source):
            shutil.copy2(self.where(source), above, follow_symlinks=False)
            self.remove(source)
            return
        beneath = self.beneath(source)
        if mode_of(self.above(source)) is not None:
            REAL.rename(self.above(source), above)
        if self.is_outside(source):
            return
        moved = {
            key: origin for key, origin in self.origins.items() if key.startswith(f"{source}/")
        }
        self.origins[target] = (
            beneath if beneath is not None and mode_of(beneath) is not None else None
        )
        self.origins |= {target + key[len(source) :]: origin for key, origin in moved.items()}
        self.hide(source)

    def opened(self, path: object, flags: int, mode: int) -> str:
        """The real path to open; a file that is to be written is copied first."""
        if not flags & WRITES and not self.is_touched:
            return os.fsdecode(path)
        is_new = flags & os.O_CREAT and flags & os.O_EXCL
        place = self.place(path, follows=not (is_new or flags & getattr(os, "O_NOFOLLOW", 0)))
        is_there = self.mode(place)
        if not flags & WRITES or self.is_outside(place):
            return self.where(place)
        if getattr(os, "O_TMPFILE", 0) and flags & os.O_TMPFILE == os.O_TMPFILE:
            return self.temp
        if is_there is None:
            return self.room_for(place) if flags & os.O_CREAT else self.where(place)
        if is_new or stat.S_ISDIR(is_there):
            code = errno.EEXIST if is_new else errno.EISDIR
            raise OSError(code, os.strerror(code), os.fsdecode(path))
        return self.copied(place, is_emptied=bool(flags & os.O_TRUNC))

    def folder_of(self, descriptor: int) -> str:
        """The place of an open folder, for what is named relative to it."""
        seen = REAL.fstat(descriptor)
        place, number = self.folders.get(descriptor, ("", None))
        return place if number == (seen.st_dev, seen.st_ino) else path_of_open(descriptor)


def path_of_open(descriptor: int) -> str:
    """The real path of an open file. Raises: OSError: the system does not tell."""
    try:
        return REAL.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        if not hasattr(fcntl, "F_GETPATH"):  # macOS has it
            raise
        return os.fsdecode(fcntl.fcntl(descriptor, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0"))


def mode_of(path: str) -> int | None:
    """Kind and rights of what is at a real path; None where nothing is."""
    try:
        return REAL.lstat(path).st_mode
    except OSError:
        return None


class State(threading.local):
    """Whether this thread is inside one of the replacements below, where ``os`` is the real one."""

    is_inside = False


ON: list[ScratchDisk] = []
"""The disk that programs see now, at most one."""

STATE = State()


@contextmanager
def seeing(is_real: bool) -> Iterator[None]:
    """What runs here sees the real disk, or goes through the replacements again."""
    before, STATE.is_inside = STATE.is_inside, is_real
    try:
        yield
    finally:
        STATE.is_inside = before


def redirected(real: Callable, through: Callable[..., object]) -> Callable:
    """A function of Python's that goes through the disk while there is one: ``through(disk, real, ...)``."""

    @functools.wraps(real)
    def replacement(*args, **kwargs):
        if not ON or STATE.is_inside:
            return real(*args, **kwargs)
        with seeing(is_real=True):
            try:
                return through(ON[-1], real, *args, **kwargs)
            except OSError as error:  # a program is told of the path that it wrote
                if isinstance(error.filename, str) and error.filename.startswith(ON[-1].home):
                    error.filename = args[0] if args else error.filename
                raise

    for known in (
        os.supports_fd,
        os.supports_dir_fd,
        os.supports_follow_symlinks,
        os.supports_effective_ids,
    ):
        if real in known:
            known.add(replacement)
    return replacement


def openers_of_numpy() -> dict:
    """A table in which numpy holds ``open``, for its text files."""
    source = sys.modules.get("numpy.lib._datasource") or sys.modules.get(
        "numpy.lib._datasource_impl"
    )
    return getattr(getattr(source, "_file_openers", None), "_file_openers", {})


def put_in_place(stack: ExitStack, replacements: dict[int, object]) -> None:
    """Put each wherever a loaded module holds what it stands for, and take it back when the stack ends."""
    classes = [
        kind
        for module in (tempfile, glob)
        for kind in vars(module).values()
        if isinstance(kind, type)
    ]
    homes = [module for module in list(sys.modules.values()) if module is not None]
    openers = openers_of_numpy()
    for name, value in list(openers.items()):
        if id(value) in replacements:
            stack.callback(openers.__setitem__, name, value)
            openers[name] = replacements[id(value)]
    for home in (*homes, *classes):
        names = getattr(home, "__dict__", None)
        if names is None or getattr(home, "__name__", "").startswith("stepscope.tracing.scratch_"):
            continue
        for name, value in list(names.items()):
            is_static = type(value) is staticmethod  # of the classes of glob, since Python 3.13
            replacement = replacements.get(id(value.__func__ if is_static else value))
            if replacement is not None and value is not replacement:
                stack.callback(setattr, home, name, value)
                setattr(home, name, staticmethod(replacement) if is_static else replacement)
            defaults = getattr(value, "__defaults__", None) if home in classes else None
            if defaults and any(id(default) in replacements for default in defaults):
                stack.callback(setattr, value, "__defaults__", defaults)
                value.__defaults__ = tuple(
                    replacements.get(id(default), default) for default in defaults
                )


def at(disk: ScratchDisk, path: object, folder: int | None) -> object:
    """A path that may be relative to an open folder."""
    if folder is None or isinstance(path, int) or os.path.isabs(path):
        return path
    return os.path.join(disk.folder_of(folder), os.fsdecode(path))


# --- Python's functions: each is given the disk, the real function and its arguments --------------------------------


def reads(disk, real, path=".", *args, dir_fd=None, **kwargs):
    """What only looks: ``os.stat``, ``access``, ``statvfs`` and their like."""
    if isinstance(path, int):
        return real(path, *args, **kwargs)
    follows = kwargs.get("follow_symlinks", real.__name__ not in ("lstat", "readlink"))
    return real(disk.found(at(disk, path, dir_fd), follows), *args, **kwargs)


def changes(disk, real, path, *args, dir_fd=None, **kwargs):
    """What changes a file that is there: ``os.chmod``, ``utime``, ``truncate`` and their like."""
    if isinstance(path, int):
        return real(path, *args, **kwargs)
    follows = kwargs.get("follow_symlinks", not real.__name__.startswith("l"))
    place = disk.place(at(disk, path, dir_fd), follows)
    if disk.mode(place) is None:
        return real(disk.where(place), *args, **kwargs)
    return real(disk.copied(place), *args, **kwargs)


def makes(disk, real, path, *args, dir_fd=None, **kwargs):
    """What makes something new: ``os.mkdir``, ``mkfifo``, ``mknod``."""
    place = disk.place(at(disk, path, dir_fd), follows=False)
    if disk.mode(place) is not None:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fsdecode(path))
    return real(disk.room_for(place), *args, **kwargs)


def makes_link(disk, real, target, path, *args, dir_fd=None, **kwargs):
    """``os.symlink``."""
    return real(target, makes(disk, lambda new: new, path, dir_fd=dir_fd), *args, **kwargs)


def links(disk, real, source, path, *, src_dir_fd=None, dst_dir_fd=None, follow_symlinks=True):
    """``os.link``: of a copy, so that what is written by one of its names is seen by the other."""
    old = disk.copied(disk.place(at(disk, source, src_dir_fd), follow_symlinks))
    return real(old, makes(disk, lambda new: new, path, dir_fd=dst_dir_fd))


def removes(disk, real, path, *, dir_fd=None):
    """``os.remove``, ``unlink`` and ``rmdir``."""
    place = disk.place(at(disk, path, dir_fd), follows=False)
    mode = disk.mode(place)
    is_folder = mode is not None and stat.S_ISDIR(mode)
    code = errno.ENOENT if mode is None else 0
    if mode is not None and is_folder != (real.__name__ == "rmdir"):
        code = errno.EISDIR if is_folder else errno.ENOTDIR
    elif is_folder and disk.names(place):
        code = errno.ENOTEMPTY
    if code:
        raise OSError(code, os.strerror(code), os.fsdecode(path))
    disk.remove(place)


def moves(disk, real, source, target, *, src_dir_fd=None, dst_dir_fd=None):
    """``os.rename`` and ``os.replace``."""
    old, new = at(disk, source, src_dir_fd), at(disk, target, dst_dir_fd)
    disk.move(disk.place(old, follows=False), disk.place(new, follows=False))


def lists(disk, real, path="."):
    """``os.listdir``."""
    place = disk.place(
        disk.folder_of(path) if isinstance(path, int) else "." if path is None else path
    )
    names = disk.names(place)
    return list(map(os.fsencode, names)) if isinstance(path, bytes) else names


class Entry(os.PathLike):
    """What ``os.scandir`` gives for a name in a folder."""

    def __init__(self, folder: object, name: object):
        self.name, self.path = name, os.path.join(folder, name)

    def __fspath__(self):
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self.path, follow_symlinks=follow_symlinks)

    def inode(self) -> int:
        return self.stat(follow_symlinks=False).st_ino

    def is_kind(self, is_kind: Callable[[int], bool], follow_symlinks: bool) -> bool:
        """Whether there is something of this kind."""
        try:
            return is_kind(self.stat(follow_symlinks=follow_symlinks).st_mode)
        except OSError:
            return False

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self.is_kind(stat.S_ISDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return self.is_kind(stat.S_ISREG, follow_symlinks)

    def is_symlink(self) -> bool:
        return self.is_kind(stat.S_ISLNK, False)

    def is_junction(self) -> bool:
        return False


class Entries:
    """What ``os.scandir`` returns: to be gone through once, and closed."""

    def __init__(self, entries: list[Entry]):
        self.entries = iter(entries)

    def __iter__(self):
        return self

    def __next__(self) -> Entry:
        return next(self.entries)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self) -> None:
        self.entries = iter(())


def scans(disk, real, path="."):
    """``os.scandir``."""
    if not disk.is_touched:
        return real(path)
    path = "." if path is None else path
    names = lists(disk, real, path)
    return Entries(
        [Entry(disk.folder_of(path) if isinstance(path, int) else path, name) for name in names]
    )


def changes_folder(disk, real, path):
    """``os.chdir``: a folder that only the program sees is one of the scratch folder."""
    place = disk.place(disk.folder_of(path) if isinstance(path, int) else path)
    REAL.chdir(disk.where(place))
    disk.cwd = place


def opens_descriptor(disk, real, path, flags, mode=0o777, *, dir_fd=None):
    """``os.open``."""
    found = disk.opened(at(disk, path, dir_fd), flags, mode)
    descriptor = real(found, flags, mode)
    seen = REAL.fstat(descriptor)
    if stat.S_ISDIR(seen.st_mode):
        place = disk.place(at(disk, path, dir_fd))
        disk.folders[descriptor] = place, (seen.st_dev, seen.st_ino)
    return descriptor


FLAGS = {
    "r": os.O_RDONLY,
    "w": os.O_CREAT | os.O_TRUNC,
    "a": os.O_APPEND | os.O_CREAT,
    "x": os.O_CREAT | os.O_EXCL,
}


def opens(disk, real, file, mode="r", *args, **kwargs):
    """``open``: the file has the name that the program gave it."""
    if isinstance(file, int) or not isinstance(mode, str):
        return real(file, mode, *args, **kwargs)
    opener = kwargs.get("opener") or (args[5] if len(args) > 5 else None)
    if opener:  # it makes the file by a function of its own

        def through_door(_, flags):
            with seeing(is_real=False):
                return opener(file, flags)

        kwargs["opener"], args = through_door, args[:5]
        found = os.path.join(disk.temp, "opener")
    else:
        flags = next((FLAGS[letter] for letter in mode if letter in FLAGS), 0) | (
            os.O_RDWR if "+" in mode else 0
        )
        found = disk.opened(file, flags, 0o666)
    made = real(found, mode, *args, **kwargs)
    raw = getattr(made, "buffer", made)
    getattr(raw, "raw", raw).name = file
    return made


class AnyFileIO(type):
    """Every raw file counts as one, and one that is made goes through ``opens``."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, FILE_IO) if cls is FileIO else super().__instancecheck__(value)

    def __call__(cls, *args, **kwargs):
        return FILE_DOOR(super().__call__)(*args, **kwargs)


FILE_IO = io.FileIO
FILE_DOOR = functools.partial(redirected, through=opens)


class FileIO(io.FileIO, metaclass=AnyFileIO):
    """In place of ``io.FileIO``; a class, as programs derive from it."""


REDIRECTED = {
    reads: "stat lstat access readlink statvfs pathconf getxattr listxattr",
    changes: "chmod lchmod chown lchown utime truncate setxattr removexattr chflags lchflags",
    makes: "mkdir mkfifo mknod",
    makes_link: "symlink",
    links: "link",
    removes: "remove unlink rmdir",
    moves: "rename replace",
    lists: "listdir",
    scans: "scandir",
    changes_folder: "chdir fchdir",
    opens_descriptor: "open",
}
"""Functions of ``os``, and what they go through."""


@functools.cache
def all_doors() -> dict[int, object]:
    """By the ``id`` of each function of Python's, what stands in its place."""
    replacements = {}
    for through, names in REDIRECTED.items():
        for name in names.split():
            if hasattr(REAL, name):
                replacements[id(getattr(REAL, name))] = redirected(getattr(REAL, name), through)
    replacements[id(REAL.getcwd)] = redirected(REAL.getcwd, lambda disk, real: disk.cwd)
    replacements[id(REAL.getcwdb)] = redirected(
        REAL.getcwdb, lambda disk, real: os.fsencode(disk.cwd)
    )
    replacements[id(io.open)] = redirected(io.open, opens)
    replacements[id(io.open_code)] = redirected(
        io.open_code, lambda disk, real, path: real(disk.found(path))
    )
    replacements[id(FILE_IO)] = FileIO
    return replacements


# --- libraries that open files in C -------------------------------------------------------------------------------


def whole(disk: ScratchDisk, path: object, mode: str) -> object:
    """The real path for C: mode "r" only reads, "w" writes anew, "a" goes on from what is there."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        return path
    if not CAN_REDIRECT:
        if mode != "r" and not may_change(disk, path):
            raise LeavesTheDisk(f"writes {os.fsdecode(path)!r}")
        return path
    flags = {"r": 0, "w": os.O_CREAT | os.O_TRUNC, "a": os.O_CREAT | os.O_RDWR}[mode]
    found = disk.opened(path, flags, 0o666)
    return os.fsencode(found) if isinstance(path, bytes) else found


def at_argument(number: int, name: str, mode: str | Callable[[tuple, dict], str]) -> Callable:
    """A replacement for a function whose argument of this number, or name, is a file."""

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
    if path in ("", ":memory:") or "mode=memory" in query or not CAN_REDIRECT:
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
    if (
        mode in ("r+", "readwrite")
        and isinstance(filename, (str, bytes, os.PathLike))
        and CAN_REDIRECT
    ):
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


READ, WRITE, CHANGE = (
    lambda number, name, mode=mode: at_argument(number, name, mode) for mode in "rwa"
)
LIBRARIES = {
    "torch._C": {
        "PyTorchFileReader": READ(0, "file"),
        "PyTorchFileWriter": WRITE(0, "file"),
        "import_ir_module": READ(1, "file"),
    },
    "torch.jit._script": {"RecursiveScriptModule.save": WRITE(1, "f")},
    "torch": {"from_file": CHANGE(0, "filename")},
    "torch.autograd.profiler": {"profile.export_chrome_trace": WRITE(1, "path")},
    "torch.storage": {"UntypedStorage.from_file": CHANGE(0, "filename")},
    "sqlite3": {"connect": connects},
    "numpy": {"memmap.__new__": maps},
    "_gdbm": {"open": CHANGE(0, "filename")},
    "_dbm": {"open": opens_ndbm},
    "safetensors": {"safe_open": READ(0, "filename"), "serialize_file": WRITE(1, "filename")},
    "tokenizers": {
        "Tokenizer.save": WRITE(1, "path"),
        "Tokenizer.from_file": READ(0, "path"),
    },
    "h5py.h5f": {"create": WRITE(0, "name"), "open": CHANGE(0, "name")},
    "pyarrow.lib": {
        "OSFile": at_argument(0, "path", mode_at(1)),
        "memory_map": at_argument(0, "path", mode_at(1)),
        "create_memory_map": WRITE(0, "path"),
    },
    "pyarrow.parquet.core": {
        "ParquetWriter.__init__": WRITE(1, "where"),
        "ParquetFile.__init__": READ(1, "source"),
        "ParquetDataset.__init__": READ(1, "path_or_paths"),
    },
    "pyarrow._csv": {"write_csv": WRITE(1, "output_file"), "read_csv": READ(0, "input_file")},
    "pyarrow.feather": {"write_feather": WRITE(1, "dest"), "read_table": READ(0, "source")},
    "torchvision.io.image": {"read_file": READ(0, "path")}
    | {
        name: WRITE(number, "filename")
        for name, number in (("write_file", 0), ("write_png", 1), ("write_jpeg", 1))
    },
    "cv2": {
        "imwrite": WRITE(0, "filename"),
        "imread": READ(0, "filename"),
        "VideoWriter": WRITE(0, "filename"),
    },
    "soundfile": {"SoundFile.__init__": at_argument(1, "file", mode_at(2))},
    "lmdb": {"open": CHANGE(0, "path"), "Environment": CHANGE(0, "path")},
}
"""By module: functions that open a file in C, and the replacement of each."""


def look(disk: ScratchDisk, stack: ExitStack) -> None:
    """Lead the libraries that have been loaded since through the disk."""
    replacements = {}
    for module in [name for name in disk.waiting if name in sys.modules]:
        for name, through in disk.waiting.pop(module).items():
            home, _, last = name.rpartition(".")
            owner = getattr(sys.modules[module], home, None) if home else sys.modules[module]
            real = getattr(owner, last, None)
            if real is None:
                continue
            if home:
                replacement = redirected(real, through)
                is_static = isinstance(vars(owner).get(last), staticmethod)
                stack.enter_context(
                    patch.object(
                        owner, last, staticmethod(replacement) if is_static else replacement
                    )
                )
            else:
                replacements[id(real)] = redirected(real, through)
    if replacements:
        put_in_place(stack, replacements)


# --- other programs -------------------------------------------------------------------------------------------------

ONLY_READ = set(
    "arch cat date df du echo false file free getconf git head hostname id ldconfig ls lsb_release lscpu lspci lsof "
    "nproc nvidia-smi objdump printenv ps pwd rocm-smi rocminfo stat sw_vers sysctl tail true uname wc where whereis "
    "which whoami".split()
)
GIT_ONLY_READS = set(
    "--version cat-file describe diff log ls-files rev-list rev-parse show status".split()
)
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
                return word in GIT_ONLY_READS and not any(
                    other.startswith("--output") for other in words
                )
        return False
    return name in ONLY_READ or (len(words) == 2 and words[1] in VERSIONS)


def spawns(*_, **__):
    """A process of Python's own that starts empty has no replacements."""
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
    if not CAN_REDIRECT:  # "C:\\..."
        path = os.path.normcase(os.path.abspath(path))
        home = os.path.normcase(os.path.join(disk.home, ""))
        return path.startswith((home, "\\\\.\\")) or os.path.basename(path) in ("nul", "con")
    if not path.startswith("/") or disk.is_outside(path):
        return True
    mode = mode_of(path)
    return mode is not None and stat.S_IFMT(mode) in (stat.S_IFCHR, stat.S_IFIFO, stat.S_IFSOCK)


CHANGES = {
    "os.mkdir": 1,
    "os.rmdir": 1,
    "os.remove": 1,
    "os.rename": 2,
    "os.symlink": 2,
    "os.link": 2,
    "os.chmod": 1,
    "os.chown": 1,
    "os.utime": 1,
    "os.truncate": 1,
    "os.setxattr": 1,
    "os.removexattr": 1,
    "os.chflags": 1,
    "sqlite3.connect": 1,
}
"""Audit events that change files, and how many of their arguments name one."""

STARTS = {
    "subprocess.Popen": 1,
    "os.system": 0,
    "os.posix_spawn": 1,
    "os.exec": 1,
    "os.startfile": 0,
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
        if (
            isinstance(flags, int)
            and flags & WRITES
            and not isinstance(path, int)
            and not may_change(disk, path)
        ):
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
                raise LeavesTheDisk(f"{event} of {text!r} past Python's own functions")


def words_of(command: object) -> str:
    """A command as one would type it."""
    return (
        " ".join(map(os.fsdecode, command))
        if isinstance(command, (list, tuple))
        else os.fsdecode(command)
    )


# --- what is around a disk -------------------------------------------------------------------------------------------


def prepare(disk: ScratchDisk, stack: ExitStack) -> None:
    """What else has to be otherwise while there is a scratch disk."""
    install_hook()
    # ``dbm.open`` loads one and opens with it in the same breath
    for name in ("dbm.gnu", "dbm.ndbm"):
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

    starts = [
        importlib.import_module(f"multiprocessing.{name}").Popen
        for name in ("popen_forkserver", "popen_spawn_posix")
        if CAN_REDIRECT
    ]
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
        put_in_place(stack, all_doors() if CAN_REDIRECT else {})
        ON.append(disk)
        stack.callback(ON.remove, disk)
        yield disk


def remove_scratch(disk: ScratchDisk) -> None:
    """The scratch folder goes, but not with a child that a program has forked."""
    if os.getpid() == disk.process:
        shutil.rmtree(disk.home, ignore_errors=True)
