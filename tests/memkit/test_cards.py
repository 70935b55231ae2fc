"""Cards against vendors' printed figures and against what other logs of the same cards print."""

import ast
import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from memkit.cards import CARDS, MEMORY_ONLY, matrix_dtypes
from memkit.fit import fit_on
from memkit.units import GIB, MIB, format_bytes

NVIDIA = [card for card in CARDS.values() if card.vendor == "NVIDIA"]


class Sheet(NamedTuple):
    """What a vendor prints of a card: GB on the product page, 10**9 bytes per second of its memory, and of its links in
    both directions together, and 10**12 operations per second *with sparsity*, which is twice the dense rate: TF32,
    BF16, FP8, FP4. ``None`` or nothing where no figure was looked up.
    """

    label_gb: int
    gb_per_s: float
    link_gb_per_s: float | None
    sparse_tflops: tuple


# An L40S's 733 in BF16 are left out: they are not twice the 362.05 beside them.
SHEETS = {
    "V100 16 GB": Sheet(16, 900, None, ()),
    "V100 32 GB": Sheet(32, 900, 300, ()),
    "T4": Sheet(16, 320, None, ()),
    "RTX 3080": Sheet(10, 760, None, (59.5, 119)),
    "RTX 3090": Sheet(24, 936, 112.5, (71, 142)),
    "A10": Sheet(24, 600, None, (125, 250)),
    "A100 PCIe 40 GB": Sheet(40, 1555, None, ()),
    "A100 SXM 40 GB": Sheet(40, 1555, None, ()),
    "A100 PCIe 80 GB": Sheet(80, 1935, None, ()),
    "A100 SXM 80 GB": Sheet(80, 2039, 600, (312, 624)),
    "RTX 4090": Sheet(24, 1008, None, (165.2, 330.4, 660.6)),
    "L4": Sheet(24, 300, None, (120, 242, 485)),
    "L40S": Sheet(48, 864, None, (366, None, 1466)),
    "H100 PCIe": Sheet(80, 2000, 600, (756, 1513, 3026)),
    "H100 SXM": Sheet(80, 3350, 900, (989, 1979, 3958)),
    "H100 NVL": Sheet(94, 3900, 600, (835, 1671, 3341)),
    "H200": Sheet(141, 4800, 900, (989, 1979, 3958)),
    "RTX 5090": Sheet(32, 1792, None, (209.5, 419, 838, 3352)),
    "B200": Sheet(180, 8000, 1800, (2250, 4500, 9000, 18000)),
    "MI300X": Sheet(192, 5300, 896, (1307.4, 2614.9, 5229.8)),
}

# What torch's get_device_properties printed elsewhere: total_memory and L2_cache_size in MiB, and the number of SMs.
PROPERTIES = [
    ("H200", 143_156, 132, "ai-bot-pro/achatbot, deploy/modal/src/llm/vllm/vlm/skywork_r1v.py"),
    ("B200", 182_642, 148, "ai-bot-pro/achatbot, deploy/modal/src/llm/vllm/vlm/skywork_r1v.py"),
    ("H100 SXM", 81_090, 132, "lecture notes of Stanford's CS336 on kernels: 8 devices"),
    ("H100 PCIe", 81_008, 114, "a log of torch without kernels for it"),
    ("RTX 4090", None, 128, "a log of two cards"),
]

# Totals that CUDA told other processes, in other logs than the ones the records cite.
OTHER_LOGS = [
    ("T4", "14.76 GiB total capacity", "https://github.com/Morizeyao/GPT2-Chinese/issues/215"),
    ("RTX 5090", "a total capacity of 31.37 GiB", "https://github.com/Wan-Video/Wan2.1/issues/465"),
    (
        "A100 PCIe 80 GB",
        "a total capacity of 79.15 GiB",
        "https://github.com/vllm-project/vllm/issues/4408",
    ),
]
NEARBY_LOGS = [
    (
        "V100 32 GB",
        "totalMemory: 31.72GiB",
        "https://github.com/tensorflow/tensorflow/issues/37162",
    ),
    ("H100 NVL", "a total capacity of 93.00 GiB", "https://github.com/ali-vilab/VACE/issues/56"),
    ("RTX 4090", "23.68 GiB total capacity", "https://github.com/zai-org/CogVideo/issues/36"),
    (
        "RTX 4090",
        "a total capacity of 23.52 GiB",
        "https://github.com/Soul-AILab/SoulX-FlashTalk/issues/5",
    ),
    (
        "A100 SXM 40 GB",
        "40441 MBytes (42405855232 bytes)",
        "https://upb-pc2.atlassian.net/wiki/spaces/PC2DOK/pages/1900609/NVIDIA+A100+40GB+with+NVLINK",
    ),
    (
        "RTX 5090",
        "32117 MBytes (33677180928 bytes)",
        "https://github.com/aikitoria/open-gpu-kernel-modules/issues/1",
    ),
]


def bytes_in_log(line: str) -> int:
    if match := re.search(r"\((\d+) bytes\)", line):
        return int(match[1])
    return round(float(re.search(r"([\d.]+) ?GiB", line)[1]) * GIB)


@pytest.mark.parametrize("name, line, url", OTHER_LOGS)
def test_another_log_prints_the_same_total(name, line, url):
    assert format_bytes(CARDS[name].memory_bytes) in line


@pytest.mark.parametrize("name, line, url", NEARBY_LOGS)
def test_drivers_differ_by_less_than_one_percent(name, line, url):
    assert CARDS[name].memory_bytes == pytest.approx(bytes_in_log(line), rel=0.01)


def test_every_unit_of_a_report_is_read():
    assert CARDS["V100 16 GB"].memory_bytes == 16_945_512_448
    assert CARDS["H100 SXM"].memory_bytes == 81_089 * MIB
    assert CARDS["A10"].memory_bytes == 2199 * GIB // 100


@pytest.mark.parametrize(
    "card", [card for card in NVIDIA if card.nvidia_smi_mib], ids=lambda card: card.name
)
def test_nvidia_smi_shows_more_than_a_process_gets(card):
    # https://github.com/modal-labs/modal-client/pull/2797 lists what nvidia-smi prints for eight cards.
    assert 0.94 * card.nvidia_smi_mib * MIB < card.memory_bytes < card.nvidia_smi_mib * MIB


def test_every_card_has_a_sheet_to_be_compared_with():
    missing, unknown = CARDS.keys() - SHEETS.keys(), SHEETS.keys() - CARDS.keys()
    assert not missing, (
        f"copy what the vendor prints of {', '.join(missing)} into SHEETS, in this file"
    )
    assert not unknown, f"SHEETS names {', '.join(unknown)}, which memkit/cards.py does not know"


@pytest.mark.parametrize("name", SHEETS)
def test_the_label_is_the_product_page_s(name):
    assert CARDS[name].label_gb == SHEETS[name].label_gb


@pytest.mark.parametrize("name", sorted(SHEETS.keys() - {"B200"}))
def test_bandwidth_is_bus_width_times_rate(name):
    assert CARDS[name].memory_bandwidth == pytest.approx(SHEETS[name].gb_per_s * 10**9, rel=0.02)


def test_the_8_tb_per_s_of_a_b200_are_rounded_up():
    # https://github.com/pytorch/ao/pull/4002: 7680 bits at 3996 MHz, twice a clock: "7.672 TB/s".
    assert round(CARDS["B200"].memory_bandwidth / 1e12, 3) == 7.672
    assert round(SHEETS["B200"].gb_per_s * 10**9 / CARDS["B200"].memory_bandwidth, 2) == 1.04


@pytest.mark.parametrize("card", CARDS.values(), ids=lambda card: card.name)
def test_the_float32_rate_is_lanes_times_clock(card):
    multiply_add = 2
    derived = card.num_sms * card.fp32_lanes_per_sm * multiply_add * card.clock_hz / 1e12
    assert card.peak_tflops["float32"] == pytest.approx(derived, rel=0.01)


@pytest.mark.parametrize("name", [name for name, sheet in SHEETS.items() if sheet.link_gb_per_s])
def test_a_link_is_half_of_what_both_directions_carry(name):
    assert CARDS[name].link_bytes_per_s * 2 == SHEETS[name].link_gb_per_s * 10**9


def test_a_bridge_joins_two_cards_and_a_board_eight():
    """A100 and H100 data sheets: "NVLink Bridge for 2 GPUs"; RTX 3090: "NVLink SLI-ready, 2-way"; HGX: 8 GPUs.

    Which cards have a bridge is held by ``BRIDGED`` of ``tests/book/test_false_sentences.py``.
    """
    for card in CARDS.values():
        assert (card.num_linked_cards is None) == (card.link_bytes_per_s is None)
        assert card.num_linked_cards in (None, 2, 8)


@pytest.mark.parametrize("name", [name for name, sheet in SHEETS.items() if sheet.sparse_tflops])
def test_a_rate_is_half_of_what_is_printed_with_sparsity(name):
    tensor = [
        rate
        for dtype, rate in CARDS[name].peak_tflops.items()
        if dtype not in ("float32", "float16")
    ]
    for rate, sparse in zip(tensor, SHEETS[name].sparse_tflops, strict=True):
        assert sparse is None or 2 * rate == pytest.approx(sparse, abs=1.01)
    assert CARDS[name].peak_tflops["float16"] == CARDS[name].peak_tflops["bfloat16"]


@pytest.mark.parametrize("name, total_mib, num_sms, source", PROPERTIES)
def test_torch_prints_the_same_properties_elsewhere(name, total_mib, num_sms, source):
    card = CARDS[name]
    assert card.num_sms == num_sms
    assert total_mib is None or card.memory_bytes / MIB == pytest.approx(total_mib, rel=1e-4)


@pytest.mark.parametrize("card", NVIDIA, ids=lambda card: card.name)
def test_formats_follow_from_the_compute_capability(card):
    assert set(card.dtypes) == set(matrix_dtypes(card.compute_capability))


def rule_of_torchs_tests(name: str, capability: tuple[int, int]) -> bool:
    """Run a function of torch's own test helpers as on a card of this capability.

    It is cut out of its file, which cannot be imported without a package that only torch's developers have.
    """
    spec = importlib.util.find_spec("torch.testing._internal")
    text = Path(spec.submodule_search_locations[0], "common_cuda.py").read_text(encoding="utf-8")
    (rule,) = (part for part in ast.parse(text).body if getattr(part, "name", "") == name)
    cuda = SimpleNamespace(is_available=lambda: True, get_device_capability=lambda: capability)
    names = {
        "torch": SimpleNamespace(cuda=cuda, version=SimpleNamespace(hip=None)),
        "SM90OrLater": capability >= (9, 0),
        "SM100OrLater": capability >= (10, 0),
    }
    exec(compile(ast.Module(body=[rule], type_ignores=[]), name, "exec"), names)
    return names[name]()


@pytest.mark.parametrize("card", NVIDIA, ids=lambda card: card.name)
def test_formats_are_those_that_torch_expects(card, monkeypatch):
    import torch

    properties = SimpleNamespace(major=card.compute_capability[0])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device=None: properties)
    capability = card.compute_capability
    found = matrix_dtypes(capability)
    assert ("bfloat16" in found) == torch.cuda.is_bf16_supported(including_emulation=False)
    assert ("tf32" in found) == torch.cuda.is_tf32_supported()
    assert ("float8_e4m3fn" in found) == rule_of_torchs_tests(
        "evaluate_platform_supports_fp8", capability
    )
    assert ("float4_e2m1fn" in found) == rule_of_torchs_tests(
        "evaluate_platform_supports_mx_gemm", capability
    )


@pytest.mark.parametrize("card", CARDS.values(), ids=lambda card: card.name)
def test_every_card_names_its_sources(card):
    assert card.memory_source
    assert re.search(r"20\d\d", card.source)


def test_a_card_of_which_only_the_memory_is_known_answers_nothing_else():
    assert not MEMORY_ONLY.keys() & CARDS.keys()
    for card in MEMORY_ONLY.values():
        assert card.memory_source
        assert fit_on(card, card.memory_bytes).verdict == "does not fit"
        assert fit_on(card, 2 * GIB).verdict == "fits"
        assert not hasattr(card, "memory_bandwidth") and not hasattr(card, "dtypes")
    # a label's GB beside what a card of the same memory reports
    assert MEMORY_ONLY["RTX 3090 Ti"].memory_bytes == pytest.approx(
        CARDS["RTX 3090"].memory_bytes, rel=0.06
    )
    assert MEMORY_ONLY["A10G"].memory_bytes == 22.2 * GIB // 1
