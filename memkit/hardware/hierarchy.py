"""From registers to the host: how many bytes each level of a card's memory holds, and how fast they move.

Every step away from the arithmetic moves less. On an A100 the registers of all multiprocessors together move
117 TB/s, the HBM 2.0 and the PCIe slot 0.03. Each bandwidth here is a product of counts and a clock, so that
a reader can check it with a pocket calculator; only latencies are quoted, as somebody measured them.
"""

from dataclasses import dataclass

from memkit.hardware.cards import PCIE_GIGATRANSFERS, PCIE_LANES, Card

FMA_OPERANDS = 3
"""A multiply-add reads three float32 registers: a * b + c."""

FLOAT32_BYTES = 4

LATENCY_CYCLES = {
    "V100 32 GB": (36, 221, 460),
    "A100 SXM 80 GB": (39, 210, 550),
    "RTX 4090": (40, 296, 636),
    "H100 SXM": (40, 291, 700),
    "RTX 5090": (44, 360, 936),
    "B200": (40, 295, 860),
}
"""Clock cycles until a dependent load of one thread returns, from L1, from L2 and from the card's memory.

Source: https://github.com/markdewing/AI_kernels/tree/main/latency, a pointer chase; its V100, A100 and H100 are the SXM
cards of 32, 80 and 80 GB.
"""


@dataclass(frozen=True, kw_only=True)
class MemoryLevel:
    """One level of a card: bytes it holds and bytes per second it moves, all its units together.

    ``arithmetic`` is the bandwidth as the product it was made of. ``None``: no vendor figure, or the level is
    on the other side of a link and no part of the card.
    """

    name: str
    shared_by: str
    num_bytes: int | None
    bandwidth: int | None
    arithmetic: str
    latency_cycles: int | None = None


def memory_hierarchy(card: Card) -> tuple[MemoryLevel, ...]:
    """The levels of ``card`` from the fastest to the farthest.

    Registers: SMs * float32 lanes * 3 operands * 4 bytes * clock. L1 and shared memory: SMs * bytes per clock
    * clock. L2: bytes per clock * clock. Memory: bus bits / 8 * transfers per second.
    Source: NVIDIA's architecture whitepapers named in ``card.source``; latency: as ``LATENCY_CYCLES``.

    >>> from memkit.hardware.cards import CARDS
    >>> [round(level.bandwidth / 1e12, 1) for level in memory_hierarchy(CARDS["A100 SXM 80 GB"])[:4]]
    [117.0, 19.5, 7.2, 2.0]
    """
    ghz = f"{card.clock_hz / 1e9:.2f} GHz"
    lanes, sms = card.fp32_lanes_per_sm, card.num_sms
    l1_latency, l2_latency, memory_latency = LATENCY_CYCLES.get(card.name, (None, None, None))
    l2_clock = card.l2_bytes_per_clock
    generation = card.pcie_generation
    levels = [
        MemoryLevel(
            name="registers", shared_by="a thread", num_bytes=sms * card.register_bytes_per_sm,
            bandwidth=sms * lanes * FMA_OPERANDS * FLOAT32_BYTES * card.clock_hz,
            arithmetic=f"{sms} SMs × {lanes} lanes × {FMA_OPERANDS} operands × {FLOAT32_BYTES} B × {ghz}",
        ),
        MemoryLevel(
            name="L1 and shared", shared_by="a block, on one SM", num_bytes=sms * card.l1_bytes_per_sm,
            bandwidth=sms * card.l1_bytes_per_clock * card.clock_hz, latency_cycles=l1_latency,
            arithmetic=f"{sms} SMs × {card.l1_bytes_per_clock} B × {ghz}",
        ),
        MemoryLevel(
            name="L2", shared_by="the card", num_bytes=card.l2_bytes, latency_cycles=l2_latency,
            bandwidth=l2_clock * card.clock_hz if l2_clock else None,
            arithmetic=f"{l2_clock} B × {ghz}" if l2_clock else "no vendor figure",
        ),
        MemoryLevel(
            name=card.memory_kind, shared_by="the card", num_bytes=card.memory_bytes,
            bandwidth=card.memory_bandwidth, latency_cycles=memory_latency,
            arithmetic=f"{card.bus_bits} bit ÷ 8 × {card.transfers_per_s / 1e9:.2f} G transfers/s",
        ),
    ]
    if card.link_bytes_per_s:
        link = "NVLink" if card.vendor == "NVIDIA" else "Infinity Fabric"
        levels.append(MemoryLevel(
            name=link, shared_by="cards of a machine", num_bytes=None, bandwidth=card.link_bytes_per_s,
            arithmetic="vendor's figure, halved to one direction",
        ))
    levels.append(MemoryLevel(
        name=f"PCIe {generation}.0", shared_by="host and card", num_bytes=None,
        bandwidth=card.pcie_bytes_per_s,
        arithmetic=f"{PCIE_LANES} lanes × {PCIE_GIGATRANSFERS[generation]} GT/s × 128/130 ÷ 8",
    ))
    return tuple(levels)
