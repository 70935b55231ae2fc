"""Proofs of group C: cards and the memory hierarchy. Card records name their sources in memkit.cards."""

from book.claims import rounds_to
from memkit.cards import CARDS, Card

A100, H100, V100 = CARDS["A100 SXM 80 GB"], CARDS["H100 SXM"], CARDS["V100 32 GB"]

REGISTERS_PER_SM = 64 * 1024
"""32-bit registers of a multiprocessor, compute capability 5.0 and later.

Source: https://docs.nvidia.com/cuda/cuda-c-programming-guide/, technical specifications.
"""

VOLTA_WARPS_PER_SM, VOLTA_SCHEDULERS_PER_SM, VOLTA_MULTIPLY_ADD_CYCLES = 64, 4, 4
"""Resident warps at most, warp schedulers, and cycles until an instruction that needs the result can issue.

Source: https://docs.nvidia.com/cuda/archive/9.1/volta-tuning-guide/index.html, section 1.4.1
"""

VOLTA_SHARED_LOAD_CYCLES, VOLTA_L1_CYCLES = 19, 28
"""Until a load from shared memory, or one that hits the L1 cache, returns.

Source: Jia et al. 2018, https://arxiv.org/abs/1804.06826, table 3.1
"""

POINTER_CHASE_L1 = {
    "V100": 36,
    "RTX 2000": 39,
    "A100 SXM": 39,
    "4090": 40,
    "H100 SXM": 40,
    "GH200": 40,
    "5090": 44,
    "RTX PRO 6000": 44,
    "B200": 40,
}
"""Cycles until a load that hits the L1 cache returns, by the row of the table, from V100 to B200.

Source: https://github.com/markdewing/AI_kernels, latency/README.md at 0d701add; its notes say that it reads high.
"""

GUIDE_MEMORY_CYCLES = (200, 400)
"""Until a load from the card's memory returns, compute capability 3.x; 400 to 800 for 1.x and 2.x before it.

Source: NVIDIA, CUDA C Programming Guide 5.0, 2012, section "Multiprocessor Level".
"""

L1_KIB = {"V100": 128, "RTX 3090": 128, "RTX 4090": 128, "A100": 192, "H100": 256, "B200": 256}
H100_SHARED_KIB = 228
L2_MIB = {
    "V100": 6,
    "A100": 40,
    "H100": 50,
    "H200": 60,
    "B200": 126.5,
    "RTX 3060": 3,
    "RTX 3080": 5,
    "RTX 3090": 6,
    "RTX 4090": 72,
    "RTX 5090": 96,
}
"""L1 with shared memory of a multiprocessor, and the L2 of a card.

Source: the whitepapers that ``CARDS`` names; B200 as the driver reports it; RTX 3060 by the GA102 whitepaper's family,
GA106: 192 bit of bus, 512 KiB for every 32 bits.
"""

GH200_L2_MIB = 60
"""Source: https://github.com/markdewing/AI_kernels/tree/main/latency, a GH200 beside other cards."""

RTX_3080_12GB_BUS_BITS, RTX_3080_12GB_TRANSFERS = 384, 19 * 10**9
"""Source: https://www.nvidia.com/en-us/geforce/graphics-cards/30-series/rtx-3080-3080ti/"""


FLOAT32_BYTES, MULTIPLY_ADD_OPERANDS = 4, 3
LATENCY_CYCLES = {
    "V100": (36, 221, 460),
    "A100 SXM": (39, 210, 550),
    "4090": (40, 296, 636),
    "H100 SXM": (40, 291, 700),
    "5090": (44, 360, 936),
    "B200": (40, 295, 860),
}
"""Cycles until a dependent load of one thread returns, from L1, from L2 and from the card's memory.

Source: as ``POINTER_CHASE_L1``.
"""


def registers_per_s(card: Card) -> int:
    """Bytes per second of all registers: a * b + c reads three."""
    return (
        card.num_sms
        * card.fp32_lanes_per_sm
        * MULTIPLY_ADD_OPERANDS
        * FLOAT32_BYTES
        * card.clock_hz
    )


def l1_per_s(card: Card) -> int:
    """Bytes per second of L1 and shared memory of all multiprocessors."""
    return card.num_sms * card.l1_bytes_per_clock * card.clock_hz


def l2_per_s(card: Card) -> int:
    """Bytes per second of the L2 cache."""
    return card.l2_bytes_per_clock * card.clock_hz


def is_card(card: Card, gb: int, gb_per_s: float) -> bool:
    """The label and the bandwidth, which is bus width times transfers per second."""
    return gb == card.label_gb and rounds_to(
        card.bus_bits / 8 * card.transfers_per_s / 1e9, gb_per_s
    )
