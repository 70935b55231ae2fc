"""Python's doors to files, each led through the scratch disk: ``open``, the functions of ``os``, ``io.FileIO``.

``pathlib``, ``shutil``, ``tempfile``, ``logging``, ``pickle`` and numpy reach files through these. ``DOORS`` says which
function goes through what; ``put_in_place`` replaces each wherever a loaded module holds it.
"""

import errno
import functools
import glob
import io
import os
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from stepscope.tracing.scratch_files import REAL, ScratchDisk


class State(threading.local):
    """Whether this thread is inside one of the doors below, where ``os`` is the real one."""

    is_inside = False


ON: list[ScratchDisk] = []
"""The disk that programs see now, at most one."""

STATE = State()


@contextmanager
def seeing(is_real: bool) -> Iterator[None]:
    """What runs here sees the real disk, or goes through the doors again."""
    before, STATE.is_inside = STATE.is_inside, is_real
    try:
        yield
    finally:
        STATE.is_inside = before


def as_door(real: Callable, through: Callable[..., object]) -> Callable:
    """A function of Python's that goes through the disk while there is one: ``through(disk, real, ...)``."""

    @functools.wraps(real)
    def door(*args, **kwargs):
        if not ON or STATE.is_inside:
            return real(*args, **kwargs)
        with seeing(is_real=True):
            try:
                return through(ON[-1], real, *args, **kwargs)
            except OSError as error:  # a program is told of the path that it wrote
                if isinstance(error.filename, str) and error.filename.startswith(ON[-1].home):
                    error.filename = args[0] if args else error.filename
                raise

    for known in (os.supports_fd, os.supports_dir_fd, os.supports_follow_symlinks, os.supports_effective_ids):
        if real in known:
            known.add(door)
    return door


def openers_of_numpy() -> dict:
    """A table in which numpy holds ``open``, for its text files."""
    source = sys.modules.get("numpy.lib._datasource") or sys.modules.get("numpy.lib._datasource_impl")
    return getattr(getattr(source, "_file_openers", None), "_file_openers", {})


def put_in_place(stack: ExitStack, doors: dict[int, object]) -> None:
    """Put the doors wherever a loaded module holds what they stand for, and take them back when the stack ends."""
    classes = [kind for module in (tempfile, glob) for kind in vars(module).values() if isinstance(kind, type)]
    homes = [module for module in list(sys.modules.values()) if module is not None]
    openers = openers_of_numpy()
    for name, value in list(openers.items()):
        if id(value) in doors:
            stack.callback(openers.__setitem__, name, value)
            openers[name] = doors[id(value)]
    for home in (*homes, *classes):
        names = getattr(home, "__dict__", None)
        if names is None or getattr(home, "__name__", "").startswith("stepscope.tracing.scratch_"):
            continue
        for name, value in list(names.items()):
            is_static = type(value) is staticmethod  # of the classes of glob, since Python 3.13
            door = doors.get(id(value.__func__ if is_static else value))
            if door is not None and value is not door:
                stack.callback(setattr, home, name, value)
                setattr(home, name, staticmethod(door) if is_static else door)
            defaults = getattr(value, "__defaults__", None) if home in classes else None
            if defaults and any(id(default) in doors for default in defaults):
                stack.callback(setattr, value, "__defaults__", defaults)
                value.__defaults__ = tuple(doors.get(id(default), default) for default in defaults)


def at(disk: ScratchDisk, path: object, folder: int | None) -> object:
    """A path that may be relative to an open folder."""
    if folder is None or isinstance(path, int) or os.path.isabs(path):
        return path
    return os.path.join(disk.folder_of(folder), os.fsdecode(path))


# --- Python's doors: each is given the disk, the real function and its arguments -----------------------------------


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
    place = disk.place(disk.folder_of(path) if isinstance(path, int) else "." if path is None else path)
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
    return Entries([Entry(disk.folder_of(path) if isinstance(path, int) else path, name) for name in names])


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


FLAGS = {"r": os.O_RDONLY, "w": os.O_CREAT | os.O_TRUNC, "a": os.O_APPEND | os.O_CREAT, "x": os.O_CREAT | os.O_EXCL}


def opens(disk, real, file, mode="r", *args, **kwargs):
    """``open``: the file has the name that the program gave it."""
    if isinstance(file, int) or not isinstance(mode, str):
        return real(file, mode, *args, **kwargs)
    opener = kwargs.get("opener") or (args[5] if len(args) > 5 else None)
    if opener:  # it makes the file by a door of its own
        def through_door(_, flags):
            with seeing(is_real=False):
                return opener(file, flags)

        kwargs["opener"], args = through_door, args[:5]
        found = os.path.join(disk.temp, "opener")
    else:
        flags = next((FLAGS[letter] for letter in mode if letter in FLAGS), 0) | (os.O_RDWR if "+" in mode else 0)
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
FILE_DOOR = functools.partial(as_door, through=opens)


class FileIO(io.FileIO, metaclass=AnyFileIO):
    """In place of ``io.FileIO``; a class, as programs derive from it."""


DOORS = {
    reads: "stat lstat access readlink statvfs pathconf getxattr listxattr",
    changes: "chmod lchmod chown lchown utime truncate setxattr removexattr chflags lchflags",
    makes: "mkdir mkfifo mknod", makes_link: "symlink", links: "link", removes: "remove unlink rmdir",
    moves: "rename replace", lists: "listdir", scans: "scandir", changes_folder: "chdir fchdir",
    opens_descriptor: "open",
}
"""Functions of ``os``, and what they go through."""


@functools.cache
def all_doors() -> dict[int, object]:
    """By the ``id`` of each function of Python's, what stands in its place."""
    doors = {}
    for through, names in DOORS.items():
        for name in names.split():
            if hasattr(REAL, name):
                doors[id(getattr(REAL, name))] = as_door(getattr(REAL, name), through)
    doors[id(REAL.getcwd)] = as_door(REAL.getcwd, lambda disk, real: disk.cwd)
    doors[id(REAL.getcwdb)] = as_door(REAL.getcwdb, lambda disk, real: os.fsencode(disk.cwd))
    doors[id(io.open)] = as_door(io.open, opens)
    doors[id(io.open_code)] = as_door(io.open_code, lambda disk, real, path: real(disk.found(path)))
    doors[id(FILE_IO)] = FileIO
    return doors
