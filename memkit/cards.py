"""What a card has: bytes, bytes per second and arithmetic per second, each from a named source.

The label says 80 GB, ``nvidia-smi`` says 79.6 GiB and a program gets 79.2 GiB. What a training step must fit
into is the last one: the total that CUDA reports to the process. It is written here as public logs print it.
A memory bandwidth is not typed in but derived: bus width times transfers per second. Each card is a row of
``cards.csv``. The report of the L40S is an L40's, for which ``nvidia-smi`` prints the same 46068 MiB.
"""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from decimal import Decimal
from pathlib import Path

from memkit.units import GIB, MIB

PCIE_LANES = 16
PCIE_GIGATRANSFERS = {3: 8, 4: 16, 5: 32}
"""10**9 transfers per second of one lane; 128 of every 130 bits carry data."""
MIN_CAPABILITY = {
    "float16": (7, 0),
    "tf32": (8, 0),
    "bfloat16": (8, 0),
    "float8_e4m3fn": (8, 9),
    "float4_e2m1fn": (10, 0),
}
"""First NVIDIA compute capability whose tensor cores multiply the format; MX and NVFP4 come with the last.

Source: torch 2.13, ``is_bf16_supported``, ``is_tf32_supported`` and the rules of its own FP8 and MX tests.
"""


@dataclass(frozen=True, kw_only=True)
class CardMemory:
    """A card of which only the memory may be known: it answers nothing but whether a step fits.

    ``memory_report`` is the total as CUDA told it to a process, in the words of the log at ``memory_source``; of one
    without such a log the label in GB (10**9 bytes), which is a little less or more.
    """

    name: str
    memory_report: str
    memory_source: str
    vendor: str = "NVIDIA"
    compute_capability: tuple[int, int] | None = None
    label_gb: int | None = None

    @property
    def memory_bytes(self) -> int:
        """Bytes a process can have at most, as exact as the log prints them."""
        number, unit = re.fullmatch(r"([\d.]+) (bytes|GB|MiB|GiB)", self.memory_report).groups()
        return int(Decimal(number) * {"bytes": 1, "GB": 10**9, "MiB": MIB, "GiB": GIB}[unit])


@dataclass(frozen=True, kw_only=True)
class Card(CardMemory):
    """One card as its driver reports it and its vendor specifies it.

    ``nvidia_smi_mib`` is what ``nvidia-smi`` prints for such a card. ``transfers_per_s`` is the data rate of
    one pin of the memory bus, ``clock_hz`` the boost clock, at which the caches' bytes per clock are counted. Vendors
    state matrix rates at a clock of their own: an H100 SXM's 989.4 are 132 SMs, 4,096 operations and 1.83 GHz,
    below its boost clock of 1.98 GHz. ``peak_tflops`` is by format the dense rate of a
    matrix product with float32 sums, in 10**12 operations per second (vendors' sparse figures are halved).
    ``l2_bytes_per_clock`` and ``link_bytes_per_s`` (one direction, all links) are ``None`` where the vendor
    names none. ``num_linked_cards`` are those that the links join: all of a board, or the two of a bridge.
    """

    architecture: str
    compute_capability: tuple[int, int]
    label_gb: int
    nvidia_smi_mib: int | None = None
    memory_kind: str
    bus_bits: int
    transfers_per_s: int
    l2_bytes_per_clock: int | None = None
    num_sms: int
    fp32_lanes_per_sm: int = 128
    l1_bytes_per_clock: int = 128
    clock_hz: int
    peak_tflops: Mapping[str, float]
    pcie_generation: int
    link_bytes_per_s: int | None = None
    num_linked_cards: int | None = None
    source: str

    @property
    def memory_bandwidth(self) -> int:
        """Bytes per second between the card's memory and its L2: ``bus_bits / 8 * transfers_per_s``."""
        return self.bus_bits * self.transfers_per_s // 8

    @property
    def pcie_bytes_per_s(self) -> int:
        """Bytes per second to the host in one direction, before packet headers.

        >>> [round(CARDS[name].pcie_bytes_per_s / 1e9, 1) for name in ("T4", "RTX 4090", "H100 SXM")]
        [15.8, 31.5, 63.0]
        """
        return PCIE_LANES * PCIE_GIGATRANSFERS[self.pcie_generation] * 10**9 * 128 // 130 // 8

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The formats this card's matrix units multiply."""
        return tuple(dtype for dtype in self.peak_tflops if dtype != "float32")


def matrix_dtypes(compute_capability: tuple[int, int]) -> tuple[str, ...]:
    """The formats that the tensor cores of an NVIDIA card with this compute capability multiply.

    >>> matrix_dtypes((7, 5)), matrix_dtypes((8, 6))
    (('float16',), ('float16', 'tf32', 'bfloat16'))
    """
    return tuple(
        dtype for dtype, minimum in MIN_CAPABILITY.items() if tuple(compute_capability) >= minimum
    )


def _card(row: Mapping[str, str]) -> CardMemory:
    """A row of ``cards.csv``. A column that is named after a number format is a rate of ``peak_tflops``."""
    if not row["source"]:
        return CardMemory(**{name: text for name, text in row.items() if text})
    rates, values = {}, {}
    types = {field.name: field.type for field in fields(Card)}
    for name, text in row.items():
        if name not in types:
            rates |= {name: float(text)} if text else {}
        elif types[name] in (int, int | None):
            values[name] = int(text) if text else None
        else:
            values[name] = text
    values["compute_capability"] = tuple(map(int, row["compute_capability"].split(".")))
    return Card(**values, peak_tflops=rates)


with Path(__file__).with_name("cards.csv").open(encoding="utf-8", newline="") as _file:
    _cards = {card.name: card for card in map(_card, csv.DictReader(_file))}
CARDS = {name: card for name, card in _cards.items() if isinstance(card, Card)}
"""The cards by name, from the oldest generation to the newest."""
MEMORY_ONLY = {name: card for name, card in _cards.items() if name not in CARDS}
"""Cards of which only the memory is known."""
