"""One card for many students: how many it serves in each chapter, and what keeps them apart.

    python -m course.classroom --card "A100 SXM 80 GB" --students 20 [--json]

Three ways, the safest first. MIG cuts the card in hardware. MPS runs all processes through one server that refuses
what is above a limit. A fraction is a promise that each process makes to itself. What a chapter needs is what its
title says; a share must hold that beside CUDA's context, by the rule of ``memkit.fit``.

Source: NVIDIA Multi-Instance GPU user guide, r580, "Supported MIG Profiles"; profile names of H100 NVL, H200 and
B200 as ``nvidia-smi mig -lgip`` lists them in NVIDIA/mig-parted pulls 101 and 166 and issue 120; NVIDIA Multi-Process
Service guide, "Memory protection", "Error containment", "Limitations".
"""

import argparse
import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from dev.notebooks import notebooks, place_of
from memkit.cards import CARDS, Card
from memkit.fit import CONTEXT_BYTES, planned_room
from memkit.units import GIB, MIB, aligned_table, as_one_of, as_whole_number, format_bytes

FOLDER = Path(__file__).resolve().parents[1] / "chapters"
DECLARED = re.compile(
    r"^\*\d+ min.*?(?:under (\d+) GiB(?! if)|under \d+ GiB if it has them|\(0\sGiB\)|(no GPU memory))\*",
    re.MULTILINE,
)

PROFILES = {
    "A100 PCIe 40 GB": "1g.5gb 1g.10gb 3g.20gb 7g.40gb",
    "A100 SXM 40 GB": "1g.5gb 1g.10gb 3g.20gb 7g.40gb",
    "A100 PCIe 80 GB": "1g.10gb 1g.20gb 3g.40gb 7g.80gb",
    "A100 SXM 80 GB": "1g.10gb 1g.20gb 3g.40gb 7g.80gb",
    "H100 PCIe": "1g.10gb 1g.20gb 3g.40gb 7g.80gb",
    "H100 SXM": "1g.10gb 1g.20gb 3g.40gb 7g.80gb",
    "H100 NVL": "1g.12gb 1g.24gb 3g.47gb 7g.94gb",
    "H200": "1g.18gb 1g.35gb 3g.71gb 7g.141gb",
    "B200": "1g.23gb 1g.45gb 3g.90gb 7g.180gb",
}
"""By card the profiles that cut it into equal instances: 7 of an eighth of its memory, 4 of two, 2 of four, 1."""
CUTS = ((7, 1), (4, 2), (2, 4), (1, 8))
INSTANCE_SHARE = 10
"""One part in so many of an instance's eighths is taken off: the driver lists 3 to 9 % less than they are."""

MPS_CLIENTS = 48
"""Processes that one MPS server of a Volta or later card takes."""

ISOLATION = {
    "MIG": (
        "memory, bandwidth, cache, SMs and errors: an instance that fails or is full stops nobody else",
        "the host's RAM and cores; two students in one instance",
    ),
    "MPS": (
        "addresses, and the number of bytes: above its limit a process gets an out-of-memory error, alone",
        "errors: an illegal access of one ends every process on the card; bandwidth and cache",
    ),
    "fraction": (
        "nothing: it only caps what PyTorch's allocator takes in a process that sets it",
        "another library's memory, CUDA's context beside the cap, a student who unsets it, errors, time",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way of sharing: who fits on a card in each chapter, and what to type."""

    name: str
    per_card: dict[str, int]
    cards: int
    each_bytes: int
    settings: tuple[str, ...]
    isolates: str
    leaves_open: str


@dataclass(frozen=True, kw_only=True)
class Classroom:
    """A card, a class, what each chapter needs, and the ways to share."""

    card: str
    students: int
    budgets: dict[str, int]
    ways: tuple[Way, ...]
    missing: tuple[str, ...]

    def __str__(self) -> str:
        rows = [["chapter", "needs", *(f"{way.name}, students" for way in self.ways)]]
        for chapter, budget in self.budgets.items():
            if budget:
                per_card = (str(way.per_card[chapter]) for way in self.ways)
                rows.append([chapter, f"≤ {format_bytes(budget)}", *per_card])
        without = ", ".join(chapter for chapter, budget in self.budgets.items() if not budget)
        lines = [
            f"one {self.card}, students at once:",
            "",
            aligned_table(rows),
            f"no GPU memory: {without}",
        ]
        for way in self.ways:
            cards = f"{way.cards} card{'s' * (way.cards > 1)}"
            lines += [
                "",
                f"{way.name}: {self.students} students on {cards}, {format_bytes(way.each_bytes)} each",
            ]
            lines += [f"    {line}" for line in way.settings]
            lines += [f"  keeps apart: {way.isolates}", f"  does not: {way.leaves_open}"]
        return "\n".join([*lines, *(f"\n{words}" for words in self.missing)])


def chapter_budgets(folder: Path = FOLDER) -> dict[str, int]:
    """Bytes of GPU memory that each chapter declares in its title, by the chapter's number or letter.

    Of a lesson and the notebooks beside it the one that declares most counts. "Under 15 GiB if it has them" is no need:
    where there is less, the chapter's cell shows published runs.

    Raises: ValueError: no chapters there, or a title without its line.
    """
    budgets = {}
    for path in notebooks(folder):
        title = "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"])
        found = DECLARED.search(title)
        if not found:
            raise ValueError(
                f"{place_of(path)}: the title does not say how much GPU memory the chapter needs"
            )
        number = path.name.partition("_")[0]
        budgets[number] = max(budgets.get(number, 0), int(found[1] or 0) * GIB)
    if not budgets:
        raise ValueError(
            f"no chapters in {folder}; the command needs the book's repository beside the package"
        )
    return budgets


def most_sharing(card_bytes: int, budget: int) -> int:
    """The largest number of equal shares of a card that each hold the budget beside a context.

    >>> most_sharing(80 * GIB, 2 * GIB)
    31
    """
    held = math.ceil(budget * 100 / 99) + CONTEXT_BYTES
    shares = card_bytes // held + 1
    while shares and (
        card_bytes // shares <= CONTEXT_BYTES or planned_room(card_bytes // shares) < budget
    ):
        shares -= 1
    return shares


def instances(card: Card, budget: int) -> list[tuple[str, int, int]]:
    """Profiles whose instance holds the budget: name, how many, bytes of one; the smallest first."""
    cut = zip(PROFILES.get(card.name, "").split(), CUTS)
    sized = [(name, count, card.memory_bytes * eighths // 8) for name, (count, eighths) in cut]
    kept = [(name, count, size - size // INSTANCE_SHARE) for name, count, size in sized]
    return [profile for profile in kept if planned_room(profile[2]) >= budget]


def spread_over(students: int, most: int) -> tuple[int, int]:
    """Cards for the class, and students on the fullest of them."""
    cards = -(-students // most)
    return cards, -(-students // cards)


def by_mig(card: Card, students: int, budgets: dict[str, int]) -> Way | None:
    """An instance for each student, the largest that is enough for the class; ``None`` on a card without MIG."""
    fitting = instances(card, max(budgets.values()))
    if not fitting:
        return None
    cards, here = spread_over(students, fitting[0][1])
    name, count, size = next(profile for profile in reversed(fitting) if profile[1] >= here)
    return Way(
        name="MIG",
        cards=cards,
        each_bytes=planned_room(size),
        per_card={chapter: instances(card, need)[0][1] for chapter, need in budgets.items()},
        settings=(
            "sudo nvidia-smi -i 0 -mig 1",
            f"sudo nvidia-smi mig -i 0 -cgi {','.join([name] * count)} -C",
            "nvidia-smi -L     # prints a name for each instance",
            "MEMKIT_HUB_CARDS=MIG-...,MIG-... make hub     # all of them; each server gets one",
            f"Kubernetes: nvidia.com/mig-{name}: 1",
        ),
        isolates=ISOLATION["MIG"][0],
        leaves_open=ISOLATION["MIG"][1],
    )


def by_process(name: str, card: Card, students: int, budgets: dict[str, int]) -> Way:
    """Processes beside each other on the whole card, by MPS or by a fraction."""
    per_card = {chapter: most_sharing(card.memory_bytes, need) for chapter, need in budgets.items()}
    if name == "MPS":
        per_card = {chapter: min(MPS_CLIENTS, most) for chapter, most in per_card.items()}
    cards, here = spread_over(students, min(per_card.values()))
    share = card.memory_bytes // here
    cap = f"MEMKIT_GPU_GIB={math.floor(10 * planned_room(share) / GIB) / 10}"
    spread = f"MEMKIT_HUB_CARDS=$(seq -s, 0 {cards - 1}) " if cards > 1 else ""
    settings = {
        "MPS": (
            "nvidia-cuda-mps-control -d     # on the host, by the account that runs the students' servers",
            f'{spread}CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0={share // MIB}M" make hub',
            f"Kubernetes: sharing.mps.replicas: {here} in the device plugin, nvidia.com/gpu: 1 each",
        ),
        "fraction": (
            f"{spread}{cap} make hub",
            f"Kubernetes, NVIDIA: sharing.timeSlicing.replicas: {here} in the device plugin, {cap} in extraEnv",
        ),
    }
    isolates, leaves_open = ISOLATION[name]
    return Way(
        name=name,
        per_card=per_card,
        cards=cards,
        each_bytes=planned_room(share),
        settings=settings[name],
        isolates=isolates,
        leaves_open=leaves_open,
    )


def plan_classroom(
    card_name: str, students: int, budgets: dict[str, int] | None = None
) -> Classroom:
    """Students per card and settings, in the order MIG, MPS, fraction.

    >>> room = plan_classroom("A100 SXM 80 GB", 20, {"01": 2 * GIB})
    >>> [(way.name, way.per_card["01"], way.cards) for way in room.ways]
    [('MIG', 7, 3), ('MPS', 31, 1), ('fraction', 31, 1)]

    Raises: ValueError: an unknown card, no students, a chapter that no card of this kind holds.
    """
    card = CARDS[as_one_of("card", card_name, CARDS)]
    as_whole_number("students", students, 1)
    budgets = chapter_budgets() if budgets is None else budgets
    needed = {chapter: need for chapter, need in budgets.items() if need}
    if not needed or planned_room(card.memory_bytes) < max(needed.values()):
        raise ValueError(f"budgets={budgets}: at least one above 0, and none above a {card.name}")
    missing = []
    ways = [by_mig(card, students, needed)]
    if ways[0] is None:
        missing.append(f"MIG: a {card.name} has none, or no instance large enough.")
    if card.vendor == "NVIDIA":
        ways.append(by_process("MPS", card, students, needed))
    else:
        missing.append(f"MPS: NVIDIA's; {card.vendor} has no such server.")
    ways.append(by_process("fraction", card, students, needed))
    found = tuple(way for way in ways if way)
    return Classroom(
        card=card.name, students=students, budgets=budgets, ways=found, missing=tuple(missing)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the plan for a card and a class; what cannot be used is said in one line, with exit code 2."""
    parser = argparse.ArgumentParser(
        prog="python -m course.classroom", description="one card for many students"
    )
    parser.add_argument("--card", required=True, help="a name such as 'A100 SXM 80 GB'")
    parser.add_argument("--students", type=int, required=True, help="students at once")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    options = parser.parse_args(arguments)
    try:
        room = plan_classroom(options.card, options.students)
    except ValueError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    print(json.dumps(asdict(room), indent=1) if options.json else room)
    return 0


if __name__ == "__main__":
    sys.exit(main())
