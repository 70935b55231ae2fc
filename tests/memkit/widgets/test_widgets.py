"""The explorers without a browser: build, move every control, feed them nonsense. A panel never dies."""

import sys
from dataclasses import replace
from typing import ClassVar

import pytest

from memkit.formula.estimate import estimate_memory, second_step
from memkit.models import GPT2_SMALL, LLAMA_2_7B
from memkit.pictures.colours import COLOUR
from memkit.recipes import PURE_BF16
from memkit.setup import TrainingSetup
from memkit.units import format_bytes
from memkit.widgets import panel
from memkit.widgets.explorer import Explorer, Number, html_places
from memkit.widgets.memory_explorer import MemoryExplorer
from memkit.widgets.panel import NumberBox

SETUP = TrainingSetup(model=GPT2_SMALL, micro_batch_size=8)


@pytest.fixture
def explorer():
    return MemoryExplorer()


def test_the_picture_shows_the_estimate_of_exactly_this_setup(explorer):
    explorer.set(
        model="Llama-2-7B",
        precision="pure bf16",
        micro_batch_size=2,
        seq_len=4096,
        recomputation="full",
    )
    chosen = {"precision": PURE_BF16, "recomputation": "full"}
    setup = TrainingSetup(model=LLAMA_2_7B, micro_batch_size=2, seq_len=4096, **chosen)
    peak = estimate_memory(setup, steps=2).for_step(2).peak_bytes
    assert format_bytes(peak) in explorer.summary
    assert format_bytes(peak) in explorer.shown.chart.alt


# --- bad values ---------------------------------------------------------------------------------------------------


def test_what_the_sequence_s_slider_offers_it_accepts():
    explorer = MemoryExplorer(micro_batch_size=1)
    explorer.panel.controls["model"].value = "GPT-2 small"
    assert explorer.error == ""
    slider = explorer.panel.controls["seq_len"].slider
    assert (slider.max, explorer.state["seq_len"]) == (
        GPT2_SMALL.max_seq_len,
        GPT2_SMALL.max_seq_len,
    )
    slider.value = slider.max
    assert explorer.error == ""


def test_a_bad_value_in_the_one_line_still_gives_a_panel():
    explorer = MemoryExplorer(micro_batch_size="eight")
    assert "micro_batch_size='eight' is not a whole number" in explorer.error
    assert explorer.summary.startswith("Error: micro_batch_size='eight'")
    assert explorer.state["micro_batch_size"] == 1


def test_an_error_of_any_kind_stays_inside():
    class Broken(Explorer):
        controls: ClassVar = {"number": Number("Number", 1, 0, 9)}

        def view(self, number):
            raise ZeroDivisionError("<b>oops</b>")

    panel = Broken()
    assert panel.error == "ZeroDivisionError: <b>oops</b>"
    assert "&lt;b&gt;oops" in panel.panel.alert.value
    assert panel._repr_mimebundle_()[0]["text/plain"] == "Error: ZeroDivisionError: <b>oops</b>."


# --- what the panel says --------------------------------------------------------------------------------------------


def test_what_one_sequence_more_would_add_is_the_estimates():
    explorer = MemoryExplorer(
        model="GPT-2 small", precision="pure bf16", micro_batch_size=8, seq_len=1024
    )
    setup = replace(SETUP, precision=PURE_BF16)
    peaks = [second_step(replace(setup, micro_batch_size=size)).peak_bytes for size in (8, 9)]
    assert format_bytes(peaks[1] - peaks[0]) in " ".join(explorer.shown.more())


# --- the panel ------------------------------------------------------------------------------------------------------


def test_a_slider_and_its_box_follow_each_other():
    number = NumberBox(Number("Sequence", 1024, low=128, high=8192, step=128))
    number.slider.value = 2048
    assert (number.value, number.box.value) == (2048, 2048)
    number.box.value = 100_000  # past the slider's end, and legal
    assert (number.value, number.slider.value) == (100_000, 8192)
    number.value = 0
    assert (number.box.value, number.slider.value) == (0, 128)


def test_one_move_sends_one_picture():
    explorer, sent = MemoryExplorer(), []
    explorer.panel.picture.observe(sent.append, "value")
    explorer.panel.controls["micro_batch_size"].slider.value = 20
    explorer.set(micro_batch_size=21, attention="stored", card="H200")
    assert len(sent) == 2


def test_a_panel_works_without_the_helper_for_keys(monkeypatch):
    assert panel.key_helpers()
    monkeypatch.setitem(sys.modules, "anywidget", None)
    assert not panel.key_helpers()
    assert MemoryExplorer().error == ""


@pytest.mark.parametrize(
    ("batch", "verdict", "sign"),
    [
        (1, "Fits", "✓ "),
        (18, "Tight", "! "),
        (19, "Tight", "! "),
        (64, "Does not fit", "✗ "),
    ],
)
def test_a_tick_is_for_what_fits_at_worst(batch, verdict, sign):
    """What at worst takes more than the card has, and at best less, gets neither tick nor cross."""
    choices = {"model": "GPT-2 small", "precision": "fp32", "seq_len": 1024, "card": "RTX 4090"}
    text = html_places(MemoryExplorer(**choices, micro_batch_size=batch))["verdict"]
    assert f">{sign}{verdict}:" in text and COLOUR[verdict.lower()] in text
    assert sum(text.count(mark) for mark in "✓!✗") == 1
