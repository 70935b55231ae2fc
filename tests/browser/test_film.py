"""The step film as a page plays it: equal to the trace, by keyboard, by pointer, without a kernel, under axe-core."""

import base64
import random
import sys
from pathlib import Path

import pytest
from live_notebook import open_and_run, write_notebook

from memkit.models import TINY_GPT2
from memkit.program.transformer import training_build
from memkit.setup import TrainingSetup
from memkit.tracing.trace import trace_memory
from memkit.units import ALLOCATOR_BLOCK_BYTES
from memkit.widgets.step_film import SCRIPT, StepFilm, place

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]
CELL = """
from memkit import TrainingSetup, models, trace_memory, training_build
from memkit.widgets import StepFilm

StepFilm(trace_memory(training_build(TrainingSetup(model=models.TINY_GPT2, seq_len=32))), title="A film", asks=True)
"""
AXE = Path(sys.prefix) / "npm" / "node_modules" / "axe-core" / "axe.min.js"
RUN_AXE = "async (film) => (await axe.run(film)).violations.map((rule) => [rule.id, rule.nodes[0].failureSummary])"
MOMENTS = """async ([script, data, moments]) => {
    const { Story } = await import(`data:text/javascript;base64,${script}`), story = new Story(data);
    return [story.peak, moments.map((at) => [
        story.heights.map((sizes) => sizes[at]), story.lines[story.line[story.blockAt[at]]], story.when(at),
    ])];
}"""


@pytest.fixture(scope="module")
def traced():
    return trace_memory(training_build(TrainingSetup(model=TINY_GPT2, seq_len=32)))


@pytest.fixture
def opened(browser, traced, tmp_path):
    """The saved film in a page of its own; its errors are in ``broken``."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.broken = []
    page.on("pageerror", lambda error: page.broken.append(str(error)))
    page.goto(StepFilm(traced, title="A film", asks=True).save(tmp_path / "film.html").as_uri())
    page.locator(".memkit-film .hand").wait_for()
    yield page
    page.close()


def moment(page) -> int:
    return int(page.locator(".hand").input_value())


def test_twenty_moments_are_the_trace_s(browser, traced):
    data, events = StepFilm(traced).data, list(traced.events)
    moments = random.Random(1).sample(range(len(events)), 20)
    page = browser.new_page()
    script = base64.b64encode(SCRIPT.read_bytes()).decode()
    peak, told = page.evaluate(MOMENTS, [script, data, moments])
    page.close()
    levels = traced.events.levels(granularity=ALLOCATOR_BLOCK_BYTES)
    assert peak == levels.peak()
    for at, (heights, line, when) in zip(moments, told, strict=True):
        assert heights == [*levels.at(at).values(), 0], (
            "the sixth part is what no part accounts for"
        )
        assert f":{line[1]} " in place(events[at])
        assert events[at].phase == "init" or when.startswith(
            f"step {events[at].step}, {events[at].phase}"
        )


def test_keys_and_the_pointer_move_it(opened):
    hand = opened.locator(".hand")
    hand.focus()
    opened.keyboard.press("Home")
    opened.keyboard.press("ArrowRight")
    assert moment(opened) == 1 and "making the model" in hand.get_attribute("aria-valuetext")
    before = opened.locator(".memkit-film .say").inner_text()
    box = opened.locator("canvas.areas").bounding_box()
    opened.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    middle = int(hand.get_attribute("max")) / 2
    assert abs(moment(opened) - middle) < 0.02 * middle
    assert opened.locator(".memkit-film .say").inner_text() != before
    assert opened.locator(".memkit-film .line.on").count() == 1
    assert opened.url.endswith(f"#event={moment(opened)}")
    assert opened.broken == []


def test_the_peak_is_hidden_until_a_guess_is_made(opened):
    button = opened.get_by_role("button", name="Go to the peak")
    assert not button.is_visible()
    opened.locator(".hand").focus()
    opened.keyboard.press("Home")
    opened.get_by_role("button", name="My guess").click()
    assert "the peak, " in opened.locator(".memkit-film .say").inner_text()
    button.click()
    assert "the peak" in opened.locator(".when").inner_text()


def test_it_plays_to_its_end_and_the_next_press_begins_again(opened):
    opened.locator(".hand").focus()
    last = int(opened.locator(".hand").get_attribute("max"))
    opened.evaluate(f"""() => {{ const hand = document.querySelector(".hand"); hand.value = {last - 20};
        hand.dispatchEvent(new Event("input")); }}""")
    opened.get_by_role("button", name="Play").click()
    opened.wait_for_function(f"document.querySelector('.hand').value == {last}")
    opened.get_by_role("button", name="Play").click()
    opened.wait_for_function(f"document.querySelector('.hand').value < {last // 2}")
    opened.get_by_role("button", name="Pause").click()
    assert opened.broken == []


def test_axe_finds_nothing_in_light_and_dark_and_a_phone_scrolls_down_alone(opened):
    if not AXE.exists():
        pytest.skip(f"{AXE} is missing: `make site` fetches axe-core from npm")
    opened.evaluate(AXE.read_text(encoding="utf-8"))
    for scheme in ("light", "dark"):
        opened.emulate_media(color_scheme=scheme)
        assert opened.locator(".memkit-film").evaluate(RUN_AXE) == []
    opened.set_viewport_size({"width": 390, "height": 800})
    assert opened.evaluate("document.documentElement.scrollWidth") <= 390
    assert 1 == opened.evaluate("""async () => { const film = document.querySelector(".memkit-film"), found = new Set();
        const hand = film.querySelector(".hand"), frame = () => new Promise(requestAnimationFrame);
        for (let move = 0; move < 50; move += 1) { hand.value = move * hand.max / 49;
            hand.dispatchEvent(new Event("input")); await frame(); found.add(film.offsetHeight); }
        return found.size; }""")


def test_where_motion_is_not_wanted_it_goes_from_phase_to_phase(browser, traced, tmp_path):
    film, context = StepFilm(traced), browser.new_context(reduced_motion="reduce")
    page = context.new_page()
    page.goto(film.save(tmp_path / "film.html").as_uri() + "#event=0")
    page.evaluate("""() => { window.seen = []; const hand = document.querySelector(".hand");
        new MutationObserver(() => seen.push(+hand.value)).observe(hand, { attributes: true }); }""")
    page.get_by_role("button", name="Play").click()
    page.wait_for_function("seen.length > 1")
    assert page.evaluate("seen")[:2] == [first - 1 for first, *_ in film.data["spans"][1:3]]
    context.close()


def test_in_jupyterlab_it_moves_without_the_kernel(page, lab):
    write_notebook(lab["folder"] / "film.ipynb", CELL)
    open_and_run(page, lab, "film.ipynb", wait_for=".jp-OutputArea .memkit-film .hand")
    sent = []
    page.on("websocket", lambda socket: socket.on("framesent", sent.append))
    page.locator(".hand").focus()
    page.keyboard.press("Home")
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    assert moment(page) == 5 and page.locator(".memkit-film .line.on").count() == 1
    assert sent == [] and page.broken == []
