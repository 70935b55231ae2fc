"""Cards by the names that people type: those of the table, others of which only the memory is known, and mere sizes."""

import argparse
import re
from dataclasses import replace
from fractions import Fraction

from memkit.cards import CARDS, Card
from memkit.units import KIB, as_one_of

HUB, ISSUES = "https://huggingface.co/hardware/", "https://github.com/"
BY_MEMORY = {
    "A10G": ("22.20 GiB", ISSUES + "XavierXiao/Dreambooth-Stable-Diffusion/issues/18"),
    "A30": ("23.53 GiB", ISSUES + "google/RB-Modulation/issues/5"),
    "RTX A4000": ("15.61 GiB", ISSUES + "DengKaiCQ/VGGT-Long/issues/6"),
    "RTX A6000": ("47.54 GiB", ISSUES + "google-research/semivl/issues/18"),
    "L40": ("44.42 GiB", CARDS["L40S"].memory_source),
    "RTX 6000 Ada": ("44.43 GiB", ISSUES + "DINGYANB/MTVCrafter/issues/21"),
    "RTX PRO 6000": ("94.97 GiB", ISSUES + "antirez/ds4/issues/431"),
    "GH200": ("94.88 GiB", ISSUES + "Lightning-AI/litgpt/issues/1892"),
    "RTX 5060 Ti 16 GB": ("15816 MiB", ISSUES + "Luce-Org/lucebox/issues/407"),
    "RTX 4070 Ti SUPER": (
        "16852516864 bytes",
        "https://gist.github.com/bigsnarfdude/946229ab3cfaab6c1c553654fb0a465a",
    ),
    "RTX 4060 Ti 8 GB": (
        "8 GB",
        "https://gamebastion.com/n/nvidia-announces-rtx-4060-ti-graphics-cards/313384",
    ),
    "RTX 4060 Ti 16 GB": ("16.00 GiB", ISSUES + "sp-uhh/sgmse/issues/36"),
    "RTX 5060 Ti 8 GB": ("8 GB", ISSUES + "huggingface/huggingface.js/pull/1369"),
    "RTX 4090 Laptop": ("16 GB", HUB + "rtx-4090-laptop"),
    "RTX 3060": ("12 GB", HUB + "rtx-3060"),
    "RTX 3090 Ti": ("24 GB", HUB + "rtx-3090-ti"),
    "RTX 4080": ("16 GB", HUB + "rtx-4080"),
    "RTX 4080 SUPER": ("16 GB", ISSUES + "huggingface/huggingface.js, hardware.ts"),
    "A40": ("48 GB", ISSUES + "huggingface/huggingface.js, hardware.ts"),
    "RTX 5070 Ti": ("16 GB", ISSUES + "huggingface/huggingface.js/pull/1327"),
    "RTX 5080": ("16 GB", HUB + "rtx-5080"),
    "GB200": ("186 GB", "https://github.com/mlcommons/inference_results_v6.1, systems of Crusoe"),
    "B300": ("288 GB", HUB + "b300"),
    "MI355X": ("288 GiB", "https://rocm.docs.amd.com/en/7.13.0-preview/reference/gpu-specs.html"),
}
"""Cards that the table does not have: the total of a public log, or the label in GB (10**9 bytes), and where it is."""

VENDORS = {"nvidia", "geforce", "tesla", "quadro", "amd", "instinct", "blackwell"}
"""Words in a card's name that tell no two cards apart."""


def bytes_in(text: str) -> int:
    """A size such as 22GiB, ``24 gb`` or 500M in bytes: powers of 1,024 with an i, else of 1,000.

    >>> bytes_in("1.5 GiB"), bytes_in("24GB"), bytes_in("80g"), bytes_in("512")
    (1610612736, 24000000000, 80000000000, 512)
    """
    size = re.fullmatch(r"(\d+(?:[.]\d+)?) *(?:([KMG])(I?)B?|B?)", text.strip().upper())
    if not size:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 22GiB, 500MiB or 24GB")
    number, prefix, binary = size.groups()
    return int(Fraction(number) * (KIB if binary else 1000) ** " KMG".index(prefix or " "))


def size_named(text: str) -> Card | None:
    """A card of a mere size, such as 24GiB, ``24 gb`` or 80G."""
    is_size = re.fullmatch(r"[\d.]+ *gi?b?", text.strip(), re.IGNORECASE)
    return of_memory(f"card of {text.strip()}", bytes_in(text)) if is_size else None


def of_memory(name: str, num_bytes: int) -> Card:
    """A card of which nothing but the memory is known."""
    return replace(CARDS["A100 SXM 80 GB"], name=name, memory_report=f"{num_bytes} bytes")


def card_named(text: str) -> Card:
    """The card that somebody means: ``4090``, ``A100-80GB`` and ``NVIDIA H100`` are one; ``24GiB`` is any of that size.

    Where several have the name, it is the one with least memory, of the table's before all others. One that the table
    does not have says in its name what is known of it.

    >>> card_named("4090").name, card_named("A100-80GB").name, card_named("24GiB").memory_bytes
    ('RTX 4090', 'A100 PCIe 80 GB', 25769803776)
    >>> card_named("a6000").name, card_named("rtx 4090 laptop").name
    ('RTX A6000 (47.54 GiB, no more is known)', 'RTX 4090 Laptop (16 GB, no more is known)')

    Raises: ValueError: no card is called so.
    """
    if card := size_named(text):
        return card
    words = [word for word in re.findall(r"[a-z0-9]+", text.lower()) if word not in VENDORS]
    words = [re.sub(r"^(\d+)gi?b?$", r"\1gb", re.sub(r"^sxm\d$", "sxm", word)) for word in words]
    words = ["laptop" if word == "mobile" else word for word in words]
    if any(len(word) > 2 or not word.isdigit() for word in words):
        for known in (CARDS, others()):
            tokens = {
                name: [*name.lower().split(" (")[0].split(), f"{card.label_gb}gb"]
                for name, card in known.items()
            }
            whole = [name for name in known if "".join(words) == "".join(tokens[name][:-1])]
            alike = [name for name in known if set(words) <= runs_of(tokens[name])]
            if whole or alike:
                return min((known[name] for name in whole or alike), key=lambda c: c.memory_bytes)
    try:
        return CARDS[as_one_of("card", text, CARDS)]
    except ValueError as error:
        raise ValueError(f"{error}; of any other say the memory, such as 24GiB") from None


def others() -> dict[str, Card]:
    """The cards of which only the memory is known."""
    found = {}
    for name, (report, source) in BY_MEMORY.items():
        size = size_named(report) or replace(CARDS["A100 SXM 80 GB"], memory_report=report)
        said = f"{name} ({report}, no more is known)"
        found[said] = replace(size, name=said, label_gb=0, memory_source=source)
    return found


def runs_of(tokens: list[str]) -> set[str]:
    """Every run of neighbouring words, joined: of "80", "gb" also "80gb"."""
    return {"".join(tokens[i:j]) for i in range(len(tokens)) for j in range(i + 1, len(tokens) + 1)}
