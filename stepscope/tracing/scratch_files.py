"""What a program finds at a path while it is traced: the disk, and over it what the program itself has written.

``ScratchDisk`` knows where each file lies: in a scratch folder if the program has written it, on the disk if not, and
nowhere if it was removed. It changes nothing but the scratch folder.
"""

import errno
import os
import shutil
import stat
import tempfile
from types import SimpleNamespace

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

from stepscope.tracing.refusals import own_line

REAL = SimpleNamespace(**{name: getattr(os, name) for name in dir(os) if callable(getattr(os, name))})
"""What ``os`` has when nothing is replaced."""

MOST_LINKS = 40
"""A path that leads through more symbolic links than this goes in a circle, as Linux has it."""

CACHES = ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME")
"""Names in the environment of folders to which libraries download; ``~/.cache`` where none is named."""

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
HAS_DOORS = os.name == "posix"
"""On Windows paths have other rules: there is no scratch folder over them, and what would write is refused."""

SWITCH = "STEPSCOPE_REPORT"
"""The environment has this name while a program is traced: how a script can know it."""


REFUSED: list[str] = []
"""What was refused since the disk was last as it was found: a program may go on without it."""


class LeavesTheDisk(PermissionError, ValueError):
    """What a program was about to do would change the disk, past the scratch folder."""

    def __init__(self, what: str):
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
        self.temp = f"{self.home}/tmp"  # what the program itself calls its folder for temporary files
        self.started_in = self.cwd = REAL.getcwd()
        self.process, self.number = os.getpid(), 0
        self.folders: dict[int, tuple[str, tuple[int, int]]] = {}  # by file descriptor: of those that were opened
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
                shutil.copytree(folder + place, self.folder + place, symlinks=True, dirs_exist_ok=True)
                self.origins |= {key: value for key, value in origins.items() if key.startswith(f"{place}/")}
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
        lists = [path for path in (beneath, self.above(place)) if path and stat.S_ISDIR(mode_of(path) or 0)]
        if not lists or self.is_outside(place):
            return REAL.listdir(self.where(place))
        inside = place.rstrip("/")
        names = dict.fromkeys(name for path in lists for name in REAL.listdir(path))
        names |= dict.fromkeys(key.rpartition("/")[2] for key in self.origins if key.rpartition("/")[0] == inside)
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
                raise LeavesTheDisk(f"changes {place!r} of {size:,} B, for a copy of which {self.home} has {space:,} B")
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
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source)  # as from disk to disk: shutil.move copies
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
        moved = {key: origin for key, origin in self.origins.items() if key.startswith(f"{source}/")}
        self.origins[target] = beneath if beneath is not None and mode_of(beneath) is not None else None
        self.origins |= {target + key[len(source):]: origin for key, origin in moved.items()}
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
