"""A scratch folder over the disk: a program writes its files and finds them again, and the disk stays as it was.

A trace runs a program's own code, which saves checkpoints, empties folders and keeps caches. In ``on_scratch_disk()``
who opens a file for writing gets a copy in a scratch folder, who reads looks there first, and what is removed is only
marked. At the end the folder goes. No file of the disk is ever open for writing, so that a trace that fails,
is stopped or is killed harms as little as one that ends. Four parts, in this order:

- ``sealed``: where Linux has Landlock (since 5.13) the command line gives up the right to change any other folder
  before a program runs. It, its threads and the programs that it starts get "Permission denied", whatever library they
  write with: https://docs.kernel.org/userspace-api/landlock.html
- ``ScratchDisk``: what is found at a path: a file in the scratch folder if the program has written it, the disk's if
  not, and nothing if it was removed.
- ``of_python``: Python's functions that reach files (``open``, those of ``os``, ``io.FileIO``), through which
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
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from itertools import chain
from types import SimpleNamespace
from unittest.mock import patch

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

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


REAL = SimpleNamespace(**vars(os))
"""What ``os`` has when nothing is replaced."""

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


def failed(code: int, path: object) -> OSError:
    """The error that the system has for this path."""
    return OSError(code, os.strerror(code), os.fsdecode(path))


def copy_with_holes(source: str, target: str) -> None:
    """As ``shutil.copy2``; the values of a checkpoint that a trace has saved are a hole, which stays one."""
    if not hasattr(os, "SEEK_DATA"):
        shutil.copy2(source, target)
        return
    with open(source, "rb") as old, open(target, "wb") as new:
        at, end = 0, os.fstat(old.fileno()).st_size
        new.truncate(end)
        while at < end:
            try:
                start = os.lseek(old.fileno(), at, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # only a hole from here on
                    break
                raise
            at = os.lseek(old.fileno(), start, os.SEEK_HOLE)
            old.seek(start)
            new.seek(start)
            new.write(old.read(at - start))
    shutil.copystat(source, target)


class ScratchDisk:
    """The file system as a program sees it: ``place`` names a path without links, ``where`` says where it really lies.

    What is written lies in ``folder``, each file under its whole path. Of a place in ``hidden``, and of what is below
    it, nothing of the disk is seen any more.
    """

    def __init__(self):
        self.home = os.path.realpath(tempfile.mkdtemp(prefix="stepscope-"))
        # what the program itself calls its folder for temporary files
        self.temp = f"{self.home}/tmp"
        self.started_in = self.cwd = REAL.getcwd()
        self.process, self.number = os.getpid(), 1
        self.folder, self.hidden = f"{self.home}/1", set()
        self.is_touched = False  # whether the program has changed anything
        self.before_traces: tuple[str, set[str]] | None = None
        self.given: set[str] = set()  # files that whoever traces may write
        for path in (self.folder, self.temp):
            os.makedirs(path)
        REFUSED.clear()

    def keep_written(self) -> None:
        """What has been written until now is there for every later trace."""
        self.before_traces = self.folder, self.hidden

    def start_anew(self) -> None:
        """The disk is as it was found, but for what was written before the first call, and for users' caches."""
        folder, hidden = self.folder, self.hidden
        self.before_traces = self.before_traces or (folder, hidden)
        first, self.hidden = self.before_traces
        self.number += 1
        self.folder = f"{self.home}/{self.number}"
        shutil.copytree(first, self.folder, symlinks=True, copy_function=copy_with_holes)
        caches = [
            os.path.realpath(os.path.expanduser(os.environ.get(name, "~/.cache")))
            for name in CACHES
        ]
        for cache in filter(lambda cache: os.path.isdir(folder + cache), caches):
            shutil.copytree(folder + cache, self.folder + cache, symlinks=True, dirs_exist_ok=True)
            self.hidden = self.hidden | {p for p in hidden if p.startswith(f"{cache}/")}
        self.is_touched = bool(self.hidden or os.listdir(self.folder))
        shutil.rmtree(self.temp, ignore_errors=True)
        os.makedirs(self.temp)
        self.cwd = self.started_in
        REAL.chdir(self.cwd)
        REFUSED.clear()

    # --- where things are ---------------------------------------------------------------------------------------

    def is_outside(self, place: str) -> bool:
        """Whether a place is no part of the disk: the scratch folder itself, devices and what the kernel shows."""
        if f"{place}/".startswith("/dev/"):
            return not f"{place}/".startswith("/dev/shm/")
        return f"{place}/".startswith((f"{self.home}/", "/proc/", "/sys/")) or place in self.given

    def place(self, path: object, follows: bool = True) -> str:
        """The absolute path without links; ``follows`` the one at its end, too."""
        if not (path := os.fsdecode(path)):
            raise failed(errno.ENOENT, path)
        whole = os.path.join(self.cwd, path)
        if self.is_outside(normal := os.path.normpath(whole)):
            return normal  # a link of the kernel's may lead to what has no path
        folder, name = (whole, "") if follows else os.path.split(whole.rstrip("/"))
        with seeing("links"):
            folder = os.path.realpath(folder or "/")
        if stat.S_ISLNK(self.mode(folder) or 0):
            raise failed(errno.ELOOP, path)  # of links that lead in a circle one is left
        return os.path.join(folder, name).rstrip("/") or "/"

    def is_hidden(self, place: str) -> bool:
        """Whether nothing of the disk is seen there."""
        while place and place not in self.hidden:
            place = place.rpartition("/")[0]
        return bool(place)

    def above(self, place: str) -> str:
        """The path in the scratch folder at which a place is written."""
        return place if self.is_outside(place) else self.folder + place

    def where(self, place: str) -> str:
        """The real path of what the program finds at a place; it may not exist."""
        above = self.above(place)
        mode = mode_of(above)
        if self.is_hidden(place) or mode is not None and not stat.S_ISDIR(mode):
            return above
        return place if mode is None or is_folder(place) else above

    def found(self, path: object, follows: bool = True) -> str:
        """``where``, of a path as the program writes it."""
        return os.fsdecode(path) if not self.is_touched else self.where(self.place(path, follows))

    def mode(self, place: str) -> int | None:
        """Kind and rights of what is at a place; None where nothing is."""
        return mode_of(self.where(place))

    def names(self, place: str) -> list[str]:
        """What is in a folder."""
        both = [] if self.is_hidden(place) else [place]
        folders = [path for path in dict.fromkeys((*both, self.above(place))) if is_folder(path)]
        lists = map(REAL.listdir, folders or [self.where(place)])
        names, inside = dict.fromkeys(chain(*lists)), place.rstrip("/")
        return [name for name in names if self.mode(f"{inside}/{name}") is not None]

    def folder_of(self, descriptor: int) -> str:
        """The place of an open folder, for what is named relative to it."""
        return path_of_open(descriptor).removeprefix(self.folder) or "/"

    # --- what changes -------------------------------------------------------------------------------------------

    def new_at(self, place: str) -> str:
        """The path in the scratch folder for something new, whose folder must be there."""
        self.is_touched = True
        folder = os.path.dirname(place)
        mode = self.mode(folder)
        if mode is None or not stat.S_ISDIR(mode):
            raise failed(errno.ENOENT if mode is None else errno.ENOTDIR, place)
        os.makedirs(self.above(folder), exist_ok=True)
        return self.above(place)

    def copied(self, place: str, is_emptied: bool = False) -> str:
        """Where in the scratch folder what is at a place is, copied there, its bytes too if wanted; devices stay."""
        found, above = self.where(place), self.above(place)
        mode = mode_of(found)
        if mode is None:
            return self.new_at(place)
        if found == above or stat.S_IFMT(mode) not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
            return found
        self.new_at(place)
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

    def changed(self, path: object, follows: bool = True) -> str:
        """The real path of something whose rights, times or length are about to change."""
        place = self.place(path, follows)
        return self.where(place) if self.mode(place) is None else self.copied(place)

    def made(self, path: object, follows: bool = False) -> str:
        """The real path of something new."""
        place = self.place(path, follows)
        if self.mode(place) is not None:
            raise failed(errno.EEXIST, path)
        return self.new_at(place)

    def hide(self, place: str) -> None:
        """Nothing of the disk is seen at a place, or below it, any more."""
        if not self.is_outside(place):
            self.is_touched = True
            self.hidden = {other for other in self.hidden if not other.startswith(f"{place}/")}
            self.hidden.add(place)

    def copied_whole(self, place: str) -> str:
        """The path in the scratch folder of what is at a place, with all that is below it."""
        above = self.copied(place)
        if above != self.above(place):
            raise LeavesTheDisk(f"moves {place!r}, which is neither file nor folder")
        for name in self.names(place) if is_folder(above) else ():
            self.copied_whole(f"{place}/{name}")
        return above

    def opened(self, path: object, flags: int) -> str:
        """The real path to open; a file that is to be written is copied first."""
        if not flags & WRITES and not self.is_touched:
            return os.fsdecode(path)
        is_new = flags & os.O_CREAT and flags & os.O_EXCL
        place = self.place(path, follows=not (is_new or flags & getattr(os, "O_NOFOLLOW", 0)))
        if not flags & WRITES or self.is_outside(place):
            return self.where(place)
        if getattr(os, "O_TMPFILE", 0) and flags & os.O_TMPFILE == os.O_TMPFILE:
            return self.temp
        mode = self.mode(place)
        if mode is None:
            return self.new_at(place) if flags & os.O_CREAT else self.where(place)
        if is_new or stat.S_ISDIR(mode):
            raise failed(errno.EEXIST if is_new else errno.EISDIR, path)
        return self.copied(place, is_emptied=bool(flags & os.O_TRUNC))


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


def is_folder(path: str) -> bool:
    """Whether a folder, and no link to one, is at a real path."""
    return stat.S_ISDIR(mode_of(path) or 0)


class State(threading.local):
    """What the functions below lead this thread to: the program's disk, the real one, or a place without links."""

    sees = "program"


ON: list[ScratchDisk] = []
"""The disk that programs see now, at most one."""

STATE = State()


@contextmanager
def seeing(what: str) -> Iterator[None]:
    """What runs here sees ``program``, ``disk`` or ``links``, as ``State`` says."""
    before, STATE.sees = STATE.sees, what
    try:
        yield
    finally:
        STATE.sees = before


def redirected(real: Callable, through: Callable[..., object]) -> Callable:
    """A function that goes through the disk while there is one: ``through(disk, real, ...)``."""

    @functools.wraps(real)
    def replacement(*args, **kwargs):
        if not ON or STATE.sees == "disk":
            return real(*args, **kwargs)
        if STATE.sees == "links":  # realpath asks, from the root on: what comes before has none
            return real(ON[-1].where(args[0]), *args[1:], **kwargs)
        with seeing("disk"):
            try:
                return through(ON[-1], real, *args, **kwargs)
            except OSError as error:  # a program is told of the paths that it wrote
                for name, written in zip(("filename", "filename2"), args, strict=False):
                    if str(getattr(error, name)).startswith(ON[-1].home):
                        setattr(error, name, written)
                raise

    return replacement


def put_in_place(stack: ExitStack, replacements: dict[int, object]) -> None:
    """Put each wherever a loaded module holds what it stands for, and take it back when the stack ends."""
    # numpy holds ``open`` for its text files in a table
    source = sys.modules.get("numpy.lib._datasource")
    of_numpy = getattr(getattr(source, "_file_openers", None), "_file_openers", {})
    own = sys.modules[__name__]
    modules = [module for module in list(sys.modules.values()) if module is not own]
    for table in (of_numpy, *(getattr(module, "__dict__", {}) for module in modules)):
        for name, value in list(table.items()):
            if replacements.get(id(value), value) is not value:
                stack.callback(table.__setitem__, name, value)
                table[name] = replacements[id(value)]
    for kind in (*vars(tempfile).values(), *vars(glob).values()):
        for name, value in list(vars(kind).items()) if isinstance(kind, type) else ():
            held = getattr(value, "__func__", None)  # a static method: glob's, since Python 3.13
            if id(held) in replacements:
                stack.enter_context(patch.object(kind, name, staticmethod(replacements[id(held)])))
            defaults = getattr(value, "__defaults__", None) or ()
            if any(id(default) in replacements for default in defaults):
                stack.callback(setattr, value, "__defaults__", defaults)
                value.__defaults__ = tuple(replacements.get(id(one), one) for one in defaults)


# --- Python's functions: each is given the disk, the real function and its arguments --------------------------------


def at(disk: ScratchDisk, path: object, folder: int | None) -> object:
    """A path that may be relative to an open folder."""
    if folder is None or os.path.isabs(path):
        return path
    return os.path.join(disk.folder_of(folder), os.fsdecode(path))


NOT_FOLLOWED = "lstat readlink lchmod lchown lchflags mkdir mkfifo mknod".split()
"""Functions that take a link at the path's end for itself."""


def with_path(way: Callable[[ScratchDisk, object, bool], str]) -> Callable:
    """How a function of ``os`` with one path goes through the disk: to the real path that ``way`` says."""

    def through(disk, real, path, *args, dir_fd=None, **kwargs):
        if isinstance(path, int):
            return real(path, *args, **kwargs)
        follows = kwargs.get("follow_symlinks", real.__name__ not in NOT_FOLLOWED)
        return real(way(disk, at(disk, path, dir_fd), follows), *args, **kwargs)

    return through


def makes_link(disk, real, target, path, *args, dir_fd=None, **kwargs):
    """``os.symlink``."""
    return real(target, disk.made(at(disk, path, dir_fd)), *args, **kwargs)


def links(disk, real, source, path, *, src_dir_fd=None, dst_dir_fd=None, follow_symlinks=True):
    """``os.link``: of a copy, so that what is written by one of its names is seen by the other."""
    old = disk.copied(disk.place(at(disk, source, src_dir_fd), follow_symlinks))
    return real(old, disk.made(at(disk, path, dst_dir_fd)))


def removes(disk, real, path, *, dir_fd=None):
    """``os.remove``, ``unlink`` and ``rmdir``: of an empty copy, by which the system says what it would say."""
    place = disk.place(at(disk, path, dir_fd), follows=False)
    if is_folder(disk.where(place)) and disk.names(place) and real.__name__ == "rmdir":
        raise failed(errno.ENOTEMPTY, path)
    above = disk.above(place)
    if disk.mode(place) is None or disk.copied(place, is_emptied=True) == above:
        real(above)
    disk.hide(place)


def moves(disk, real, source, target, *, src_dir_fd=None, dst_dir_fd=None):
    """``os.rename`` and ``os.replace``: of a copy of the whole."""
    old = disk.place(at(disk, source, src_dir_fd), follows=False)
    new = disk.place(at(disk, target, dst_dir_fd), follows=False)
    if disk.mode(old) is None:
        raise failed(errno.ENOENT, source)
    if is_folder(disk.where(new)) and is_folder(disk.where(old)) and disk.names(new):
        raise failed(errno.ENOTEMPTY, target)
    if old != new:
        disk.new_at(new)
        disk.copied(new, is_emptied=True)
        real(disk.copied_whole(old), disk.above(new))
        disk.hide(old)
        disk.hide(new)


def place_of(disk: ScratchDisk, path: object) -> str:
    """The place of a folder that is named, open, or ``None``: the one to work in."""
    if isinstance(path, int):
        return disk.folder_of(path)
    return disk.place("." if path is None else path)


def lists(disk, real, path="."):
    """``os.listdir``."""
    names = disk.names(place_of(disk, path))
    return list(map(os.fsencode, names)) if isinstance(path, bytes) else names


class ScratchDirEntry(os.PathLike):
    """What ``os.scandir`` gives for a name in a folder."""

    def __init__(self, folder: object, name: object):
        self.name, self.path = name, os.path.join(folder, name)

    def __fspath__(self):
        return self.path

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self.path, follow_symlinks=follow_symlinks)

    def inode(self) -> int:
        return os.lstat(self.path).st_ino

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return os.path.isdir(self.path) and (follow_symlinks or not self.is_symlink())

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return os.path.isfile(self.path) and (follow_symlinks or not self.is_symlink())

    def is_symlink(self) -> bool:
        return os.path.islink(self.path)

    def is_junction(self) -> bool:
        return False


class Entries(Iterator, AbstractContextManager):
    """What ``os.scandir`` returns: to be gone through once, and closed."""

    def __init__(self, entries: list[ScratchDirEntry]):
        self.entries = iter(entries)

    def __next__(self) -> ScratchDirEntry:
        return next(self.entries)

    def __exit__(self, *_):
        self.close()

    def close(self) -> None:
        self.entries = iter(())


def scans(disk, real, path="."):
    """``os.scandir``."""
    if not disk.is_touched:
        return real(path)
    folder = disk.folder_of(path) if isinstance(path, int) else "." if path is None else path
    return Entries([ScratchDirEntry(folder, name) for name in lists(disk, real, path)])


def changes_folder(disk, real, path):
    """``os.chdir``: a folder that only the program sees is one of the scratch folder."""
    place = place_of(disk, path)
    REAL.chdir(disk.where(place))
    disk.cwd = place


def opens_descriptor(disk, real, path, flags, mode=0o777, *, dir_fd=None):
    """``os.open``."""
    return real(disk.opened(at(disk, path, dir_fd), flags), flags, mode)


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

        def opened(_, flags):
            with seeing("program"):
                return opener(file, flags)

        kwargs["opener"], args = opened, args[:5]
        found = os.path.join(disk.temp, "opener")
    else:
        flags = next((FLAGS[letter] for letter in mode if letter in FLAGS), 0)
        found = disk.opened(file, flags | (os.O_RDWR if "+" in mode else 0))
    made = real(found, mode, *args, **kwargs)
    raw = getattr(made, "buffer", made)
    getattr(raw, "raw", raw).name = file
    return made


class FileIO(io.FileIO):
    """In place of ``io.FileIO``: torch saves by it under a name that is not ASCII, and programs derive from it."""

    def __init__(self, *args, **kwargs):
        def made(*args, **kwargs):
            super(FileIO, self).__init__(*args, **kwargs)
            return self

        redirected(made, opens)(*args, **kwargs)


OF_OS = {
    "stat lstat access readlink statvfs pathconf getxattr listxattr": with_path(ScratchDisk.found),
    "chmod lchmod chown lchown utime truncate setxattr removexattr chflags lchflags": with_path(
        ScratchDisk.changed
    ),
    "mkdir mkfifo mknod": with_path(ScratchDisk.made),
    "symlink": makes_link,
    "link": links,
    "remove unlink rmdir": removes,
    "rename replace": moves,
    "listdir": lists,
    "scandir": scans,
    "chdir fchdir": changes_folder,
    "open": opens_descriptor,
    "getcwd": lambda disk, real: disk.cwd,
    "getcwdb": lambda disk, real: os.fsencode(disk.cwd),
}
"""Functions of ``os``, and what they go through."""


@functools.cache
def of_python() -> dict[int, object]:
    """By the ``id`` of each function of Python's, what stands in its place."""
    pairs = [
        (getattr(REAL, name), through)
        for names, through in OF_OS.items()
        for name in names.split()
        if hasattr(REAL, name)
    ]
    pairs += [(io.open, opens), (io.open_code, with_path(ScratchDisk.found))]
    return {id(real): redirected(real, through) for real, through in pairs} | {
        id(io.FileIO): FileIO
    }


# --- libraries that open files in C -------------------------------------------------------------------------------

READ, WRITE, CHANGE = 0, os.O_CREAT | os.O_TRUNC, os.O_CREAT | os.O_RDWR


def for_c(disk: ScratchDisk, path: object, flags: int) -> object:
    """The real path for a library in C: it reads, writes anew, or goes on from what is there."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        return path
    if not CAN_REDIRECT:
        if flags and not may_change(disk, path):
            raise LeavesTheDisk(f"writes {os.fsdecode(path)!r}")
        return path
    found = disk.opened(path, flags)
    return os.fsencode(found) if isinstance(path, bytes) else found


def at_argument(number: int, name: str, flags: int | None = None, *beside: str) -> Callable:
    """A replacement for a function whose argument of this number, or name, is a file.

    ``flags`` are None where the argument after it, ``mode``, says them. ``beside``: endings of files of the same name.
    """

    def through(disk, real, *args, **kwargs):
        wanted = flags
        if flags is None:
            mode = str(args[number + 1] if len(args) > number + 1 else kwargs.get("mode", "r"))
            wanted = READ if mode in ("r", "rb") else WRITE if mode[:1] == "w" else CHANGE
        path = args[number] if len(args) > number else kwargs.get(name)
        for ending in beside:
            if disk.mode(place := disk.place(os.fsdecode(path) + ending)) is not None:
                disk.copied(place)
        if len(args) > number:
            args = (*args[:number], for_c(disk, path, wanted), *args[number + 1 :])
        elif name in kwargs:
            kwargs[name] = for_c(disk, path, wanted)
        return real(*args, **kwargs)

    return through


def file_of_sqlite(database: object) -> str:
    """The path of a data base, or nothing where it is in memory alone."""
    name = os.fsdecode(database)
    path = name.removeprefix("file:").partition("?")[0]
    return "" if path == ":memory:" or "mode=memory" in name else path


def connects(disk, real, database, *args, **kwargs):
    """``sqlite3.connect``: the data base is copied with the journals that may lie beside it."""
    path = file_of_sqlite(database)
    if not path or not CAN_REDIRECT:
        return real(database, *args, **kwargs)

    def opened(found):
        is_uri = kwargs.get("uri") and os.fsdecode(database).startswith("file:")
        found = os.fsdecode(database).replace(path, found, 1) if is_uri else found
        return real(found, *args, **kwargs)

    return at_argument(0, "database", CHANGE, "-wal", "-shm", "-journal")(disk, opened, path)


LARGE_BYTES = 2**26
"""A data set of more bytes is not copied, because numpy maps it for writing where nobody says otherwise."""


def maps(disk, real, kind, filename, dtype="uint8", mode="r+", *args, **kwargs):
    """``np.memmap``: what is written to a large file stays in this mapping alone."""
    is_path = isinstance(filename, (str, bytes, os.PathLike))
    if mode in ("r+", "readwrite") and is_path and CAN_REDIRECT:
        found = disk.found(filename)
        is_below = not found.startswith(disk.home)
        if is_below and mode_of(found) is not None and REAL.stat(found).st_size > LARGE_BYTES:
            mode = "copyonwrite"
    with seeing("program"):
        return real(kind, filename, dtype, mode, *args, **kwargs)


LIBRARIES = (
    ("torch._C", "PyTorchFileReader", at_argument(0, "file", READ)),
    ("torch._C", "PyTorchFileWriter", at_argument(0, "file", WRITE)),
    ("torch._C", "import_ir_module", at_argument(1, "file", READ)),
    ("torch.jit._script", "RecursiveScriptModule.save", at_argument(1, "f", WRITE)),
    ("torch", "from_file", at_argument(0, "filename", CHANGE)),
    ("torch.autograd.profiler", "profile.export_chrome_trace", at_argument(1, "path", WRITE)),
    ("torch.storage", "UntypedStorage.from_file", at_argument(0, "filename", CHANGE)),
    ("sqlite3", "connect", connects),
    ("numpy", "memmap.__new__", maps),
    ("_gdbm", "open", at_argument(0, "filename", CHANGE)),
    ("_dbm", "open", at_argument(0, "filename", CHANGE, ".db", ".dir", ".pag")),
    ("safetensors", "safe_open", at_argument(0, "filename", READ)),
    ("safetensors", "serialize_file", at_argument(1, "filename", WRITE)),
    ("tokenizers", "Tokenizer.save", at_argument(1, "path", WRITE)),
    ("tokenizers", "Tokenizer.from_file", at_argument(0, "path", READ)),
    ("h5py.h5f", "create", at_argument(0, "name", WRITE)),
    ("h5py.h5f", "open", at_argument(0, "name", CHANGE)),
    ("pyarrow.lib", "OSFile", at_argument(0, "path")),
    ("pyarrow.lib", "memory_map", at_argument(0, "path")),
    ("pyarrow.lib", "create_memory_map", at_argument(0, "path", WRITE)),
    ("pyarrow.parquet.core", "ParquetWriter.__init__", at_argument(1, "where", WRITE)),
    ("pyarrow.parquet.core", "ParquetFile.__init__", at_argument(1, "source", READ)),
    ("pyarrow.parquet.core", "ParquetDataset.__init__", at_argument(1, "path_or_paths", READ)),
    ("pyarrow._csv", "write_csv", at_argument(1, "output_file", WRITE)),
    ("pyarrow._csv", "read_csv", at_argument(0, "input_file", READ)),
    ("pyarrow.feather", "write_feather", at_argument(1, "dest", WRITE)),
    ("pyarrow.feather", "read_table", at_argument(0, "source", READ)),
    ("torchvision.io.image", "read_file", at_argument(0, "path", READ)),
    ("torchvision.io.image", "write_file", at_argument(0, "filename", WRITE)),
    ("torchvision.io.image", "write_png", at_argument(1, "filename", WRITE)),
    ("torchvision.io.image", "write_jpeg", at_argument(1, "filename", WRITE)),
    ("cv2", "imwrite", at_argument(0, "filename", WRITE)),
    ("cv2", "imread", at_argument(0, "filename", READ)),
    ("cv2", "VideoWriter", at_argument(0, "filename", WRITE)),
    ("soundfile", "SoundFile.__init__", at_argument(1, "file")),
    ("lmdb", "open", at_argument(0, "path", CHANGE)),
    ("lmdb", "Environment", at_argument(0, "path", CHANGE)),
)
"""Functions that open a file in C: the module, its name there, and what it goes through."""


def look(waiting: list[tuple], stack: ExitStack) -> None:
    """Lead the libraries that have been loaded since through the disk."""
    replacements = {}
    for row in [row for row in waiting if row[0] in sys.modules]:
        waiting.remove(row)
        module, name, through = row
        home, _, last = name.rpartition(".")
        owner = getattr(sys.modules[module], home, None) if home else sys.modules[module]
        real = getattr(owner, last, None)
        if real is None:
            continue
        replacement = redirected(real, through)
        if not home:
            replacements[id(real)] = replacement
            continue
        is_static = isinstance(vars(owner).get(last), staticmethod)
        replacement = staticmethod(replacement) if is_static else replacement
        stack.enter_context(patch.object(owner, last, replacement))
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
        parts = text.split("|")
        if OF_A_SHELL.search(text) or len(parts) > 1:
            return not OF_A_SHELL.search(text) and all(map(is_only_read, parts))
        words = text.split()
    else:
        words = list(map(os.fsdecode, command))
    if len(words) > 2 and os.path.basename(words[0]) in ("sh", "bash") and words[1] == "-c":
        return is_only_read(words[2])
    name = os.path.basename(words[0]).removesuffix(".exe") if words else ""
    if name == "git":
        asked = re.sub(r"^(-C \S+ |--no-pager )*", "", " ".join(words[1:])).split(" ")
        return asked[0] in GIT_ONLY_READS and not any(w.startswith("--output") for w in asked)
    return name in ONLY_READ or (len(words) == 2 and words[1] in VERSIONS)


def words_of(command: object) -> str:
    """A command as one would type it."""
    is_list = isinstance(command, (list, tuple))
    return " ".join(map(os.fsdecode, command)) if is_list else os.fsdecode(command)


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


CHANGES = dict.fromkeys(
    "os.mkdir os.rmdir os.remove os.chmod os.chown os.utime os.truncate os.setxattr os.removexattr os.chflags "
    "sqlite3.connect".split(),
    slice(1),
) | {"os.rename": slice(2), "os.symlink": slice(1, 2), "os.link": slice(1, 2)}
"""Audit events that change files, and which of their arguments name one."""

STARTS = {
    "subprocess.Popen": 1,
    "os.system": 0,
    "os.posix_spawn": 1,
    "os.exec": 1,
    "os.startfile": 0,
    "_winapi.CreateProcess": 1,
}
"""Audit events that start another program, and which argument has its words."""


def refuse_past_the_disk(event: str, args: tuple) -> None:
    """The audit hook: what would change a real file is refused, whoever does it. Raises: LeavesTheDisk."""
    if not ON or not (event == "open" or event in CHANGES or event in STARTS):
        return
    disk = ON[-1]
    if event in STARTS:
        if not is_only_read(args[STARTS[event]]):
            raise LeavesTheDisk(f"starts another program, {words_of(args[STARTS[event]])!r}")
    elif event == "open":
        path, _, flags = args
        is_written = isinstance(flags, int) and flags & WRITES and not isinstance(path, int)
        if is_written and not may_change(disk, path):
            raise LeavesTheDisk(f"opens {os.fsdecode(path)!r} for writing past Python's own open")
    else:
        folder = args[-1] if isinstance(args[-1], int) else -1
        for path in args[CHANGES[event]]:
            if event == "sqlite3.connect" and not (path := file_of_sqlite(path)):
                continue
            if not may_change(disk, path, folder):
                text = path if isinstance(path, int) else os.fsdecode(path)
                raise LeavesTheDisk(f"{event} of {text!r} past Python's own functions")


@functools.cache
def install_hook() -> None:
    """An audit hook stays for as long as the process; without a scratch disk it does nothing."""
    sys.addaudithook(refuse_past_the_disk)


# --- what is around a disk -------------------------------------------------------------------------------------------


def register_on_scratch(register: Callable) -> Callable:
    """``atexit.register``: what a program leaves to be done at the exit is done on a scratch disk too."""

    def at_exit(function, args, kwargs):
        with on_scratch_disk():
            function(*args, **kwargs)

    def registered(function, *args, **kwargs):
        register(at_exit, function, args, kwargs)
        return function

    return registered


@contextmanager
def on_scratch_disk() -> Iterator[ScratchDisk]:
    """Inside, nothing that a program does changes the disk; where a scratch disk is in use already, it is that one."""
    if ON:
        yield ON[-1]
        return
    install_hook()
    # ``dbm.open`` loads one and opens with it in the same breath
    for name in ("dbm.gnu", "dbm.ndbm"):
        with suppress(ImportError):
            importlib.import_module(name)
    starts = [
        importlib.import_module(f"multiprocessing.{name}").Popen
        for name in ("popen_forkserver", "popen_spawn_posix")
        if CAN_REDIRECT
    ]
    disk = ScratchDisk()
    names = {"TMPDIR": disk.temp, SWITCH: "1", "GIT_OPTIONAL_LOCKS": "0", "HF_HUB_DISABLE_XET": "1"}
    with ExitStack() as stack:
        stack.callback(remove_scratch, disk)
        stack.callback(REAL.chdir, disk.started_in)
        disk.look = functools.partial(look, list(LIBRARIES), stack)
        disk.look()
        for change in (
            patch.dict(os.environ, names),
            patch.object(tempfile, "tempdir", disk.temp),
            patch.object(sys, "dont_write_bytecode", True),
            patch.object(shutil, "_use_fd_functions", False),
            patch.object(atexit, "register", register_on_scratch(atexit.register)),
            *(patch.object(kind, "_launch", spawns) for kind in starts),
        ):
            stack.enter_context(change)
        put_in_place(stack, of_python() if CAN_REDIRECT else {})
        ON.append(disk)
        stack.callback(ON.remove, disk)
        yield disk


def remove_scratch(disk: ScratchDisk) -> None:
    """The scratch folder goes, but not with a child that a program has forked."""
    if os.getpid() == disk.process:
        shutil.rmtree(disk.home, ignore_errors=True)
