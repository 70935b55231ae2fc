"""Runs on an L40S and on one to eight A100s, and single layers on six cards, that others measured, beside predictions.

fms-acceleration's tables give torch's own count of allocated bytes, at the peak and at rest, on the first card; PEFT's
method comparison the greatest reserved bytes; Liger's benchmark the greatest allocated bytes of a plain module beside
each kernel. A prediction is a trace of the program written again (``dev.bench.fms_programs``, ``peft_programs``,
``flux_programs``, ``liger_programs``), replayed by the allocator's rules. Nothing is fitted to a row but the longest
batch of PEFT's texts, on one run that is then not counted. A row whose program is not rebuilt is refused with its
reason.

Sources: github.com/foundation-model-stack/fms-acceleration at 876e2ed (Apache-2.0), scripts/benchmarks/refs and
refs_orca; github.com/huggingface/peft at 5d602fd (Apache-2.0), method_comparison; github.com/linkedin/Liger-Kernel at
ead96b6 (BSD 2-Clause), benchmark/data; ``file`` and ``line`` name the row.
"""

import csv
import statistics
from collections import Counter
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from memkit.units import Text, aligned_table, on_page

OTHERS = ("PEFT's methods", "PEFT on FLUX.2", "Liger's twins")
"""Rows of one card of which no bytes at rest were recorded; PEFT's are reserved bytes."""
FILE = Path(__file__).resolve().parents[1] / "recordings" / "many_cards.csv"


@dataclass(frozen=True, kw_only=True)
class ManyCardRun:
    """One measured run and its prediction, in bytes; ``refused`` says why there is none."""

    file: str
    line: int
    kind: str
    """``full``, ``LoRA``, ``QLoRA`` or ``GPTQ-LoRA`` of fms-acceleration, or one of ``OTHERS``."""
    model: str
    num_cards: int
    batch: int
    config: str
    is_autocast: bool
    measured_peak: int
    measured_rest: int
    peak: int
    rest: int
    refused: str
    seconds: float

    @property
    def peak_error(self) -> float:
        """Predicted over measured, less 1."""
        return self.peak / self.measured_peak - 1

    @property
    def rest_error(self) -> float:
        """The same of the bytes at rest."""
        return self.rest / self.measured_rest - 1


def load_many_cards() -> list[ManyCardRun]:
    """Every stored row."""
    kinds = {"int": int, "float": float, "bool": lambda word: word == "True"}
    convert = {
        field.name: kinds.get(getattr(field.type, "__name__", field.type), str)
        for field in fields(ManyCardRun)
    }
    with FILE.open(newline="", encoding="utf-8") as text:
        rows = csv.DictReader(line for line in text if not line.startswith("#"))
        read = ({name: convert[name](word) for name, word in row.items()} for row in rows)
        return [ManyCardRun(**row) for row in read]


def store_many_cards(runs: list[ManyCardRun], note: str) -> None:
    """Write the table again; ``note`` says with what and when it was predicted."""
    with FILE.open("w", newline="", encoding="utf-8") as text:
        text.write(f"# {note}\n")
        names = [field.name for field in fields(ManyCardRun)]
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(run) for run in runs)


def cards_table(runs: list[ManyCardRun]) -> list[tuple[str, ...]]:
    """Errors by what is trained and by cards: median and worst, of the peak and at rest."""
    head = "trained,cards,runs,peak: median,worst,at rest: median,worst,seconds"
    table = [tuple(head.split(","))]
    told = [run for run in runs if not run.refused]
    for kind in ("full", "LoRA", "QLoRA", "GPTQ-LoRA", *OTHERS):
        for cards in sorted({run.num_cards for run in told}):
            some = [run for run in told if (run.kind, run.num_cards) == (kind, cards)]
            if some:
                seconds = statistics.median(run.seconds for run in some)
                errors = *spread(some, "peak_error"), *spread(some, "rest_error")
                table.append((kind, str(cards), str(len(some)), *errors, f"{seconds:.0f}"))
    return table


def spread(runs: list[ManyCardRun], name: str) -> tuple[str, str]:
    """Median size of an error and the worst with its sign."""
    errors = [getattr(run, name) for run in runs if run.measured_rest or name == "peak_error"]
    if not errors:
        return "–", "–"
    return f"{statistics.median(map(abs, errors)):.3%}", f"{max(errors, key=abs):+.3%}"


def refusals(runs: list[ManyCardRun]) -> Counter:
    """How many rows each reason refuses."""
    return Counter(run.refused for run in runs if run.refused)


def cards_words(runs: list[ManyCardRun] | None = None) -> Text:
    """The table of errors and the rows that are refused; left out: every stored run, single layers not among them."""
    runs = runs or [run for run in load_many_cards() if run.kind != OTHERS[-1]]
    reasons = refusals(runs)
    lines = [f"{count:4} {reason}" for reason, count in reasons.most_common()]
    predicted = len(runs) - reasons.total()
    counted = f"{len(runs)} rows: {predicted} predicted, {reasons.total()} refused"
    return on_page(aligned_table(cards_table(runs)), "\n".join([counted, *lines]))
