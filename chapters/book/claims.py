"""What is commonly written about GPU memory, and what is so: the reader of ``chapters/claims.toml``.

A claim is a sentence that the reader may have met elsewhere, restated in our words, with our answer, a
verdict and the test or chapter cell that proves the answer. Both sentences are templates: the numbers in them
are in one table, ``figures``, and the proof reads the same table. So no number of the ledger can change
without its proof failing.
"""

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

from memkit.units import as_one_of

Figure = int | float | bool | str

VERDICTS = ("true", "conditional", "wrong", "outdated", "opinion")
"""``conditional`` is true under a condition that the answer names; ``outdated`` was true once."""

GROUPS = {
    "A": ("weights, gradients, optimizer states", 1, 57),
    "B": ("activations", 58, 82),
    "C": ("cards and the memory hierarchy", 83, 100),
    "D": ("number formats", 101, 124),
    "E": ("mixed precision", 125, 177),
    "F": ("activation recomputation", 178, 216),
    "G": ("gradient accumulation", 217, 237),
    "H": ("FP8", 238, 252),
    "I": ("profiling, the allocator and running out of memory", 253, 308),
    "J": ("many GPUs", 309, 333),
    "K": ("offload", 334, 342),
    "L": ("inference and fine-tuning recipes", 343, 366),
    "M": ("8-bit and paged optimizers", 367, 370),
    "N": ("attention kernels", 371, 376),
    "O": ("rules of thumb", 377, 421),
    "P": ("references", 422, 424),
    "Q": ("experts, long sequences, answers", 425, 431),
}
"""Group letter → (subject, first number, last number); every number in between belongs to the group."""

LEDGER = Path(__file__).resolve().parents[1] / "claims.toml"


class Figures(dict):
    """What a proof reads: the figures of an entry by name, and its verdict, which ``settle`` proves.

    >>> Figures({"gb": 112}, "conditional").settle(in_fp32=True, in_bf16=False)
    """

    def __init__(self, figures: Mapping[str, Figure], verdict: str):
        super().__init__(figures)
        self.verdict = verdict

    def settle(self, *, once: bool | None = None, **cases: bool) -> None:
        """Prove the verdict: each case says whether the sentence holds there.

        All hold: true. None: wrong. Some: conditional. ``once``: it held for what its time knew, and no longer
        in every case: outdated. Raises: AssertionError: the ledger has another verdict.
        """
        found = verdict_of(cases.values(), once)
        words = (f"{name} {'holds' if is_so else 'fails'}" for name, is_so in cases.items())
        shown = ", ".join(words)
        assert found == self.verdict, f"the ledger says {self.verdict}; found {found}: {shown}"


def verdict_of(cases: Iterable[bool], once: bool | None = None) -> str:
    """The verdict that follows from the cases in which a sentence holds and in which it fails.

    >>> verdict_of([True, True]), verdict_of([False]), verdict_of([True, False])
    ('true', 'wrong', 'conditional')
    >>> verdict_of([False], once=True)
    'outdated'
    """
    cases = list(map(bool, cases))
    if not cases:
        raise ValueError("cases=[] settle nothing: name one in which the sentence holds or fails")
    if all(cases):
        return "true"
    if once:
        return "outdated"
    return "conditional" if any(cases) else "wrong"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One sentence that is commonly written, and what is so.

    ``claim`` and ``answer`` are complete sentences, figures put in. ``proof`` is a test's node id, such as
    ``tests/claims/test_claims_a.py::test_C001``, or a cell, ``chapters/01_memory_breakdown.ipynb::cell-id`` or
    ``chapters/further/01_memory_breakdown.ipynb::cell-id``;
    an opinion, or a claim left out, has a ``reason`` instead. Where a few lines of arithmetic prove it, ``proof`` is
    the file whose names they use, all of ``so`` is true, and ``cases`` settle the verdict: expressions in the
    figures and the letters of ``given``. ``cell`` shows the claim to the reader with one of its figures at least, or
    ``about`` is on its subject with other numbers, or ``no_cell`` says why there is none.
    ``printed`` lists public pages that contain it, and is empty where we know of none
    ("unsourced").
    """

    id: str
    claim: str
    answer: str
    verdict: str
    proof: str | None = None
    reason: str | None = None
    cell: str | None = None
    about: str | None = None
    no_cell: str | None = None
    printed: tuple[str, ...] = ()
    figures: Figures | None = None
    given: Mapping[str, str] = field(default_factory=dict)
    so: tuple[str, ...] = ()
    cases: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self):
        as_one_of(f"{self.id}: verdict", self.verdict, VERDICTS)
        if (self.proof is None) == (self.reason is None):
            raise ValueError(f"{self.id} needs a proof or a reason why there is none, not both")
        places = [name for name in ("cell", "about", "no_cell") if getattr(self, name)]
        if len(places) > 1:
            raise ValueError(f"{self.id} has {' and '.join(places)}: give one of them")
        if self.verdict == "opinion" and self.reason is None:
            raise ValueError(f"{self.id} is an opinion: give the reason, it cannot have a proof")
        if self.figures and self.proof is None:
            raise ValueError(f"{self.id} has figures {', '.join(self.figures)} that nothing proves")

    @property
    def group(self) -> str:
        """Letter of the group this claim belongs to."""
        return group_of(self.id)


def group_of(claim_id: str) -> str:
    """Letter of the group that holds ``claim_id``.

    >>> group_of("C001"), group_of("C343")
    ('A', 'L')
    """
    for letter, (_, first, last) in GROUPS.items():
        if claim_id in {f"C{number:03d}" for number in range(first, last + 1)}:
            return letter
    last = max(last for *_, last in GROUPS.values())
    raise ValueError(f"claim {claim_id!r} is outside C001 to C{last:03d}")


def load_claims() -> dict[str, Claim]:
    """Every claim of the ledger by id, in the ledger's order.

    >>> from book import load_claims
    >>> load_claims()["C028"].verdict
    'wrong'
    """
    tables = tomllib.loads(LEDGER.read_text(encoding="utf-8"))
    return {claim_id: read_claim(claim_id, table) for claim_id, table in tables.items()}


def read_claim(claim_id: str, table: Mapping) -> Claim:
    """The claim that one table of the ledger holds, its figures put into its sentences."""
    figures = table.get("figures", {})
    filled = dict(table) | {
        "id": claim_id,
        "claim": table["claim"].format(**figures),
        "answer": table["answer"].format(**figures),
        "printed": () if table["printed"] == "unsourced" else tuple(table["printed"]),
        "so": tuple(table.get("so", ())),
        "figures": Figures(figures, table["verdict"]),
    }
    return Claim(**filled)


def claim(claim_id: str) -> Claim:
    """The claim ``claim_id``, such as ``C001``."""
    return load_claims()[claim_id]


def rounds_to(value: float, figure: Figure) -> bool:
    """Whether ``value``, rounded to as many decimals as ``figure`` is printed with, is ``figure``.

    >>> rounds_to(104.308, 104.3), rounds_to(104.308, 104.4), rounds_to(112.4, 112)
    (True, False, True)
    """
    shown = Decimal(str(figure))
    return Decimal(str(value)).quantize(shown) == shown


def count_verdicts(claims: Iterable[Claim]) -> dict[str, int]:
    """How many of ``claims`` have each verdict, every verdict named.

    >>> from book import load_claims
    >>> counts = count_verdicts(load_claims().values())
    >>> counts["wrong"] > 0 and sum(counts.values()) == len(load_claims())
    True
    """
    counts = Counter(claim.verdict for claim in claims)
    return {verdict: counts[verdict] for verdict in VERDICTS}


def verdicts_by_subject() -> dict[str, dict[str, int]]:
    """Subject → verdict → how many of its claims have it, the verdicts that occur, wrong ones first.

    >>> verdicts_by_subject()["number formats"]["wrong"]
    2
    """
    claims = load_claims().values()
    order = ("wrong", "outdated", "conditional", "opinion", "true")
    found = {}
    for letter, (subject, _, _) in GROUPS.items():
        if mine := [claim for claim in claims if claim.group == letter]:
            counts = count_verdicts(mine)
            found[subject] = {verdict: counts[verdict] for verdict in order if counts[verdict]}
    return found
