"""What keeps one student of a hub from taking it from others: files, processes, cards, guesses at the password."""

import asyncio
import errno
import os
import resource
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from tornado import web

FREE_GUESSES, LONGEST_WAIT_SECONDS = 3, 5.0
"""So many wrong passwords in a row cost nothing; each later one doubles the wait, from a quarter of a second."""


def limit_process(memory_bytes: int, file_bytes: int, num_processes: int) -> None:
    """Bound what this process and those that it starts may take; called between fork and exec.

    Private memory of each process, the size of each file that it writes, and the processes and threads of the whole
    account: Linux counts the latter by account, but asks only those that have a limit. Root has no such limit.
    """
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    most = num_processes if hard == resource.RLIM_INFINITY else min(num_processes, hard)
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))


def bytes_under(folder: Path) -> int:
    """Bytes of all files in a folder, as the disk counts them; links are not followed."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_blocks * 512
            except FileNotFoundError:  # removed meanwhile
                continue
    return total


class NoRoom(web.HTTPError):
    """A student's server does not start; the page of the hub shows her why, at once or after it has waited."""

    def __init__(self, words: str):
        super().__init__(507, words)
        self.jupyterhub_message = words


def refuse_full_home(home: Path, most_bytes: int) -> None:
    """Raises: NoRoom: the files under ``home`` take more than ``most_bytes``."""
    num_bytes = bytes_under(home)
    if num_bytes > most_bytes:
        raise NoRoom(
            f"Your files take {num_bytes / 1e9:.1f} GB and may take {most_bytes / 1e9:.1f}. Ask your teacher, who can "
            "remove some."
        )


@contextmanager
def refusing_full_disk() -> Iterator[None]:
    """Raises: NoRoom: what is written inside finds no room on its disk, or no quota."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise NoRoom(
            "The disk of the class is full. Tell your teacher; nothing of yours is lost."
        ) from error


class Cards:
    """Which card a student's server sees: the one that the fewest servers have.

    ``names`` are what ``CUDA_VISIBLE_DEVICES`` takes: numbers, or the names of MIG instances.

    >>> cards = Cards(("0", "1"))
    >>> [cards.card_of(student) for student in ("ada", "bob", "cyd", "ada")]
    ['0', '1', '0', '0']
    """

    def __init__(self, names: tuple[str, ...]):
        self.names = names
        self.drawn: dict[str, str] = {}

    @classmethod
    def of_environment(cls) -> Self:
        """Those of ``MEMKIT_HUB_CARDS``; without a name every server sees what the hub sees."""
        return cls(tuple(filter(None, os.environ.get("MEMKIT_HUB_CARDS", "").split(","))))

    def card_of(self, student: str) -> str | None:
        """The student's card until ``free``; ``None`` where no cards are named."""
        if self.names and student not in self.drawn:
            servers = Counter(self.drawn.values())
            self.drawn[student] = min(self.names, key=lambda name: servers[name])
        return self.drawn.get(student)

    def free(self, student: str) -> None:
        """The student's server has ended."""
        self.drawn.pop(student, None)


class KeepsCard:
    """Of a spawner: a student keeps the card of ``cards`` while her server runs, and so does a hub that starts anew."""

    cards: Cards

    def get_state(self):
        return super().get_state() | {"card": self.cards.drawn.get(self.user.name)}

    def load_state(self, state):
        super().load_state(state)
        if state.get("card") in self.cards.names:  # a server that outlived the hub
            self.cards.drawn[self.user.name] = state["card"]

    def clear_state(self):
        super().clear_state()
        self.cards.free(self.user.name)


class Guesses:
    """Wrong passwords in a row by address; each address is asked one after the other, and waits."""

    def __init__(self):
        self.wrong: Counter[str] = Counter()
        self.turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def wait_seconds(self, address: str) -> float:
        """How long the next guess from the address waits before it is looked at."""
        later = self.wrong[address] - FREE_GUESSES
        return 0.0 if later < 0 else min(0.25 * 2.0**later, LONGEST_WAIT_SECONDS)

    async def judged(self, address: str, judge):
        """What ``judge()`` answers, after the wait; an answer of None is a wrong guess."""
        async with self.turns[address]:
            await asyncio.sleep(self.wait_seconds(address))
            answer = await judge()
            self.wrong[address] = self.wrong[address] + 1 if answer is None else 0
            return answer
