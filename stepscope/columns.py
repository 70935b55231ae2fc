"""The columns of the book side by side: estimate, trace and measurement of one step, and each divided by the last."""

import math
from collections.abc import Iterable, Sequence

from memkit.timeline import INSTANTS, MemoryTimeline, label_of
from memkit.units import Text, aligned_table, as_one_of, format_bytes, on_page


def format_ratio(estimate: int | None, measured: int | None) -> str:
    """Estimate ÷ measured, as ``1.03×``; ``–`` where one of them is unknown or the second is zero.

    >>> format_ratio(103, 100), format_ratio(0, 0)
    ('1.03×', '–')
    """
    if estimate is None or measured is None or measured == 0:
        return "–"
    ratio = estimate / measured
    return f"{ratio:.2f}×" if math.isfinite(ratio) else "–"


def compare(*timelines: MemoryTimeline, names: Iterable[str] = INSTANTS) -> Text:
    """Formula, trace and measurement side by side: total bytes per instant, and each column ÷ the last.

    Instants are matched by name, step and micro-batch; one that a timeline lacks is ``unknown``. Where the peaks are
    of different moments (a trace's may be of making the model), that is said below.

    >>> from memkit import TrainingSetup, estimate_memory, models, trace_memory, training_build
    >>> setup = TrainingSetup(model=models.TINY_GPT2, seq_len=64)
    >>> columns = estimate_memory(setup), trace_memory(training_build(setup))
    >>> print(compare(*columns, names=["forward", "optimizer peak"]))
    instant                    formula      traced  formula ÷ traced
    ────────────────────────────────────────────────────────────────
    forward, step 1          78.54 MiB   78.54 MiB             1.00×
    optimizer peak, step 1  310.66 MiB  310.66 MiB             1.00×
    forward, step 2         202.81 MiB  202.81 MiB             1.00×
    optimizer peak, step 2  310.66 MiB  310.66 MiB             1.00×
    peak                    346.69 MiB  346.69 MiB             1.00×
    """
    if len(timelines) < 2:
        raise ValueError(f"compare needs at least two timelines, got {len(timelines)}")
    *_, last = timelines
    known = dict.fromkeys((*INSTANTS, *(i.name for t in timelines for i in t.instants)))
    wanted = {as_one_of("names", name, known) for name in names}
    columns = [t.source for t in timelines]
    rows = [["instant", *columns, *(f"{c} ÷ {columns[-1]}" for c in columns[:-1])]]

    def add(label: str, values: Sequence[int | None]) -> None:
        ratios = (format_ratio(value, values[-1]) for value in values[:-1])
        rows.append([label, *map(format_bytes, values), *ratios])

    totals = [
        {(i.name, i.step, i.micro_batch): i.total_bytes for i in t.instants} for t in timelines
    ]
    for i in last.instants:
        if i.name in wanted:
            add(label_of(i, last), [each.get((i.name, i.step, i.micro_batch)) for each in totals])
    add("peak", [t.peak_bytes for t in timelines])
    left_out = {t.source: t.left_out for t in timelines if t.left_out}
    notes = [f"{source}: at least; left out: {words}" for source, words in left_out.items()]
    moments = [label_of(t.peak, t) for t in timelines]
    if len(set(moments)) > 1:
        peaks = "; ".join(f"{s} at {moment}" for s, moment in zip(columns, moments, strict=True))
        notes.append(f"The peaks are of different moments: {peaks}")
    return on_page(aligned_table(rows), *notes, between="\n")
