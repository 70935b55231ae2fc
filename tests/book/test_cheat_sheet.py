"""The cheat sheet: its lines are the estimate's, and what it says in words follows from its numbers."""

import re
from collections import Counter
from html import unescape
from itertools import combinations
from pathlib import Path
from statistics import fmean

import pytest
from drawn import labels_of, marks_of, overlap

from book.cheat_sheet import JOBS, OUTSIDE_THE_STEP, TECHNIQUES, apply_techniques, sheet_figure
from memkit.formula.estimate import estimate_memory
from memkit.models import TINY_GPT2, TINY_LLAMA
from memkit.setup import TrainingSetup
from stepscope.setup import Job

SMALL = {"small": Job(model=TINY_LLAMA, micro_batch_size=2, seq_len=32, device="cpu")}


@pytest.fixture(scope="module")
def lines():
    return apply_techniques()


def test_the_page_to_print_says_what_is_computed(lines):
    """The picture's words are text, so the file itself can be searched."""
    svg = (Path(__file__).parents[2] / "figures" / "D_cheat_sheet.svg").read_text(encoding="utf-8")
    printed = Counter(map(unescape, re.findall("<text [^>]*>([^<]*)</text>", svg)))
    shares = [f"{share:.0%}" for line in lines for share in line.shares.values()]
    words = [word for line in lines for word in (line.technique.name, *line.words)]
    assert Counter((*shares, *words, *OUTSIDE_THE_STEP)) <= printed
    assert sum(n for text, n in printed.items() if text.endswith(("%", "×"))) == len(shares) + len(
        lines
    )


def test_a_job_by_hand(lines):
    by_hand = (4 + 4 + 8) * 6_738_415_616
    fused = next(line for line in lines if line.technique.name == "fused step")
    assert fused.peaks["7B, 1,024 tokens"] == pytest.approx(by_hand, rel=1e-3)


def test_what_shrinks_activations_leaves_a_peak_of_states_as_it_is(lines):
    shares = {line.technique.name: line.shares["7B, 1,024 tokens"] for line in lines}
    for name in (
        "every block recomputed",
        "recomputed, loss in pieces",
        "one sequence a pass",
        "half of the tokens",
    ):
        assert shares[name] == 1


def test_a_technique_s_peak_is_what_the_trace_finds():
    from memkit.tracing.trace import trace_memory
    from stepscope.program.job import job_build

    for technique in TECHNIQUES:
        setup = technique.change(SMALL["small"])
        if (
            technique.layout
            or setup.place.is_on_host
            or technique.name
            in (
                "8-bit states",
                "QLoRA, recomputed",
            )
        ):
            continue  # tests/stepscope/formula/test_small_states.py and tests/stepscope/sharding trace these
        traced = trace_memory(job_build(setup), device="cpu").for_step(2).peak_bytes
        assert estimate_memory(setup).for_step(2).peak_bytes == pytest.approx(traced, rel=1e-3), (
            technique.name
        )


def test_every_technique_stands_in_the_picture(lines):
    picture = sheet_figure(lines, "What is left")
    assert all(technique.name in picture.alt for technique in TECHNIQUES)
    assert all(job in picture.alt for job in JOBS)


def test_a_bar_is_as_long_as_its_share_and_those_of_a_line_stand_below_each_other(lines):
    picture = sheet_figure(lines, "What is left")
    marks, labels = marks_of(picture, "job", "share"), labels_of(picture)
    assert [mark.data["job"] for mark in marks] == [*JOBS] * len(lines)
    whole = next(mark.at("width") for mark in marks if float(mark.data["share"]) == 1)
    shorter = [mark for mark in marks if float(mark.data["share"]) <= 1]
    assert [mark.at("width") for mark in shorter] == pytest.approx(
        [whole * float(mark.data["share"]) for mark in shorter], abs=0.1
    )
    for row, line in enumerate(lines):
        bars = marks[row * len(JOBS) : (row + 1) * len(JOBS)]
        middles = [bar.at("y") + bar.at("height") / 2 for bar in bars]
        assert middles == sorted(middles)
        left = min(
            (label for label in labels if label.text == line.technique.name),
            key=lambda each: each.box[0],
        )
        assert fmean(middles) == pytest.approx(fmean(left.box[1::2]), abs=4), line.technique.name


def test_accumulation_keeps_the_tokens_of_a_step():
    accumulation = next(
        technique for technique in TECHNIQUES if technique.name == "one sequence a pass"
    )
    for job in JOBS.values():
        after = accumulation.change(job)
        assert (
            after.micro_batch_size * after.grad_accum_steps
            == job.micro_batch_size * job.grad_accum_steps
        )


@pytest.mark.parametrize("model", [TINY_GPT2, TINY_LLAMA], ids=lambda model: model.name)
def test_a_job_of_one_s_own_gets_every_line(model):
    lines = apply_techniques({"mine": TrainingSetup(model=model, micro_batch_size=2, seq_len=64)})
    assert len(lines) == len(TECHNIQUES) and all(0 < line.shares["mine"] < 3 for line in lines)


def test_a_phone_s_sheet_has_every_word_and_every_bar(lines):
    wide = sheet_figure(lines, "What is left", OUTSIDE_THE_STEP)
    chart = wide.narrow()
    labels = labels_of(chart)
    words = " ".join(label.text for label in labels).split()
    for line in lines:
        told = " ".join((line.technique.name, *line.words)).replace(";", "")
        assert set(told.split()) <= {each.replace(";", "") for each in words}
    assert set(" ".join(OUTSIDE_THE_STEP).split()) <= set(words)
    shares = [[mark.data["share"] for mark in marks_of(each, "share")] for each in (wide, chart)]
    assert shares[0] == shares[1]
    assert not [a.text for a, b in combinations(labels, 2) if overlap(a, b)]
    assert all(0 <= label.box[0] and label.box[2] <= chart.width for label in labels)
