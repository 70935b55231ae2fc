"""The columns side by side: each divided by the last, unknown where one has no such instant."""

import math

import pytest

from memkit.formula.estimate import estimate_memory
from memkit.models import TINY_LLAMA
from memkit.recipes import BF16_MASTER, PURE_BF16
from memkit.setup import TrainingSetup
from memkit.timeline import INSTANTS, Instant, MemoryTimeline
from stepscope.columns import compare, format_ratio


def timeline(*totals, source="formula"):
    names = [name for name in INSTANTS if name != "init"][: len(totals)]
    instants = tuple(Instant(name=n, total_bytes=t) for n, t in zip(names, totals, strict=True))
    return MemoryTimeline(instants=instants, source=source)


def test_compare_divides_each_column_by_the_last():
    text = compare(timeline(110, 300), timeline(100, 200, source="traced"))
    header, _, *rows = text.splitlines()
    assert "formula ÷ traced" in header
    assert rows[0].endswith("1.10×") and rows[1].endswith("1.50×")
    assert rows[-1].startswith("peak") and rows[-1].endswith("1.50×")


def test_compare_says_where_the_peaks_are_of_different_moments():
    first = timeline(1, 2, 3, 4, 9)
    made = MemoryTimeline(
        instants=(Instant(name="init", total_bytes=12), *first.instants), source="traced"
    )
    note = "The peaks are of different moments: formula at optimizer peak; traced at init"
    assert compare(first, made).endswith(note)
    assert "different moments" not in compare(first, timeline(1, 2, 3, 4, 9, source="traced"))


def test_compare_says_unknown_where_a_timeline_lacks_the_instant():
    text = compare(timeline(110), timeline(100, 200, source="measured"))
    assert "unknown" in text.splitlines()[3] and text.splitlines()[3].endswith("–")
    with pytest.raises(ValueError, match="at least two timelines, got 1"):
        compare(timeline(1))


@pytest.mark.parametrize(
    "estimate, measured, text",
    [
        (103, 100, "1.03×"),
        (0, 5, "0.00×"),
        (5, 0, "–"),
        (None, 5, "–"),
        (5, None, "–"),
        (math.inf, 5, "–"),
        (math.nan, 5, "–"),
    ],
)
def test_a_ratio_is_estimate_over_measured_or_a_dash(estimate, measured, text):
    assert format_ratio(estimate, measured) == text


def test_what_a_column_leaves_out_stands_below():
    wide, plain = (
        estimate_memory(TrainingSetup(model=TINY_LLAMA, precision=precision, seq_len=8))
        for precision in (BF16_MASTER, PURE_BF16)
    )
    assert "formula: at least; left out: the float32" in compare(wide, plain)
    assert "at least" not in compare(plain, plain)
