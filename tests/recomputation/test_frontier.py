"""The plane's traced peaks against fresh traces and the formula; the front; the explorer without a browser."""

import itertools
import json

import pytest
from matplotlib.text import Text

from memkit.allocator.workspaces import workspace_bytes
from memkit.pictures.frontier import COLOURS, FrontierPicture
from memkit.program.transformer import strategy_build
from memkit.recomputation.frontier import (
    FILE,
    MODELS,
    TOKENS,
    Point,
    pareto_front,
    peak_at,
    points,
    shown_strategies,
    traced_setup,
)
from memkit.recomputation.peak import predict_peak
from memkit.setup.models import GPT2_LARGE, LLAMA_32_1B
from memkit.setup.strategies import FULL, HOST, NONE, SAVE_EVERY_SECOND
from memkit.tracing.trace import trace_memory
from memkit.widgets.frontier_explorer import CHEAPEST, FrontierExplorer


def test_every_shown_strategy_was_traced():
    traced = json.loads(FILE.read_text(encoding="utf-8"))
    assert tuple(traced["tokens"]) == TOKENS
    for model in MODELS.values():
        assert list(traced["peak_bytes"][model.name]) == [strategy.name for strategy in shown_strategies(model)]


@pytest.mark.parametrize("strategy", [NONE, SAVE_EVERY_SECOND, FULL], ids=lambda strategy: strategy.name)
def test_a_trace_of_today_gives_the_stored_peak(strategy):
    traced = trace_memory(strategy_build(traced_setup(LLAMA_32_1B, 4096), strategy))
    assert peak_at(LLAMA_32_1B, strategy, 4096) == pytest.approx(traced.peak_bytes, rel=1e-3)


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda model: model.name)
@pytest.mark.parametrize("tokens", [512, 8192, 65536])
def test_the_formula_gives_the_traced_peaks(model, tokens):
    for strategy in shown_strategies(model):
        if not strategy.is_reentrant:
            formula = predict_peak(traced_setup(model, tokens), strategy).allocated_bytes - 2 * workspace_bytes((8, 0))
            assert formula == pytest.approx(peak_at(model, strategy, tokens), rel=0.005), strategy.name


def test_between_two_traces_lies_the_straight_line():
    low, high = (peak_at(GPT2_LARGE, NONE, tokens) for tokens in (1024, 2048))
    assert peak_at(GPT2_LARGE, NONE, 1536) == pytest.approx((low + high) / 2, abs=1)


def test_what_was_not_traced_is_refused():
    with pytest.raises(ValueError, match="'offload' was not traced"):
        peak_at(GPT2_LARGE, HOST, 1024)
    with pytest.raises(ValueError, match="tokens=100 is outside the traced 512 to 65536"):
        peak_at(GPT2_LARGE, NONE, 100)


def test_nothing_beats_the_front_and_everything_else_is_beaten():
    found = points(LLAMA_32_1B, 8, 1024)
    front = pareto_front(found)

    def beats(a: Point, b: Point) -> bool:
        return a.overhead <= b.overhead and a.peak_bytes <= b.peak_bytes and a is not b

    place = {id(point): (point.overhead, point.peak_bytes) for point in found}
    assert not any(beats(a, b) for a in found for b in front if place[id(a)] != place[id(b)])
    assert all(any(beats(a, b) for a in front) for b in found if b not in front)


def test_the_explorer_chooses_and_explains():
    panel = FrontierExplorer()
    assert panel.error == ""
    assert panel.summary == panel.shown.words[0]
    panel.set(strategy="full")
    assert panel.summary.startswith("full: peak ")
    assert panel.shown.code == FULL.code and "<pre" in panel.status.value
    panel.set(card="no card", strategy=CHEAPEST)
    assert panel.summary.startswith("none: ")


def test_every_control_moves_without_an_error():
    panel = FrontierExplorer(model="Llama-3.2-1B", micro_batch_size=4)
    start = panel.value
    for name, control in panel.controls.items():
        for option in control.options:
            panel.set(**(start | {"seq_len": 1024, name: option}))
            assert panel.error == "", (name, option)


def test_only_lengths_that_the_model_takes_are_offered():
    panel = FrontierExplorer(seq_len=4096)
    panel.controls["model"].value = "GPT-2 large"
    assert panel.controls["seq_len"].options == (512, 1024)
    assert panel.error == "" and panel.value["seq_len"] == 1024
    panel.set(model="Llama-3-8B", micro_batch_size=16, seq_len=2048)
    assert panel.error == "" and panel.controls["seq_len"].options == (512, 1024, 2048, 4096)


def words_that_collide(plane: FrontierPicture, texts: list[Text]) -> list[str]:
    """Texts that reach into another's box, less half a pixel above and below, and numbers on the middle of a point."""
    shown = [text for text in texts if text.get_visible() and text.get_text()]
    boxes = [text.get_window_extent().padded(0, -0.5) for text in shown]
    points = plane.plane.transData.transform(plane.places)
    return [
        text.get_text()
        for place, (text, box) in enumerate(zip(shown, boxes, strict=True))
        if box.count_overlaps(boxes[place + 1 :])
        or (text in plane.numbers and any(box.contains(*point) for point in points))
    ]


@pytest.mark.parametrize("model", MODELS)
def test_no_words_cover_others_in_any_setting_on_offer(model, monkeypatch):
    image = FrontierPicture().png()
    monkeypatch.setattr(FrontierPicture, "png", lambda picture: image)
    panel = FrontierExplorer(model=model)
    plane, collisions = panel.picture_of_plane, {}
    texts = plane.findobj(Text)
    for batch, card in itertools.product(*(panel.controls[name].options for name in ("micro_batch_size", "card"))):
        panel.set(micro_batch_size=batch, card=card)
        for length in panel.controls["seq_len"].options:
            panel.set(seq_len=length)
            assert panel.value["seq_len"] == length and panel.error == ""
            if found := words_that_collide(plane, texts):
                collisions[batch, card, length] = found
    assert collisions == {}


def test_words_that_collide_are_found():
    plane = FrontierExplorer().picture_of_plane
    plane.numbers[1].set_position(plane.numbers[0].get_position())
    assert words_that_collide(plane, plane.findobj(Text)) == ["1"]


def test_every_strategy_has_a_colour_of_its_own():
    assert len(set(COLOURS)) == len(COLOURS) == 10


def test_a_bad_value_is_explained_and_changes_nothing():
    panel = FrontierExplorer()
    before = panel.value
    panel.set(model="GPT-2 large", seq_len=8192)
    assert "above GPT-2 large's 1024 positions" in panel.error
    assert panel.value == before


def test_a_click_on_a_point_chooses_its_strategy():
    explorer = FrontierExplorer()
    picture = explorer.picture_of_plane
    width, height = picture.bbox.size
    for number, pixel in enumerate(picture.plane.transData.transform(picture.places)):
        explorer.click(pixel[0] / width, 1 - pixel[1] / height)
        assert picture.places[picture.at(pixel[0] / width, 1 - pixel[1] / height)] == picture.places[number]
        chosen = explorer.controls["strategy"].options.index(explorer.value["strategy"]) - 1
        assert picture.places[chosen] == picture.places[number]
    before = explorer.value
    explorer.click(0.99, 0.99)
    assert explorer.value == before
