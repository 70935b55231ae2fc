"""What a card has: bytes, bytes per second and arithmetic per second, each from a named source.

The label says 80 GB, ``nvidia-smi`` says 79.6 GiB and a program gets 79.2 GiB. What a training step must fit
into is the last one: the total that CUDA reports to the process. It is written here as public logs print it.
A memory bandwidth is not typed in but derived: bus width times transfers per second.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import partial

from memkit.units import GIB, MIB

PCIE_LANES = 16
PCIE_GIGATRANSFERS = {3: 8, 4: 16, 5: 32}
"""10**9 transfers per second of one lane; 128 of every 130 bits carry data."""

MIN_CAPABILITY = {
    "float16": (7, 0), "tf32": (8, 0), "bfloat16": (8, 0), "float8_e4m3fn": (8, 9), "float4_e2m1fn": (10, 0),
}
"""First NVIDIA compute capability whose tensor cores multiply the format; MX and NVFP4 come with the last.

Source: torch 2.13, ``is_bf16_supported``, ``is_tf32_supported`` and the rules of its own FP8 and MX tests.
"""


@dataclass(frozen=True, kw_only=True)
class Card:
    """One card as its driver reports it and its vendor specifies it.

    ``memory_report`` is the total as CUDA told it to a process, in the words of the log at ``memory_source``;
    ``nvidia_smi_mib`` is what ``nvidia-smi`` prints for such a card. ``transfers_per_s`` is the data rate of
    one pin of the memory bus, ``clock_hz`` the boost clock, at which the caches' bytes per clock are counted. Vendors
    state matrix rates at a clock of their own: an H100 SXM's 989.4 are 132 SMs, 4,096 operations and 1.83 GHz,
    below its boost clock of 1.98 GHz. ``peak_tflops`` is by format the dense rate of a
    matrix product with float32 sums, in 10**12 operations per second (vendors' sparse figures are halved).
    ``l2_bytes_per_clock`` and ``link_bytes_per_s`` (one direction, all links) are ``None`` where the vendor
    names none.
    """

    name: str
    driver_names: tuple[str, ...]
    architecture: str
    compute_capability: tuple[int, int]
    label_gb: int
    memory_report: str
    memory_source: str
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
    source: str
    vendor: str = "NVIDIA"

    @property
    def memory_bytes(self) -> int:
        """Bytes a process can have at most, as exact as the log prints them."""
        number, unit = re.fullmatch(r"([\d.]+) (bytes|MiB|GiB)", self.memory_report).groups()
        return int(Decimal(number) * {"bytes": 1, "MiB": MIB, "GiB": GIB}[unit])

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
    return tuple(dtype for dtype, minimum in MIN_CAPABILITY.items() if tuple(compute_capability) >= minimum)


def card_by_driver_name(driver_name: str) -> Card | None:
    """The card that the driver calls ``driver_name``, or ``None`` where this table does not know it.

    >>> card_by_driver_name("NVIDIA H100 80GB HBM3").name, card_by_driver_name("NVIDIA GeForce GTX 970")
    ('H100 SXM', None)
    """
    return next((card for card in CARDS.values() if driver_name in card.driver_names), None)


def _rates(fp32, fp16, tf32=None, bf16=None, fp8=None, fp4=None, fp8_dtype="float8_e4m3fn"):
    rates = {
        "float32": fp32, "tf32": tf32, "float16": fp16, "bfloat16": bf16, fp8_dtype: fp8,
        "float4_e2m1fn": fp4,
    }
    return {dtype: rate for dtype, rate in rates.items() if rate is not None}


_GITHUB = "https://github.com/"
_volta = partial(
    Card, architecture="Volta", compute_capability=(7, 0), memory_kind="HBM2", bus_bits=4096,
    transfers_per_s=1_754_000_000, l2_bytes_per_clock=2048, num_sms=80,
    fp32_lanes_per_sm=64, clock_hz=1_530_000_000, peak_tflops=_rates(15.7, 125.0), pcie_generation=3,
    link_bytes_per_s=150 * 10**9,
    source="NVIDIA Tesla V100 GPU Architecture whitepaper, WP-08608-001, 2017",
)
_a100 = partial(
    Card, architecture="Ampere", compute_capability=(8, 0), bus_bits=5120, l2_bytes_per_clock=5120,
    num_sms=108, fp32_lanes_per_sm=64, clock_hz=1_410_000_000, pcie_generation=4, link_bytes_per_s=300 * 10**9,
    peak_tflops=_rates(19.5, 312.0, tf32=156.0, bf16=312.0),
    source="NVIDIA A100 Tensor Core GPU Architecture whitepaper, 2020; A100 datasheet, 2021",
)
_ga102 = partial(
    Card, architecture="Ampere", compute_capability=(8, 6), pcie_generation=4,
    source="NVIDIA Ampere GA102 GPU Architecture whitepaper, 2021; A10 datasheet, 2021",
)
_ada = partial(
    Card, architecture="Ada", compute_capability=(8, 9), pcie_generation=4,
    source="NVIDIA Ada GPU Architecture whitepaper, 2022; L4 and L40S datasheets, 2023",
)
_hopper = partial(
    Card, architecture="Hopper", compute_capability=(9, 0), pcie_generation=5,
    source="NVIDIA H100 Tensor Core GPU Architecture whitepaper v1.04, 2023; H100 and H200 datasheets",
)
_hopper_sxm = partial(
    _hopper, num_sms=132, clock_hz=1_980_000_000, link_bytes_per_s=450 * 10**9,
    peak_tflops=_rates(66.9, 989.4, tf32=494.7, bf16=989.4, fp8=1978.9),
)

_ALL_CARDS = (
    _volta(
        name="V100 16 GB", driver_names=("Tesla V100-SXM2-16GB",), label_gb=16, nvidia_smi_mib=16384,
        memory_report="16945512448 bytes", memory_source="deviceQuery in public logs: 16160 MBytes",
    ),
    _volta(
        name="V100 32 GB", driver_names=("Tesla V100-SXM2-32GB",), label_gb=32,
        memory_report="31.74 GiB", memory_source=_GITHUB + "liucongg/ChatGLM-Finetuning/issues/73",
    ),
    Card(
        name="T4", driver_names=("Tesla T4",), architecture="Turing", compute_capability=(7, 5), label_gb=16,
        memory_report="15843721216 bytes", nvidia_smi_mib=15360,
        memory_source="https://chiemon.github.io/2024/12/25/%E6%98%BE%E5%8D%A1%E4%BF%A1%E6%81%AF.html",
        memory_kind="GDDR6", bus_bits=256, transfers_per_s=10_000_000_000, num_sms=40,
        fp32_lanes_per_sm=64, l1_bytes_per_clock=64, clock_hz=1_590_000_000,
        peak_tflops=_rates(8.1, 65.0), pcie_generation=3,
        source="NVIDIA Turing GPU Architecture whitepaper, 2018; T4 datasheet, 2019",
    ),
    _ga102(
        name="RTX 3080", driver_names=("NVIDIA GeForce RTX 3080", "GeForce RTX 3080"), label_gb=10,
        memory_report="9.78 GiB", memory_source=_GITHUB + "zai-org/CogVideo/issues/34",
        memory_kind="GDDR6X", bus_bits=320, transfers_per_s=19_000_000_000, num_sms=68,
        clock_hz=1_710_000_000, peak_tflops=_rates(29.8, 59.5, tf32=29.8, bf16=59.5),
    ),
    _ga102(
        name="RTX 3090", driver_names=("NVIDIA GeForce RTX 3090", "GeForce RTX 3090"), label_gb=24,
        memory_report="23.70 GiB", memory_source=_GITHUB + "GaoLii/DSP/issues/10", nvidia_smi_mib=24576,
        memory_kind="GDDR6X", bus_bits=384, transfers_per_s=19_500_000_000, num_sms=82,
        clock_hz=1_695_000_000, peak_tflops=_rates(35.6, 71.0, tf32=35.6, bf16=71.0),
        link_bytes_per_s=56_250_000_000,
    ),
    _ga102(
        name="A10", driver_names=("NVIDIA A10",), label_gb=24, nvidia_smi_mib=23028,
        memory_report="21.99 GiB", memory_source=_GITHUB + "zai-org/CogVLM/issues/236",
        memory_kind="GDDR6", bus_bits=384, transfers_per_s=12_500_000_000, num_sms=72,
        clock_hz=1_695_000_000, peak_tflops=_rates(31.2, 125.0, tf32=62.5, bf16=125.0),
    ),
    _a100(
        name="A100 PCIe 40 GB", driver_names=("NVIDIA A100-PCIE-40GB",), label_gb=40, nvidia_smi_mib=40960,
        memory_report="39.50 GiB", memory_source=_GITHUB + "TianheWu/CoSeR/issues/10",
        memory_kind="HBM2", transfers_per_s=2_430_000_000,
    ),
    _a100(
        name="A100 SXM 40 GB", driver_names=("NVIDIA A100-SXM4-40GB",), label_gb=40, nvidia_smi_mib=40960,
        memory_report="42298834944 bytes", memory_source=_GITHUB + "bottlerocket-os/bottlerocket/pull/3873",
        memory_kind="HBM2", transfers_per_s=2_430_000_000,
    ),
    _a100(
        name="A100 PCIe 80 GB", driver_names=("NVIDIA A100 80GB PCIe",), label_gb=80, nvidia_smi_mib=81920,
        memory_report="81049 MiB", memory_source=_GITHUB + "ekondis/mixbench/issues/47",
        memory_kind="HBM2e", transfers_per_s=3_024_000_000,
    ),
    _a100(
        name="A100 SXM 80 GB", driver_names=("NVIDIA A100-SXM4-80GB",), label_gb=80, nvidia_smi_mib=81920,
        memory_report="79.25 GiB", memory_source=_GITHUB + "levihsu/OOTDiffusion/issues/235",
        memory_kind="HBM2e", transfers_per_s=3_186_000_000,
    ),
    _ada(
        name="RTX 4090", driver_names=("NVIDIA GeForce RTX 4090",), label_gb=24,
        memory_report="23.64 GiB", memory_source=_GITHUB + "ali-vilab/VGen/issues/104",
        memory_kind="GDDR6X", bus_bits=384, transfers_per_s=21_000_000_000, num_sms=128,
        clock_hz=2_520_000_000, peak_tflops=_rates(82.6, 165.2, tf32=82.6, bf16=165.2, fp8=330.3),
    ),
    _ada(
        name="L4", driver_names=("NVIDIA L4",), label_gb=24, nvidia_smi_mib=23034,
        memory_report="22.03 GiB", memory_source=_GITHUB + "ArcInstitute/evo2/issues/190",
        memory_kind="GDDR6", bus_bits=192, transfers_per_s=12_500_000_000, num_sms=58,
        clock_hz=2_040_000_000, peak_tflops=_rates(30.3, 121.0, tf32=60.0, bf16=121.0, fp8=242.5),
    ),
    _ada(  # the report is an L40's, for which nvidia-smi prints the same 46068 MiB
        name="L40S", driver_names=("NVIDIA L40S",), label_gb=48, nvidia_smi_mib=46068,
        memory_report="44.42 GiB", memory_source=_GITHUB + "stepfun-ai/Step-Video-T2V/issues/8",
        memory_kind="GDDR6", bus_bits=384, transfers_per_s=18_000_000_000, num_sms=142,
        clock_hz=2_520_000_000, peak_tflops=_rates(91.6, 362.0, tf32=183.0, bf16=362.0, fp8=733.0),
    ),
    _hopper(
        name="H100 PCIe", driver_names=("NVIDIA H100 PCIe",), label_gb=80, nvidia_smi_mib=81559,
        memory_report="79.11 GiB", memory_source=_GITHUB + "vllm-project/vllm/issues/27508",
        memory_kind="HBM2e", bus_bits=5120, transfers_per_s=3_186_000_000, num_sms=114,
        clock_hz=1_755_000_000, link_bytes_per_s=300 * 10**9,
        peak_tflops=_rates(51.2, 756.0, tf32=378.0, bf16=756.0, fp8=1513.0),
    ),
    _hopper_sxm(
        name="H100 SXM", driver_names=("NVIDIA H100 80GB HBM3",), label_gb=80, nvidia_smi_mib=81559,
        memory_report="81089 MiB", memory_kind="HBM3", bus_bits=5120, transfers_per_s=5_238_000_000,
        memory_source="torch's device properties in the benchmark logs of stas00/ml-engineering, torch 2.7",
    ),
    _hopper(
        name="H100 NVL", driver_names=("NVIDIA H100 NVL",), label_gb=94,
        memory_report="99961274368 bytes", memory_source=_GITHUB + "fastfetch-cli/fastfetch/issues/1658",
        memory_kind="HBM3", bus_bits=6016, transfers_per_s=5_238_000_000, num_sms=132, clock_hz=1_785_000_000,
        link_bytes_per_s=300 * 10**9,
        peak_tflops=_rates(60.0, 835.5, tf32=417.5, bf16=835.5, fp8=1671.0),
    ),
    _hopper_sxm(
        name="H200", driver_names=("NVIDIA H200",), label_gb=141, memory_report="139.80 GiB",
        memory_source="out-of-memory messages in public logs of H200 nodes (139.72 to 139.81 GiB)",
        memory_kind="HBM3e", bus_bits=6016, transfers_per_s=6_402_000_000,
    ),
    Card(
        name="RTX 5090", driver_names=("NVIDIA GeForce RTX 5090",), architecture="Blackwell",
        compute_capability=(12, 0), label_gb=32, memory_report="33680457728 bytes", nvidia_smi_mib=32607,
        memory_source=_GITHUB + "NVIDIA/nccl/issues/1637", memory_kind="GDDR7", bus_bits=512,
        transfers_per_s=28_000_000_000, num_sms=170, clock_hz=2_407_000_000, pcie_generation=5,
        peak_tflops=_rates(104.8, 209.5, tf32=104.8, bf16=209.5, fp8=419.0, fp4=1676.0),
        source="NVIDIA RTX Blackwell GPU Architecture whitepaper v1.1, 2025",
    ),
    Card(
        name="B200", driver_names=("NVIDIA B200",), architecture="Blackwell", compute_capability=(10, 0),
        label_gb=180, memory_report="178.35 GiB", memory_source=_GITHUB + "pytorch/ao/pull/4002",
        memory_kind="HBM3e", bus_bits=7680, transfers_per_s=7_992_000_000, num_sms=148,
        clock_hz=1_965_000_000, pcie_generation=5,
        peak_tflops=_rates(75.0, 2250.0, tf32=1125.0, bf16=2250.0, fp8=4500.0, fp4=9000.0),
        link_bytes_per_s=900 * 10**9,
        source="NVIDIA HGX B200 datasheet, 2025, an eighth of the board; memory clock: pytorch/ao pull 4002",
    ),
    Card(
        name="MI300X", driver_names=("AMD Instinct MI300X",), vendor="AMD", architecture="CDNA 3",
        compute_capability=(9, 4), label_gb=192, memory_report="196592 MiB",
        memory_source=_GITHUB + "ROCm/legacy-rocm-build/issues/4203", memory_kind="HBM3", bus_bits=8192,
        transfers_per_s=5_200_000_000, num_sms=304, l1_bytes_per_clock=64,
        clock_hz=2_100_000_000, pcie_generation=5,
        peak_tflops=_rates(163.4, 1307.4, tf32=653.7, bf16=1307.4, fp8=2614.9, fp8_dtype="float8_e4m3fnuz"),
        link_bytes_per_s=448 * 10**9, source="AMD Instinct MI300X data sheet, 2023; AMD CDNA 3 whitepaper",
    ),
)

CARDS = {card.name: card for card in _ALL_CARDS}
"""The cards by name, from the oldest generation to the newest."""
