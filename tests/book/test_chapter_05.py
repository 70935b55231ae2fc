"""What chapter 05's prose says of the batch planner's bars and of a pass that waits for its weights."""

import json
from dataclasses import replace
from pathlib import Path

from memkit.fitting.step import least_seconds
from memkit.hardware.cards import CARDS
from memkit.setup.models import LLAMA_32_1B
from memkit.setup.recipes import PURE_BF16, OptimizerConfig
from memkit.setup.training import TrainingSetup
from memkit.widgets.batch_planner import BatchPlanner

CHAPTER = Path(__file__).parents[2] / "chapters" / "05_gradient_accumulation.ipynb"
TEXT = {cell["id"]: "".join(cell["source"]) for cell in json.loads(CHAPTER.read_text(encoding="utf-8"))["cells"]}


def bars(**controls) -> dict[str, tuple[str, ...]]:
    """The planner's table: micro-batch → (steps, peak, relative time)."""
    return {size: row for size, *row in BatchPlanner(**controls).shown.table[1:]}


def test_the_experiments_find_what_the_text_says():
    text, opened = TEXT["planner-widget"], bars()
    assert f"2, with a peak of {opened['2'][1]}. With 4 the peak is {opened['4'][1]}" in text
    assert f"{bars(seq_len=128)['1'][2]} times the shortest" in text
    assert {row[2] for row in bars(seq_len=512).values()} == {"1.00"}


def test_a_pass_of_295_tokens_computes_as_long_as_it_reads():
    card = CARDS["H100 SXM"]
    rate, bandwidth = card.peak_tflops["bfloat16"], card.memory_bandwidth
    assert f"({rate} · 10¹² FLOP/s ÷ {bandwidth / 1e12:.2f} · 10¹² B/s)" in TEXT["planner-widget"]
    assert round(rate * 1e12 / bandwidth) == 295
    fused = OptimizerConfig(implementation="fused")
    setup = TrainingSetup(model=LLAMA_32_1B, precision=PURE_BF16, optimizer=fused)
    seconds = [least_seconds(replace(setup, seq_len=tokens), card) for tokens in (100, 295, 590)]
    assert seconds[0] == seconds[1] < 0.51 * seconds[2]
