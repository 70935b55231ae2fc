"""The pictures: what is drawn is what the timeline says, the axis stands still, and a blit equals a full draw."""

import io
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.colors import to_rgb
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.text import Text
from matplotlib.transforms import IdentityTransform
from PIL import Image

from memkit.pictures.comparison import compare_figure, timeline_figure
from memkit.pictures.picture import OKABE_ITO, Picture, hatched, mix
from memkit.pictures.stamped_bars import StampedBars
from memkit.pictures.stamped_text import StampedText
from memkit.pictures.timeline import LOOK, TimelinePicture, axis_top, drawn_instants
from memkit.timeline import PARTS, Instant, MemoryTimeline
from memkit.units import GIB, MIB, format_bytes


def step(number: int, scale: int = 1, micro_batches: int = 1) -> list[Instant]:
    """A step of a small model; sizes are made up, each different, so that a mix-up shows."""
    states = 0 if number == 1 else 700 * MIB
    passes = [
        Instant(name=name, weights=300 * MIB, gradients=gradients, optimizer_states=states,
                activations=activations * scale, temporary=temporary, step=number, micro_batch=batch)
        for batch in range(1, micro_batches + 1)
        for name, gradients, activations, temporary in (
            ("forward peak", 0, 900 * MIB, 40 * MIB),
            ("forward", 0, 880 * MIB, 0),
            ("backward peak", 100 * MIB, 800 * MIB, 120 * MIB),
            ("backward", 310 * MIB, 0, 0),
        )
    ]  # fmt: skip
    fixed = {"weights": 300 * MIB, "optimizer_states": 700 * MIB, "activations": 0, "step": number}
    return [
        *passes,
        Instant(name="optimizer peak", gradients=310 * MIB, temporary=250 * MIB, **fixed),
        Instant(name="optimizer", gradients=310 * MIB, temporary=0, **fixed),
        Instant(name="zero_grad", gradients=0, temporary=0, **fixed),
    ]


def timeline(steps: int = 2, source: str = "formula", **choices) -> MemoryTimeline:
    init = Instant(
        name="init", weights=300 * MIB, gradients=0, optimizer_states=0, activations=0, temporary=0
    )
    instants = [init, *(i for number in range(1, steps + 1) for i in step(number, **choices))]
    return MemoryTimeline(instants=tuple(instants), source=source)


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def heights(picture: TimelinePicture, part: str) -> list[float]:
    """Heights of a part's rectangles, as drawn, from left to right."""
    patch = picture.bars[part, False]
    if not patch.get_visible():
        return []
    corners = patch.get_path().vertices.reshape(-1, 5, 2)
    return list(corners[:, 1, 1] - corners[:, 0, 1])


def words_of(picture: Picture) -> str:
    """Every visible text of the figure."""
    texts = [*picture.texts, *(text for axes in picture.axes for text in axes.texts)]
    return " | ".join(text.get_text() for text in texts if text.get_visible())


@pytest.mark.parametrize("part", PARTS)
def test_the_bars_are_as_tall_as_the_parts(part):
    shown = timeline()
    expected = [getattr(i, part) for i in shown.instants if getattr(i, part)]
    assert heights(timeline_figure(shown), part) == expected


def test_bars_stand_on_top_of_one_another():
    picture = timeline_figure(timeline())
    tops = [p.get_path().vertices[:, 1].max() for p in picture.bars.values() if p.get_visible()]
    assert max(tops) == timeline().peak_bytes


def test_what_no_part_accounts_for_is_drawn_and_named():
    known = Instant(name="init", weights=300 * MIB, total_bytes=500 * MIB)
    picture = timeline_figure(MemoryTimeline(instants=(known,), source="measured"))
    assert heights(picture, "not attributed") == [200 * MIB]
    assert "not attributed" in words_of(picture)
    assert "unknown" in words_of(picture)
    assert "not attributed" not in words_of(timeline_figure(timeline()))


def test_every_part_has_a_hatch_or_is_the_only_plain_one_and_every_name_is_written():
    hatches = [hatch for _, hatch in LOOK.values()]
    assert len(set(hatches)) == len(hatches)
    assert len({colour for colour, _ in LOOK.values()}) == len(LOOK)
    words = words_of(timeline_figure(timeline()))
    for name in ("weights", "gradients", "optimizer states", "activations", "temporary", "step 1", "step 2"):
        assert name in words


def test_the_selected_instant_is_written_out():
    shown = timeline()
    words = words_of(timeline_figure(shown, selected=shown.at("backward peak", step=1)))
    assert "peak of backward" in words
    assert format_bytes(800 * MIB) in words
    assert words_of(timeline_figure(shown)).count("Peak of the step") == 1


def test_later_instants_fade():
    shown = timeline()
    picture = timeline_figure(shown, selected=shown.at("forward", step=1), fades_later=True)
    assert len(heights(picture, "weights")) == 3
    assert picture.bars["weights", True].get_visible()


@pytest.mark.parametrize(
    "capacity, is_drawn", [(3 * GIB, True), (80 * GIB, False), (GIB, True), (None, False)]
)
def test_the_card_is_a_line_where_it_is_near_and_words_where_it_is_far(capacity, is_drawn):
    picture = timeline_figure(timeline(), capacity_bytes=capacity, card_name="my card")
    assert picture.card.get_visible() == is_drawn
    assert ("my card" in words_of(picture)) == (capacity is not None)
    if is_drawn:
        assert list(picture.card.get_ydata()) == [capacity, capacity]


@pytest.mark.parametrize("peak", [1, 511, 512, 7 * MIB, GIB - 1, GIB, 80 * GIB, 10**18])
def test_the_axis_fits_and_its_quarters_have_few_digits(peak):
    top = axis_top(peak)
    assert top % 4 == 0 and len(f"{top:b}".rstrip("0")) <= 3
    assert peak * 9 / 8 <= top <= max(peak * 9 / 8 * 5 / 4 + 2, 8)


@pytest.mark.parametrize("scale, top", [(1, "1.75 GiB"), (2, "2.5 GiB"), (4, "5 GiB")])
def test_ticks_say_what_they_stand_for(scale, top):
    picture = timeline_figure(timeline(scale=scale, steps=1))
    ticks = picture.memory.ticks.words
    assert ticks[-1].get_text() == top
    for place, tick in zip(np.linspace(0, picture.plot.get_ylim()[1], 5), ticks, strict=True):
        number, unit = tick.get_text().split()
        assert float(number) * {"B": 1, "MiB": MIB, "GiB": GIB}[unit] == place
        across = picture.plot.transData.transform((0, place))[1]
        assert tick.get_transform().transform(tick.get_position())[1] == pytest.approx(across)


@pytest.mark.parametrize("words", ["peak 12.75 GiB", "512.5\nGiB"])
@pytest.mark.parametrize("va", ["top", "center", "bottom"])
@pytest.mark.parametrize("ha", ["left", "center", "right"])
def test_stamped_text_lands_where_matplotlib_would_put_it(words, va, ha):
    boxes = []
    for kind in (Text, StampedText):
        picture = Picture(2, 1)
        axes = picture.add_axes((0, 0, 1, 1))
        axes.axis("off")
        axes.add_artist(kind(0.5, 0.5, words, va=va, ha=ha, fontsize=9.5, linespacing=1.2))
        rows, columns = np.nonzero((pixels(picture.png()) < 160).all(axis=2))
        boxes.append((rows.min(), rows.max(), columns.min(), columns.max()))
    if "\n" in words and ha != "left":
        boxes = [box[:3] for box in boxes]
    assert boxes[1] == pytest.approx(boxes[0], abs=2)  # versions of matplotlib space lines differently


def test_crowded_timelines_keep_first_and_last_micro_batch_and_then_the_last_step():
    many = timeline(steps=2, micro_batches=8)
    kept = drawn_instants(many)
    assert {i.micro_batch for i in kept} == {1, 8}
    assert {i.step for i in kept} == {2}
    assert len(drawn_instants(timeline())) == len(timeline().instants)


def test_the_background_is_kept_when_the_axis_grows_and_not_when_the_bars_change():
    picture = TimelinePicture()
    picture.redraw(timeline()).png()
    background = picture.background
    assert picture.redraw(timeline(scale=4), capacity_bytes=8 * GIB, title="other").background is background
    assert picture.redraw(timeline(steps=1)).background is None


@pytest.mark.parametrize("scale", [1, 2, 8])
def test_a_blit_equals_a_full_draw(scale):
    moved, fresh = TimelinePicture(), TimelinePicture()
    moved.redraw(timeline(scale=2), capacity_bytes=3 * GIB).png()
    background = moved.background
    for picture in (moved, fresh):
        picture.redraw(
            timeline(scale=scale), selected=timeline(scale=scale).instants[3], capacity_bytes=3 * GIB
        )
    assert moved.background is background
    assert np.array_equal(pixels(moved.png()), pixels(fresh.png()))


def test_a_picture_differs_where_the_timeline_differs():
    picture = TimelinePicture()
    first = pixels(picture.redraw(timeline(), capacity_bytes=3 * GIB).png())
    second = pixels(picture.redraw(timeline(scale=2).for_step(2), capacity_bytes=3 * GIB).png())
    assert first.shape == second.shape == (430, 800, 3)
    assert (first != second).any()


def test_paper_is_white_and_colours_are_the_books():
    image = pixels(timeline_figure(timeline()).png())
    assert tuple(image[0, 0]) == (255, 255, 255)
    colours = {tuple(colour) for colour in np.unique(image.reshape(-1, 3), axis=0)}
    for colour, _ in list(LOOK.values())[:5]:
        assert tuple(round(255 * channel) for channel in to_rgb(colour)) in colours


def test_mixes_reach_from_white_to_the_colour():
    assert mix(OKABE_ITO[0], 0) == (1, 1, 1)
    assert mix(OKABE_ITO[0], 1) == pytest.approx(to_rgb(OKABE_ITO[0]))


def test_no_text_leaves_the_picture_and_no_name_below_the_axis_overlaps_another():
    for picture in (
        timeline_figure(timeline(), capacity_bytes=3 * GIB, card_name="A100 SXM 80 GB"),
        timeline_figure(timeline(micro_batches=4).for_step(2), title="Llama-3.1-405B, 405.9 B parameters"),
        compare_figure(timeline(), timeline(source="traced"), timeline(source="measured")),
    ):
        picture.png()
        texts = [*picture.texts, *(text for axes in picture.axes for text in axes.texts)]
        boxes = [(t, t.get_window_extent()) for t in texts if t.get_visible() and t.get_text()]
        for text, box in boxes:
            assert box.x0 >= 0 and box.y0 >= 0, text
            assert box.x1 <= picture.bbox.width and box.y1 <= picture.bbox.height, text
        below = [(t, b) for t, b in boxes if t in getattr(picture, "names", [])]
        for number, (text, box) in enumerate(below):
            for other, other_box in below[:number]:
                assert not box.overlaps(other_box), (text, other)


def test_compare_has_one_bar_for_each_source_and_the_ratio_above():
    ours = timeline(steps=1, source="formula")
    theirs = timeline(steps=1, source="measured", scale=2)
    words = words_of(compare_figure(ours, timeline(steps=1, source="traced"), theirs))
    assert all(source in words for source in ("formula", "traced", "measured"))
    ratio = ours.at("forward").total_bytes / theirs.at("forward").total_bytes
    assert f"{ratio:.2f}×" in words


def test_compare_refuses_what_has_nothing_in_common():
    one = MemoryTimeline(instants=(timeline().at("init"),), source="formula")
    other = MemoryTimeline(instants=(timeline().at("forward"),), source="measured")
    with pytest.raises(ValueError, match="instant in common"):
        compare_figure(one, other)
    with pytest.raises(ValueError, match="got 0"):
        compare_figure()


def test_files_for_pages_are_whole_white_and_the_same_each_time(tmp_path):
    for name in ("first", "second"):
        timeline_figure(timeline()).write_files(tmp_path / name)
    svg = (tmp_path / "first.svg").read_bytes()
    assert svg == (tmp_path / "second.svg").read_bytes()
    assert (tmp_path / "first.png").read_bytes() == (tmp_path / "second.png").read_bytes()
    image = Image.open(tmp_path / "first.png").convert("RGB")
    assert image.size == (1600, 860) and image.getpixel((0, 0)) == (255, 255, 255)
    written = timeline_figure(timeline())
    assert all(not text.get_clip_on() for text in written.findobj(StampedText)), "cut off in the SVG"


def test_a_notebook_shows_a_picture_with_its_words():
    data, metadata = timeline_figure(timeline(), title="My step")._repr_mimebundle_()
    assert data["text/plain"] == metadata["image/png"]["alt"]
    assert data["text/plain"].startswith("My step (formula, CUDA's rules): stacked bars for 15 instants.")


def test_drawing_needs_neither_pyplot_nor_torch():
    program = "import memkit.pictures.comparison, sys; print({'torch', 'matplotlib.pyplot'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("hatch", ["///", "...", "xxx"])
@pytest.mark.parametrize("height", [300, 437])
def test_stamped_bars_are_filled_as_matplotlib_fills_them(hatch, height):
    drawn = []
    corners = [(20, 30), (20, 250), (180, 250), (180, 30), (20, 30)]
    for kind in (PathPatch, StampedBars):
        renderer, figure = RendererAgg(200, height, 100), Picture(2.0, height / 100)
        patch = hatched(kind, Path(corners, closed=True), facecolor="#0072B2", hatch=hatch, linewidth=0, clip_on=False)
        figure.add_artist(patch).set_transform(IdentityTransform())
        patch.draw(renderer)
        drawn.append(np.asarray(renderer.buffer_rgba()).copy())
    np.testing.assert_array_equal(*drawn)
    assert len(np.unique(drawn[0].reshape(-1, 4), axis=0)) > 3, "paper, colour, hatch and what lies between"
