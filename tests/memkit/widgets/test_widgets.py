"""The explorers without a browser: build, move every control, feed them nonsense. A panel never dies."""

import sys
from dataclasses import replace
from typing import ClassVar

import pytest
from drawn import marks_of

from memkit.formula.estimate import estimate_memory
from memkit.setup.models import GPT2_SMALL, LLAMA_2_7B
from memkit.setup.recipes import PURE_BF16, OptimizerConfig
from memkit.setup.training import TrainingSetup
from memkit.units import format_bytes
from memkit.widgets import in_page
from memkit.widgets.explorer import Explorer, Number
from memkit.widgets.memory_explorer import MemoryExplorer
from memkit.widgets.panel import NumberBox
from stepscope.fitting.advice import CHANGES, advice_in_words, effects_on_setup

SETUP = TrainingSetup(model=GPT2_SMALL, micro_batch_size=8)


@pytest.fixture
def explorer():
    return MemoryExplorer()


def test_the_picture_shows_the_estimate_of_exactly_this_setup(explorer):
    explorer.set(
        model="Llama-2-7B", precision="pure bf16", micro_batch_size=2, seq_len=4096, recomputation="full"
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
    assert (slider.max, explorer.value["seq_len"]) == (GPT2_SMALL.max_seq_len, GPT2_SMALL.max_seq_len)
    slider.value = slider.max
    assert explorer.error == ""


def test_the_setting_before_is_outlined():
    explorer = MemoryExplorer()
    assert not marks_of(explorer.shown.chart, "before")
    explorer.panel.controls["implementation"].value = "fused"
    assert marks_of(explorer.shown.chart, "before")


def test_a_bad_value_in_the_one_line_still_gives_a_panel():
    explorer = MemoryExplorer(micro_batch_size="eight")
    assert "micro_batch_size='eight' is not a whole number" in explorer.error
    assert explorer.summary.startswith("Error: micro_batch_size='eight'")
    assert explorer.value["micro_batch_size"] == 1


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


def test_no_change_is_offered_that_the_setup_refuses():
    """An optimizer that frees each gradient in the backward leaves none to accumulate."""
    setup = replace(SETUP, optimizer=OptimizerConfig(place="in backward"))
    names = [effect.name for effect in effects_on_setup(setup)]
    assert names and not any("accumulated" in name for name in names)


def test_a_change_to_what_has_no_formula_is_left_out():
    """A CPU's flash kernel has no dropout, so that PyTorch runs a composite of its own."""
    setup = replace(SETUP, attention="stored", dropout=0.1, device="cpu")
    with pytest.raises(ValueError, match="no formula"):
        estimate_memory(replace(setup, attention="flash"))
    names = [effect.name for effect in effects_on_setup(setup)]
    assert "full recomputation, which runs each forward twice" in names and "flash attention" not in names


def test_what_helps_is_sorted_and_each_really_helps():
    peak = estimate_memory(SETUP, steps=2).for_step(2).peak_bytes
    helps = effects_on_setup(SETUP)
    assert helps and [e.after_bytes for e in helps] == sorted(e.after_bytes for e in helps)
    assert all(e.after_bytes < peak == e.before_bytes for e in helps)
    assert helps[0].name in advice_in_words(SETUP)[0]


def changed_setups(setup):
    found = {change.name: change.to_setup(setup) for change in CHANGES}
    return {name: changed for name, changed in found.items() if changed is not None}


def test_a_change_keeps_model_and_tokens_of_the_step():
    for setup in (SETUP, replace(SETUP, attention="stored", micro_batch_size=6, grad_accum_steps=3)):
        assert changed_setups(setup)
        for changed in changed_setups(setup).values():
            assert changed != setup and changed.model == setup.model
            tokens = [s.tokens_per_micro_batch * s.grad_accum_steps for s in (setup, changed)]
            assert tokens[0] == tokens[1]


def test_no_advice_is_given_twice():
    for name, changed in changed_setups(SETUP).items():
        assert name not in changed_setups(changed) or "half" in name


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
    assert in_page.key_helpers()
    monkeypatch.setitem(sys.modules, "anywidget", None)
    assert not in_page.key_helpers()
    assert MemoryExplorer().error == ""
