"""FLOPs of a plain step as torch counts them, and the explorer of the plane without a browser."""

import itertools

import pytest
from drawn import Label, labels_of, marks_of, overlap
from flops_counted import flops_counted_in

from memkit.models import TINY_GPT2
from memkit.pictures.svg import Chart
from memkit.program.transformer import training_build
from memkit.recipes import PURE_BF16
from memkit.recomputation import shown_strategies, step_flops
from memkit.setup import TrainingSetup
from memkit.widgets.frontier_explorer import MODELS, FrontierExplorer


def test_flops_of_a_plain_step_are_what_torch_counts():
    setup = TrainingSetup(model=TINY_GPT2, precision=PURE_BF16, seq_len=64)
    counted, formula = flops_counted_in(training_build(setup)), step_flops(setup)
    assert counted == (formula.forward, formula.total, formula.in_kernel)


def test_only_lengths_that_the_model_takes_are_offered():
    explorer = FrontierExplorer(seq_len=4096)
    explorer.set(model="GPT-2 large")
    assert explorer.offered(explorer.state)["seq_len"] == (512, 1024)
    assert explorer.error == "" and explorer.state["seq_len"] == 1024


def words_that_collide(labels: list[Label]) -> list[tuple[str, str]]:
    """Texts that reach into one another's room."""
    return [(a.text, b.text) for a, b in itertools.combinations(labels, 2) if overlap(a, b)]


@pytest.mark.parametrize("model", MODELS)
def test_no_words_cover_others_in_any_setting_on_offer(model):
    panel, collisions = FrontierExplorer(model=model), {}
    for batch, card in itertools.product(
        *(panel.controls[name].options for name in ("micro_batch_size", "card"))
    ):
        panel.set(micro_batch_size=batch, card=card)
        for length in panel.offered(panel.state)["seq_len"]:
            panel.set(seq_len=length)
            assert panel.state["seq_len"] == length and panel.error == ""
            chart = panel.shown.chart
            if found := words_that_collide(labels_of(chart)):
                collisions[batch, card, length] = found
    assert collisions == {}


def test_words_that_collide_are_found():
    chart = Chart(100, 50)
    chart.words(10, 20, "one")
    chart.words(18, 22, "two")
    assert words_that_collide(labels_of(chart)) == [("one", "two")]


def test_a_click_on_a_point_chooses_its_strategy():
    explorer = FrontierExplorer()
    names = [strategy.name for strategy in shown_strategies(MODELS["Llama-3.2-1B"])]
    for mark in marks_of(explorer.shown.chart, "pick", "bytes"):
        explorer.pick(mark.data["pick"])
        assert explorer.state["strategy"] == names[int(mark.data["pick"])] and explorer.error == ""
        assert explorer.state["strategy"] in mark.tip
