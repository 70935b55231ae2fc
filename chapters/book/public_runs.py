"""Other people's GPU runs beside what this package predicts for them from the program alone.

No card has run this book yet. Others have measured thousands of training runs and published the figures with the
programs. ``load_public_runs`` gives 178 of them, each with its source, its card, what was measured, what was predicted
here, and what the published estimators said of the same run.

What is measured is the process's memory on the card, so a prediction is reserved bytes and one constant a card: the
CUDA context, kernels and library handles. The constant is the median difference on the *given* half of the runs, and
it is held on the other half, which no figure here was fitted to.

Three things are not known, and a run that hangs on one has a range and a warning: how long the longest line of a small
batch of text was, which workspaces cuDNN took for convolutions, and whether PyTorch's allocator reserved one more block
of the size of an embedding that is most of the model.

Sources: xMem, arXiv:2510.21048, github.com/Stone-ResearchLife/xMem at d61e076, plot/data/001-Anova (``run`` names the
folder; ``evaluation_result.json`` in it); GPUMemNet, arXiv:2602.17817, github.com/itu-rad/GPUMemNet at 4fe157b,
Datasets/MLP/mlp_data_step2.csv (``run`` is the row, from 0), and at acd9dbc and c202180 Analysis/00-Cleaned-NoteBooks/
001-visualizations/Transformers.csv and Assets/Estimator_Transformer/01-Transformer_estimates_for_CNNs/cnn_data1.csv
(``run`` is how the row's name begins); CS336 on a B200, github.com/csdiywithme/
cs336-assignment2-systems at bb85bbf, runs/cloud (``result.json``).
"""

import csv
import statistics
from dataclasses import dataclass, replace
from pathlib import Path

from memkit.units import MIB, Text, aligned_table, on_page

FILE = Path(__file__).resolve().parents[1] / "recordings" / "public_runs.csv"
FACTS = tuple("set half run card model optimizer batch config outcome measured_bytes".split())
PREDICTED = ("expected_bytes", "low_bytes", "high_bytes", "allocated_bytes", "is_failure")
ESTIMATORS = ("xmem", "dnnmem", "schedtune", "llmem", "accelerate")
"""Published estimators: xMem, DNNMem, SchedTune and LLMem with the figures that xMem's files give for the same runs;
Hugging Face's ``accelerate estimate-memory``, run here (1.15.0): four times the weights, for training with Adam."""
LENGTHS_UNKNOWN = "the batches of text differ in length, and which lengths came is not recorded"
NOT_MODELLED = {
    "xMem CNNs": "cuDNN's workspaces are not modelled: the range is that of the runs that were given",
    "GPUMemNet CNNs": "cuDNN's workspaces are not modelled: the range is that of the runs that were given",
    "GPUMemNet transformers": "most of the model is its embedding, and PyTorch's allocator may reserve one block of "
    "that size more: the range is that of the runs that were given",
}
"""Sets of runs with something that no prediction knows; their range is taken from their given half."""
CONSTANT_OF = {
    "xMem CNNs": "xMem transformers",
    "GPUMemNet CNNs": "GPUMemNet MLPs",
    "GPUMemNet transformers": "GPUMemNet MLPs",
}
"""Sets that take the constant of their card from other runs on the same machine."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What the trace and the allocator's replay say, in bytes; the context is not in it."""

    expected_bytes: int
    low_bytes: int
    high_bytes: int
    allocated_bytes: int
    is_failure: bool = False
    """Whether the replay on a card of this size ended with an out-of-memory error."""


@dataclass(frozen=True, kw_only=True)
class PublicRun:
    """One measured run. ``config`` holds what the other columns do not say, as words in a fixed order."""

    set: str
    half: str
    run: str
    card: str
    model: str
    optimizer: str
    batch: int
    config: str
    outcome: str
    """``ok``, or ``oom`` where the program ran out of memory; what was measured then is the card's end."""
    measured_bytes: int
    estimates: dict[str, int]
    prediction: Prediction | None
    context_bytes: int = 0
    """The constant of this set and card, in every prediction below."""
    given_range: tuple[float, float] = (1.0, 1.0)

    @property
    def predicted_bytes(self) -> int:
        """Reserved bytes and the context."""
        return self.prediction.expected_bytes + self.context_bytes

    @property
    def range_bytes(self) -> tuple[int, int]:
        """The least and the most that are predicted."""
        low, high = self.given_range
        bounds = self.prediction.low_bytes * low, self.prediction.high_bytes * high
        return tuple(round(bound) + self.context_bytes for bound in bounds)

    @property
    def error(self) -> float:
        """Predicted over measured, less 1: negative is too low, the dangerous side."""
        return self.predicted_bytes / self.measured_bytes - 1

    @property
    def ratio(self) -> float:
        """Measured over predicted, both without the context."""
        return (self.measured_bytes - self.context_bytes) / self.prediction.expected_bytes

    @property
    def warning(self) -> str:
        """What the prediction cannot know, or nothing."""
        if self.set in NOT_MODELLED:
            return NOT_MODELLED[self.set]
        return LENGTHS_UNKNOWN if self.prediction.low_bytes < self.prediction.high_bytes else ""


def load_public_runs() -> list[PublicRun]:
    """Every public run with its stored prediction, its card's constant and its range."""
    with FILE.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    runs = [_run_of(row) for row in rows]
    contexts = {key: _context_bytes(runs, *key) for key in {(run.set, run.card) for run in runs}}
    runs = [replace(run, context_bytes=contexts[run.set, run.card]) for run in runs]
    for of_set in NOT_MODELLED:
        ratios = [run.ratio for run in runs if run.set == of_set and _is_fitted_on(run)]
        bounds = (min(ratios, default=1.0), max(ratios, default=1.0))
        runs = [replace(run, given_range=bounds) if run.set == of_set else run for run in runs]
    return runs


def store_public_runs(runs: list[PublicRun], note: str) -> None:
    """Write the table again; ``note`` says with which libraries, when and on what the predictions were made."""
    with FILE.open("w", newline="", encoding="utf-8") as file:
        file.write(f"# {note}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow((*FACTS, *ESTIMATORS, *PREDICTED))
        for run in runs:
            predicted = [getattr(run.prediction, name, "") for name in PREDICTED]
            estimates = [run.estimates.get(name, "") for name in ESTIMATORS]
            writer.writerow((*(getattr(run, name) for name in FACTS), *estimates, *predicted))


def note() -> str:
    """With which libraries, when and on what machine the stored predictions were made."""
    with FILE.open(encoding="utf-8") as file:
        return file.readline().removeprefix("#").strip()


def _run_of(row: dict[str, str]) -> PublicRun:
    numbers = {name: int(row[name]) for name in ("batch", "measured_bytes")}
    facts = {name: row[name] for name in FACTS} | numbers
    estimates = {name: int(row[name]) for name in ESTIMATORS if row[name]}
    predicted = {name: int(row[name]) for name in PREDICTED if row[name]}
    prediction = Prediction(**predicted) if predicted else None
    return PublicRun(**facts, estimates=estimates, prediction=prediction)


def _is_fitted_on(run: PublicRun) -> bool:
    """Whether constants may be taken from this run: it is of the given half and ended well."""
    return run.half == "given" and run.outcome == "ok" and run.prediction is not None


def _context_bytes(runs: list[PublicRun], of_set: str, card: str) -> int:
    """The median of what is measured beyond reserved bytes, on the given runs of a card and a set of runs.

    Runs with a warning tell nothing about it: they take the constant of other runs on the same machine
    (``CONSTANT_OF``). Where no run is sure it is 0.
    """
    of_set = CONSTANT_OF.get(of_set, of_set)
    fitted = [run for run in runs if (run.set, run.card) == (of_set, card) and _is_fitted_on(run)]
    beyond = [
        run.measured_bytes - run.prediction.expected_bytes for run in fitted if not run.warning
    ]
    return round(statistics.median(beyond)) if beyond else 0


def error_table(runs: list[PublicRun]) -> list[tuple[str, ...]]:
    """Errors of the runs that ended well, by set and half, ours beside the published estimators' on the same runs."""
    table = [("runs", "half", "n", "by", "median", "90 %", "worst", "within 1 %", "too low")]
    for of_set in dict.fromkeys(run.set for run in runs):
        for half in ("given", "held"):
            those, kind = [run for run in runs if run.prediction], (of_set, half, "ok")
            some = [run for run in those if (run.set, run.half, run.outcome) == kind]
            if some:
                own = _summary([run.error for run in some])
                table.append((of_set, half, str(len(some)), "memkit", *own))
            for name in ESTIMATORS:
                told = [run for run in some if run.estimates.get(name, 0) > 0]
                errors = [run.estimates[name] / run.measured_bytes - 1 for run in told]
                if errors:
                    table.append(("", "", str(len(errors)), name, *_summary(errors)))
    return table


def _summary(errors: list[float]) -> tuple[str, ...]:
    """Median, 90th percentile and worst, the share within 1 %, and the share that is more than 1 % too low."""
    sizes = sorted(map(abs, errors))
    at_90 = sizes[min(len(sizes) - 1, round(0.9 * (len(sizes) - 1)))]
    within = sum(size <= 0.01 for size in sizes) / len(errors)
    too_low = sum(error < -0.01 for error in errors) / len(errors)
    shares = f"{max(errors, key=abs):+.2%}", f"{within:.0%}", f"{too_low:.0%}"
    return f"{statistics.median(sizes):.2%}", f"{at_90:.2%}", *shares


def words(runs: list[PublicRun] | None = None) -> Text:
    """The table of errors as text, and the constants that were taken from the given half."""
    runs = runs or load_public_runs()
    contexts = {(run.set, run.card): run.context_bytes for run in runs}
    lines = [
        f"{of_set}, {card}: {size / MIB:,.0f} MiB" for (of_set, card), size in contexts.items()
    ]
    return on_page(
        aligned_table(error_table(runs)),
        "\n".join(["beyond reserved bytes, from the given half:", *lines]),
    )
