"""Cards by the names that people type: those of the table, others of which only the memory is known, and mere sizes."""

import argparse
import re
from dataclasses import replace
from fractions import Fraction

from memkit.cards import CARDS, MEMORY_ONLY, CardMemory
from memkit.units import KIB, as_one_of

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


def size_named(text: str) -> CardMemory | None:
    """A card of a mere size, such as 24GiB, ``24 gb`` or 80G."""
    if not re.fullmatch(r"[\d.]+ *gi?b?", text.strip(), re.IGNORECASE):
        return None
    report = f"{bytes_in(text)} bytes"
    return CardMemory(name=f"card of {text.strip()}", memory_report=report, memory_source=text)


def card_named(text: str) -> CardMemory:
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
        for known in (CARDS, MEMORY_ONLY):
            tokens = {
                name: [*name.lower().split(), f"{card.label_gb}gb"] for name, card in known.items()
            }
            whole = [name for name in known if "".join(words) == "".join(tokens[name][:-1])]
            alike = [name for name in known if set(words) <= runs_of(tokens[name])]
            if whole or alike:
                card = min((known[name] for name in whole or alike), key=lambda c: c.memory_bytes)
                words = f"{card.name} ({card.memory_report}, no more is known)"
                return card if known is CARDS else replace(card, name=words)
    try:
        return CARDS[as_one_of("card", text, CARDS)]
    except ValueError as error:
        raise ValueError(f"{error}; of any other say the memory, such as 24GiB") from None


def runs_of(tokens: list[str]) -> set[str]:
    """Every run of neighbouring words, joined: of "80", "gb" also "80gb"."""
    return {"".join(tokens[i:j]) for i in range(len(tokens)) for j in range(i + 1, len(tokens) + 1)}
