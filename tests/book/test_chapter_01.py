"""The numbers that chapter 01's prose gives as the outcome of its experiments in the explorer."""

import json
import re
from dataclasses import replace
from pathlib import Path

from memkit.formula.estimate import estimate_memory
from memkit.hardware.cards import CARDS
from memkit.setup.models import LLAMA_2_7B
from memkit.setup.recipes import PURE_BF16
from memkit.setup.training import TrainingSetup
from memkit.units import format_bytes

CHAPTER = Path(__file__).parents[2] / "chapters" / "01_memory_breakdown.ipynb"
SHORT = TrainingSetup(model=LLAMA_2_7B, precision=PURE_BF16, seq_len=2048)
LONG = replace(SHORT, seq_len=4096)


def found_text() -> str:
    cells = json.loads(CHAPTER.read_text(encoding="utf-8"))["cells"]
    text = next("".join(cell["source"]) for cell in cells if cell["id"] == "explorer-text")
    return text.partition("What you should find")[2]


def second_step_peak(setup: TrainingSetup):
    return estimate_memory(setup).for_step(2).peak


def largest_that_fits(setup: TrainingSetup) -> int:
    batch = 0
    room = CARDS["H100 SXM"].memory_bytes
    while second_step_peak(replace(setup, micro_batch_size=batch + 1)).total_bytes <= room:
        batch += 1
    return batch


def test_the_crossing():
    crossing = int(re.search(r"1\. At (\d+)\.", found_text())[1])
    assert "optimizer" in second_step_peak(replace(SHORT, micro_batch_size=crossing - 1)).name
    assert "optimizer" not in second_step_peak(replace(SHORT, micro_batch_size=crossing)).name


def test_what_recomputation_buys():
    words = {"One": 1, "Two": 2, "Three": 3}
    plain, recomputed = re.search(r"2\. (\w+) sequences; with recomputation, (\d+)\.", found_text()).groups()
    assert largest_that_fits(LONG) == words[plain]
    assert largest_that_fits(replace(LONG, recomputation="full")) == int(recomputed)


def test_what_accumulation_costs():
    before, after = (second_step_peak(replace(LONG, grad_accum_steps=steps)) for steps in (1, 4))
    assert format_bytes(after.total_bytes - before.total_bytes) in found_text()
    assert "optimizer" in before.name and "backward" in after.name
