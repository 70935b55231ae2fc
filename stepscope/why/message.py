"""The numbers of an allocator's message, and who held the card by them.

Three wordings have been in use, all written by ``c10/cuda/CUDACachingAllocator.cpp``:

- to torch 1.3: ``Tried to allocate 39.12 MiB (GPU 0; 10.76 GiB total capacity; 9.71 GiB already allocated; 5.56 MiB
  free; 10.13 MiB cached)``, where *cached* is what is reserved and not allocated;
- torch 1.4 to 2.0: ``... 9.71 GiB already allocated; 5.56 MiB free; 9.72 GiB reserved in total by PyTorch)``;
- from torch 2.1: ``GPU 0 has a total capacity of 23.65 GiB of which 1.66 GiB is free. Process 7 has 1.00 GiB memory in
  use. Including non-PyTorch memory, this process has 20.81 GiB memory in use. Of the allocated memory 12.09 GiB is
  allocated by PyTorch, with 1.00 GiB allocated in private pools (e.g., CUDA Graphs), and 4.84 GiB is reserved by
  PyTorch but unallocated.`` A process that may not see its own number is one of the *Process N*.

When it is written, PyTorch has given every whole free segment back to the driver: what is reserved and not allocated
lies in pieces between tensors. What the message says is allocated *in private pools* is free there, for CUDA graphs
alone, and is part of what it says is allocated.

Every number was rounded to two digits, so that a sum of them is off by up to a hundredth for each.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from memkit.units import GIB, KIB, MIB, TIB, format_bytes

UNITS = {"b": 1, "byte": 1, "k": KIB, "m": MIB, "g": GIB, "t": TIB}

SIZE = r"(-?\d[\d,]{0,15}(?:\.\d{1,9})?)\s?(bytes|[KMGT]i?B|B)"

MESSAGE = re.compile(rf"(CUDA|HIP|XPU)\s+out\s+of\s+memory(?:\W+Tried\s+to\s+allocate\s+{SIZE})?")
"""How one begins, its lines broken anywhere between two words; people often quote no more than its first words."""

FACTS = {
    "total": rf"total capac?i?ty of {SIZE}|{SIZE} total capacity",
    "free": rf"of which {SIZE} is free|{SIZE} free",
    "used": rf"this process has {SIZE} memory in use",
    "allocated": rf"Of the allocated memory {SIZE} is allocated|{SIZE} already allocated",
    "private": rf"with {SIZE} allocated in private pools",
    "in_pieces": rf"{SIZE} is reserved by PyTorch but unallocated|{SIZE} cached",
    "reserved": rf"{SIZE} reserved in total",
    "allowed": rf"{SIZE} allowed",
}
"""What a message may say, by the name of the field that takes it."""

NUM_LETTERS = 1500
"""So far behind its first words a message's numbers are looked for."""

ROUNDING_BYTES = GIB // 20
"""Five numbers of two digits, in GiB, sum to no more than this beside the whole."""

SHARE_OF_ERROR = 100
"""Sums that differ by less than one part in so many of the card are taken for rounding."""


def size_in(number: str, unit: str) -> int:
    """A size as a message writes it, in bytes; its units are powers of 1024, ``MB`` too (``memory_summary``'s).

    >>> size_in("1.50", "GiB"), size_in("896.00", "KiB"), size_in("0", "bytes")
    (1610612736, 917504, 0)
    """
    return round(float(number.replace(",", "")) * UNITS[unit[0].lower()])


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message of an allocator: bytes, None where it does not say; ``others`` has ``(process, bytes)``.

    ``tried`` is None where only the first words are quoted. ``in_pieces`` is reserved by PyTorch and not allocated,
    ``private`` the free part of the pools of CUDA graphs, ``used`` all that this process has on the card, ``allowed``
    the most that this process may reserve.
    """

    backend: str
    tried: int | None
    gpu: int | None = None
    total: int | None = None
    free: int | None = None
    used: int | None = None
    allocated: int | None = None
    private: int | None = None
    in_pieces: int | None = None
    allowed: int | None = None
    others: tuple[tuple[int, int], ...] = ()

    @property
    def reserved(self) -> int | None:
        """What PyTorch took from the driver: allocated, and in pieces."""
        return None if None in (self.allocated, self.in_pieces) else self.allocated + self.in_pieces

    @property
    def this_process(self) -> int | None:
        """The number of the *Process N* that is taken for this one: the least that can hold what PyTorch reserved.

        In a container a process does not know its number outside, so the message cannot say which it is.
        """
        if self.used is not None or self.reserved is None:
            return None
        large = [each for each in self.others if each[1] + self.error >= self.reserved > 0]
        return min(large, key=lambda each: (each[1] < self.reserved, each[1]), default=(None,))[0]

    @property
    def in_use(self) -> int | None:
        """All that this process has on the card."""
        return self.used if self.used is not None else dict(self.others).get(self.this_process)

    @property
    def neighbours(self) -> dict[int, int]:
        """Bytes of every process that is not this one; empty where it is not known which one is."""
        is_known = self.used is not None or self.this_process is not None
        return {n: size for n, size in self.others if n != self.this_process} if is_known else {}

    @property
    def outside(self) -> int | None:
        """What this process has on the card outside PyTorch's pool: CUDA's context, NCCL, other libraries."""
        return None if None in (self.in_use, self.reserved) else self.in_use - self.reserved

    @property
    def rest(self) -> int | None:
        """Bytes of the card that are in none of the message's numbers.

        Where it does not say what this process has in all, CUDA's context is among them.
        """
        if None in (self.total, self.free, self.reserved):
            return None
        mine = self.reserved if self.in_use is None else self.in_use
        known = self.neighbours if self.in_use is not None else dict(self.others)
        return self.total - self.free - mine - sum(known.values())

    @property
    def beside(self) -> int | None:
        """What neither is free nor this process's: all other processes, named or not.

        Where the message does not say what this process has in all, CUDA's context of it is among them.
        """
        mine = self.reserved if self.in_use is None else self.in_use
        return None if None in (self.total, self.free, mine) else self.total - self.free - mine

    @property
    def error(self) -> int:
        """What sums of rounded numbers may be off by."""
        return (self.total or self.tried or 0) // SHARE_OF_ERROR

    @property
    def pieces(self) -> Iterator[tuple[str, int]]:
        """The card cut up, as far as the message goes; the pieces sum to its total where it has one."""
        if self.allocated is not None:
            yield "allocated to tensors", self.allocated - (self.private or 0)
        if self.private:
            yield "free, but for CUDA graphs alone", self.private
        if self.in_pieces is not None:
            yield "reserved by PyTorch, in pieces", self.in_pieces
        if self.outside is not None:
            yield "this process's, outside PyTorch (CUDA's context, NCCL)", max(self.outside, 0)
        is_known = self.in_use is not None
        for number, size in self.neighbours.items() if is_known else self.others:
            yield f"process {number}'s" + ("" if is_known else " (perhaps this one)"), size
        if self.rest is not None and self.rest > 0:
            name = (
                "another's, which is not said"
                if is_known
                else "outside PyTorch, or another process's"
            )
            yield ("rounding" if self.rest < ROUNDING_BYTES else name), self.rest
        if self.free is not None:
            yield "free", self.free

    @property
    def arithmetic(self) -> Iterator[str]:
        """What was computed from the message, with its numbers."""
        size = format_bytes
        if self.this_process is not None:
            yield (
                f"Process {self.this_process} is taken for this one: of those that hold the {size(self.reserved)} that "
                "PyTorch reserved here it has least."
            )
        if self.outside is not None:
            yield (
                f"Outside PyTorch: {size(self.in_use)} in use − {size(self.allocated)} allocated − "
                f"{size(self.in_pieces)} in pieces = {size(self.outside)}."
            )
        elif self.rest is not None and self.rest > 0:
            others = "".join(f" − {size(num_bytes)}" for _, num_bytes in self.others)
            yield (
                f"Outside PyTorch: {size(self.total)} in total − {size(self.free)} free − {size(self.reserved)} "
                f"reserved{others} = {size(self.rest)}, CUDA's context among it."
            )
        if None not in (self.free, self.in_pieces, self.tried):
            both = self.free + self.in_pieces
            sum_of_both = (
                f"{size(self.free)} free + {size(self.in_pieces)} in pieces = {size(both)}"
            )
            if both > self.tried >= self.free:
                yield f"{sum_of_both} > {size(self.tried)} asked for: expandable segments may grant this one request."
            elif both <= self.tried:
                yield f"{sum_of_both} < {size(self.tried)} asked for: so pieces are not the cause."

    @property
    def missing(self) -> tuple[str, ...]:
        """What the message does not say."""
        words = {
            "tried": "what was asked for",
            "total": "the card's total",
            "free": "what is free",
            "allocated": "what tensors have",
            "in_pieces": "what PyTorch has reserved",
        }
        lacks = [said for name, said in words.items() if getattr(self, name) is None]
        if self.in_use is None:
            lacks.append("what this process has outside PyTorch, and what other processes have")
        return tuple(lacks)

    @property
    def contradictions(self) -> Iterator[str]:
        """Numbers that cannot all be so."""
        size = format_bytes
        if self.in_pieces is not None and self.in_pieces < 0:
            yield f"more is allocated ({size(self.allocated)}) than reserved ({size(self.reserved)})"
        if None not in (self.total, self.free) and self.free > self.total:
            yield f"more is free ({size(self.free)}) than the card has ({size(self.total)})"
        if None not in (self.total, self.reserved) and self.reserved > self.total + self.error:
            yield (
                f"more is reserved ({size(self.reserved)}) than the card has ({size(self.total)}), unless the driver "
                "lent it the host's memory, as Windows' does: that is slow, and a smaller job is faster"
            )
        elif self.outside is not None and self.outside < -self.error:
            yield f"PyTorch reserved more ({size(self.reserved)}) than its process has ({size(self.in_use)})"
        elif self.rest is not None and self.rest < -self.error:
            yield f"its parts are {size(-self.rest)} more than the card's {size(self.total)}"


def messages_in(text: str) -> Iterator[tuple[int, Message]]:
    """Where each allocator's message of a text begins, and the message, its lines broken between any two words.

    >>> [(_, message)] = messages_in("CUDA out of memory. Tried to allocate 2.50 GiB (GPU 0; 39.59 GiB total capacity; "
    ...     "36.83 GiB already allocated; 1.47 GiB free; 37.50 GiB reserved in total by PyTorch)")
    >>> format_bytes(message.rest)
    '634.88 MiB'
    """
    starts = list(MESSAGE.finditer(text))
    for number, start in enumerate(starts):
        end = starts[number + 1].start() if number + 1 < len(starts) else len(text)
        words = " ".join(text[start.start() : min(end, start.start() + NUM_LETTERS)].split())
        words = words.partition(" Traceback (most recent call last)")[0]
        yield start.start(), message_of(words)


def message_of(words: str) -> Message:
    """The message that these words begin with."""
    backend, number, unit = MESSAGE.match(words).groups()
    sizes = {}
    for name, pattern in FACTS.items():
        if fact := re.search(pattern, words):
            sizes[name] = size_in(*filter(None, fact.groups()))
    if (reserved := sizes.pop("reserved", None)) is not None and "allocated" in sizes:
        sizes["in_pieces"] = reserved - sizes["allocated"]
    found = re.findall(rf"Process (\d+) has {SIZE} memory in use", words)
    others = tuple((int(process), size_in(*size)) for process, *size in found)
    if sizes.get("used") == 0:  # a driver that tells a container nothing about processes
        sizes.pop("used")
        others = ()
    gpu = re.search(r"GPU (\d+)", words)
    return Message(
        backend=backend,
        tried=size_in(number, unit) if number else None,
        gpu=int(gpu[1]) if gpu else None,
        others=others,
        **sizes,
    )
