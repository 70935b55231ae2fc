"""A chart as text: well-formed, and readable by whom does not see it."""

import io
import random
import sys
import xml.etree.ElementTree as ET

import pytest
from drawn import SVG, labels_of, marks_of, overlap
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from memkit.pictures.bars import rows_figure
from memkit.pictures.colours import LOOKS, OKABE_ITO
from memkit.pictures.svg import Chart, Scale, round_ticks


def test_words_are_escaped_and_the_text_is_well_formed():
    chart = Chart(100, 50, "a < b & c")
    chart.words(5, 5, '<script>"', 9)
    chart.rect(0, 0, 5, 5, ("#000", "///"), tip="<b>", data={"name": '"quoted" & <odd>'})
    chart.alt = "</desc>"
    root = ET.fromstring(chart.svg(stands_alone=True))
    assert root.findtext(f"{SVG}title") == "a < b & c" and root.findtext(f"{SVG}desc") == "</desc>"
    [mark] = marks_of(chart, "name")
    assert mark.data["name"] == '"quoted" & <odd>' and mark.tip == "<b>"
    assert [label.text for label in labels_of(chart)] == ["a < b & c", '<script>"']


def test_ids_of_two_pictures_on_a_page_are_two_and_every_reference_is_kept():
    charts = []
    for width in (10, 20):
        chart = Chart(100, 50, "one")
        chart.rect(0, 0, width, 5, LOOKS["gradients"])
        charts.append(chart)
    ids = []
    for chart in charts:
        root = ET.fromstring(chart.svg())
        own = {element.get("id") for element in root.iter() if element.get("id")}
        fills = {
            element.get("fill")
            for element in root.iter()
            if (element.get("fill") or "").startswith("url")
        }
        assert {fill[5:-1] for fill in fills} <= own and set(
            root.get("aria-labelledby").split()
        ) <= own
        ids.append(own)
    assert not ids[0] & ids[1]


def test_ink_is_the_page_s_own_and_a_file_brings_its_own_in_light_and_dark():
    chart = Chart(100, 50, "one")
    chart.words(5, 30, "word")
    assert "#1a1a1a" not in chart.html() and 'fill="currentColor"' in chart.html()
    assert "prefers-color-scheme:dark" in chart.svg(stands_alone=True)


def test_a_label_takes_the_first_way_that_touches_nothing():
    drawn = random.Random("labels")

    def label() -> tuple[float, float, str]:
        return drawn.uniform(0, 160), drawn.uniform(0, 60), "a" * drawn.randint(1, 9)

    ways = []
    for _ in range(1000):
        standing, own = [label() for _ in range(drawn.randint(1, 3))], label()
        chart, alone = Chart(800, 400), Chart(800, 400)
        for x, y, text in standing:
            chart.words(x, y, text)
        before = labels_of(chart)
        ways.append(chart.place([own], [(600, 300, own[2])]))  # the second place is always free
        alone.words(*own, anchor="middle")
        touches = any(overlap(labels_of(alone)[0], other) for other in before)
        assert not touches if ways[-1] == 0 else labels_of(chart)[-1].box[0] > 300
    assert 200 < sum(ways) < 800


def test_a_twin_in_pixels_is_white_has_the_colours_and_is_the_same_each_time(tmp_path):
    chart = Chart(100, 50, "one")
    chart.rect(20, 30, 40, 15, (OKABE_ITO[0], ""))
    image = Image.open(io.BytesIO(chart.png())).convert("RGB")
    assert image.size == (100, 50) and image.getpixel((1, 49)) == (255, 255, 255)
    assert image.getpixel((40, 37)) == (0, 0x72, 0xB2)
    assert image.convert("L").crop((0, 0, 60, 28)).getextrema()[0] < 90, "the title is not drawn"
    for name in ("first", "second"):
        chart.write_files(tmp_path / name)
    for end in ("svg", "png"):
        assert (tmp_path / f"first.{end}").read_bytes() == (tmp_path / f"second.{end}").read_bytes()


def test_pixels_carry_the_picture_as_text_and_its_twin_for_a_phone():
    """Not as a form of their own: of an SVG an untrusted notebook shows nothing, and no other viewer is asked to."""
    figure = rows_figure({"one": {"a": 1}}, "T")
    bundle, metadata = figure._repr_mimebundle_()
    assert set(bundle) == {"image/png", "text/plain"}
    told = metadata["image/png"]
    assert told["svg"] == figure.svg(stands_alone=True)
    assert told["narrow"] == figure.narrow().svg(stands_alone=True) != told["svg"]
    assert "narrow" not in Chart(100, 50, "one")._repr_mimebundle_()[1]["image/png"]


def test_without_the_rasteriser_a_picture_is_text_and_words(monkeypatch):
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    bundle, metadata = Chart(100, 50, "one")._repr_mimebundle_()
    assert set(bundle) == {"image/svg+xml", "text/plain"} and metadata == {
        "image/svg+xml": {"alt": "one"}
    }


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e9), st.integers(3, 16))
def test_round_ticks_lie_inside_and_are_few(low, span, most):
    ticks = round_ticks(low, low + span, most)
    assert 1 <= len(ticks) <= most
    assert all(low - 1e-6 * span <= tick <= low + span * (1 + 1e-6) for tick in ticks)


@given(st.floats(1, 1e6), st.floats(1, 1e6))
def test_a_logarithmic_scale_keeps_ratios(a, b):
    scale = Scale(low=1, high=1e6, start=0, end=600, is_log=True)
    assert scale(a) + scale(b) == pytest.approx(scale(a * b), abs=1e-6)
