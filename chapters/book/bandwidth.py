"""How fast bytes move on this machine, measured: inside the RAM, inside the card, and between the two.

A copy inside one memory reads and writes it, so n bytes copied are 2n bytes moved. A copy over a link moves n
bytes. Pinned host memory cannot be paged out, so the card fetches it by itself; from pageable memory the
driver first copies every piece into a pinned buffer of its own.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from book.driver import available_ram_bytes, card_by_driver_name
from book.gpu_cap import usable_bytes
from memkit.cards import Card
from memkit.units import (
    MIB,
    Printable,
    aligned_table,
    as_whole_number,
    format_bytes,
    format_gb,
    on_page,
)

LARGEST_COPY_BYTES = 512 * MIB
"""Larger than any cache of a card or a processor core, small enough to be done at once."""

SHARE_OF_FREE = 8
"""One copy takes at most this part of the free memory: two buffers then leave three quarters alone."""

REPEATS = 10


def seconds_of(run: Callable[[], object], repeats: int, device: str = "cuda") -> list[float]:
    """Seconds of each of ``repeats`` calls, after one that is not counted; on a card by its own clock."""
    run()
    seconds = []
    for _ in range(repeats):
        if device == "cpu":
            begun = time.perf_counter_ns()
            run()
            seconds.append((time.perf_counter_ns() - begun) / 1e9)
            continue
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        run()
        end.record()
        end.synchronize()
        seconds.append(start.elapsed_time(end) / 1e3)
    return seconds


@dataclass(frozen=True, kw_only=True)
class Copy:
    """One kind of copy: ``num_bytes`` copied in ``seconds`` at best, each byte counted ``crossings`` times."""

    name: str
    num_bytes: int
    seconds: float
    crossings: int
    peak_bytes_per_s: int | None = None

    @property
    def bytes_per_s(self) -> int:
        """Bytes moved per second: ``crossings * num_bytes / seconds``."""
        return round(self.crossings * self.num_bytes / self.seconds)


@dataclass(frozen=True, kw_only=True)
class Bandwidths(Printable):
    """The copies that were timed on this machine; ``device`` is the card's name, or ``None`` without a card."""

    copies: tuple[Copy, ...]
    device: str | None

    def __str__(self) -> str:
        """The copies as aligned text, beside the figure of the data sheet where the card is known."""
        rows = [["copy", "copied", "moved per second", "data sheet", "reached"]]
        for copy in self.copies:
            peak = copy.peak_bytes_per_s
            row = [copy.name, format_bytes(copy.num_bytes), f"{format_gb(copy.bytes_per_s)}/s"]
            sheet = (
                [f"{format_gb(peak)}/s", f"{copy.bytes_per_s / peak:.0%}"] if peak else ["–", "–"]
            )
            rows.append([*row, *sheet])
        where = "there is no CUDA card here: only the RAM is measured"
        where = f"on {self.device}" if self.device else where
        return on_page(aligned_table(rows), where, between="\n")


def measure_bandwidth(num_bytes: int | None = None, repeats: int = REPEATS) -> Bandwidths:
    """Time a copy in RAM and, with a card, in its memory and between the two; the best of ``repeats`` counts.

    ``num_bytes`` left out is as large as the free memory allows, at most ``LARGEST_COPY_BYTES``.

    Raises: ValueError: ``num_bytes`` or ``repeats`` is not a whole number above zero.
    """
    repeats = as_whole_number("repeats", repeats, 1)
    num_bytes = copy_size() if num_bytes is None else as_whole_number("num_bytes", num_bytes, 1)
    copies = [time_cpu_copy(num_bytes, repeats)]
    if not torch.cuda.is_available():
        return Bandwidths(copies=tuple(copies), device=None)
    device = torch.cuda.get_device_name()
    copies += time_cuda_copies(num_bytes, repeats, card_by_driver_name(device))
    return Bandwidths(copies=tuple(copies), device=device)


def copy_size() -> int:
    """Bytes to copy at once, within the free RAM and, with a card, the usable memory there."""
    limits = [LARGEST_COPY_BYTES]
    if (ram := available_ram_bytes()) is not None:
        limits.append(ram // SHARE_OF_FREE)
    if torch.cuda.is_available():
        limits.append(usable_bytes() // SHARE_OF_FREE)
    return max(MIB, min(limits))


def time_cpu_copy(num_bytes: int, repeats: int = REPEATS) -> Copy:
    """A copy from RAM to RAM, on as many threads as torch uses."""
    source, target = (torch.ones(num_bytes, dtype=torch.uint8) for _ in range(2))
    seconds = min(seconds_of(lambda: target.copy_(source), repeats, "cpu"))
    return Copy(name="RAM to RAM", num_bytes=num_bytes, seconds=seconds, crossings=2)


def time_cuda_copies(
    num_bytes: int, repeats: int = REPEATS, card: Card | None = None
) -> list[Copy]:
    """Copies inside the card, and to and from pinned and pageable RAM, timed by CUDA events."""
    on_card, other = (torch.ones(num_bytes, dtype=torch.uint8, device="cuda") for _ in range(2))
    pageable = torch.ones(num_bytes, dtype=torch.uint8)
    pinned = pageable.pin_memory()
    slot = card.pcie_bytes_per_s if card else None
    kinds = (
        ("card to card", lambda: other.copy_(on_card), 2, card.memory_bandwidth if card else None),
        ("pinned RAM to card", lambda: on_card.copy_(pinned, non_blocking=True), 1, slot),
        ("pageable RAM to card", lambda: on_card.copy_(pageable), 1, slot),
        ("card to pinned RAM", lambda: pinned.copy_(on_card, non_blocking=True), 1, slot),
        ("card to pageable RAM", lambda: pageable.copy_(on_card), 1, slot),
    )
    return [
        Copy(
            name=name,
            num_bytes=num_bytes,
            seconds=min(seconds_of(copy, repeats)),
            crossings=crossings,
            peak_bytes_per_s=peak,
        )
        for name, copy, crossings, peak in kinds
    ]
