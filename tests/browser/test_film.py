"""The step film as a page plays it: equal to the trace, by keyboard, by pointer, without a kernel, under axe-core."""

import base64
import random
import re
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from live_notebook import open_and_run, write_notebook

from memkit.models import TINY_GPT2
from memkit.program.transformer import training_build
from memkit.setup import TrainingSetup
from memkit.tracing.trace import trace_memory
from memkit.units import ALLOCATOR_BLOCK_BYTES, format_bytes
from memkit.widgets.step_film import SCRIPT, place
from stepscope.widgets.saved_film import SavedFilm

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
        story.live(at).map((block) => story.part[block]),
    ])];
}"""

ENDS = """async ([script, data, width]) => {
    const { Story } = await import(`data:text/javascript;base64,${script}`);
    return [...new Story(data).ends(width)];
}"""
SENTENCES = """async ([script, data]) => {
    const { Story } = await import(`data:text/javascript;base64,${script}`), story = new Story(data);
    return data.changes.map((_, at) => story.sentence(at));
}"""
WRITTEN = """window.written = [];
const write = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (words, x, y) {
    window.written.push([words, x, y, this.measureText(words).width, parseFloat(this.font)]);
    write.call(this, words, x, y);
};"""
SMALLEST = """() => Math.min(...[...document.querySelectorAll(".memkit-film *")]
    .filter((each) => each.tagName !== "STYLE" && each.textContent.trim())
    .map((each) => parseFloat(getComputedStyle(each).fontSize)))"""


@pytest.fixture(scope="module")
def traced():
    return trace_memory(training_build(TrainingSetup(model=TINY_GPT2, seq_len=32)))


@pytest.fixture
def opened(browser, traced, tmp_path):
    """The saved film in a page of its own; its errors are in ``broken``."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.broken = []
    page.on("pageerror", lambda error: page.broken.append(str(error)))
    page.goto(SavedFilm(traced, title="A film", asks=True).save(tmp_path / "film.html").as_uri())
    page.locator(".memkit-film .hand").wait_for()
    yield page
    page.close()


def moment(page) -> int:
    return int(page.locator(".hand").input_value())


def test_twenty_moments_are_the_trace_s(browser, traced):
    data, events = SavedFilm(traced).data, list(traced.events)
    moments = random.Random(1).sample(range(len(events)), 20)
    page = browser.new_page()
    script = base64.b64encode(SCRIPT.read_bytes()).decode()
    peak, told = page.evaluate(MOMENTS, [script, data, moments])
    page.close()
    levels = traced.events.levels(granularity=ALLOCATOR_BLOCK_BYTES)
    assert peak == levels.peak()
    for at, (heights, line, when, parts) in zip(moments, told, strict=True):
        assert parts == sorted(parts), "on the shelf a part's blocks lie together"
        assert heights == [*levels.at(at).values(), 0], (
            "the sixth part is what no part accounts for"
        )
        assert f":{line[1]} " in place(events[at])
        assert events[at].phase == "init" or when.startswith(
            f"step {events[at].step}, {events[at].phase}"
        )


def test_the_peak_is_wide_enough_to_be_seen(browser, traced):
    """Of a chart as wide as a phone's the events within a fiftieth of the peak take at least six pixels."""
    page, events = browser.new_page(), traced.events
    script = base64.b64encode(SCRIPT.read_bytes()).decode()
    ends = page.evaluate(ENDS, [script, SavedFilm(traced).data, 300])
    page.close()
    totals = events.levels(granularity=ALLOCATOR_BLOCK_BYTES).totals
    high = [at for at, total in enumerate(totals) if total >= 0.98 * max(totals)]
    first = high[0]
    assert first and high == list(range(first, high[-1] + 1)) and len(high) / len(totals) < 6 / 300
    assert ends[high[-1]] - ends[first - 1] >= 6 and ends[-1] == pytest.approx(300)
    assert ends == sorted(ends)


def test_a_moment_is_told_in_words_of_what_is_made(browser, traced):
    """The log-softmax and the logits by the line that makes them; no name of an operation of ATen."""
    page, events, data = browser.new_page(), list(traced.events), SavedFilm(traced).data
    script = base64.b64encode(SCRIPT.read_bytes()).decode()
    said = page.evaluate(SENTENCES, [script, data])
    page.close()
    # of so many logits, in whole blocks of 512 B
    size = f"{-(-32 * TINY_GPT2.vocab_size * 4 // 512) * 512 / 2**20:.2f} MiB"
    logits = [
        words
        for event, words in zip(events, said, strict=True)
        if event.op.startswith("aten.mm") and event.phase == "forward" and event.num_bytes > 0
    ]
    assert set(logits) == {f"{size} are taken for the logits (temporary)."}
    assert f"{size} are taken for the gradient of the logits (temporary)." in said
    for event, words in zip(events, said, strict=True):
        assert ("are taken for" if event.num_bytes > 0 else "are given back: ") in words
        told = ("weights", "gradients", "optimizer_states")
        assert event.part not in told or event.part.split("_")[0].rstrip("s") in words
    assert not re.search(r"\b(empty|addmm|mm|aten|native|foreach)\b", " ".join(said))


@pytest.mark.parametrize("width", [1280, 390])
def test_every_phase_is_named_so_that_it_can_be_read(browser, traced, tmp_path, width):
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.add_init_script(WRITTEN)
    film = SavedFilm(traced)
    page.goto(film.save(tmp_path / "film.html").as_uri())
    page.locator(".memkit-film .hand").wait_for()
    page.wait_for_function("window.written.length > 8")
    written = page.evaluate("window.written")
    spans = [*film.data["spans"], [len(traced.events)]]
    named = Counter(
        span[1] for span, after in pairwise(spans) if after[0] - span[0] > 1 or span[1] != "forward"
    )
    words = Counter(words for words, *_ in written)
    assert all(words[phase] >= count for phase, count in named.items()), (words, named)
    assert all(float(size) >= 11 for *_, size in written)
    _, unit = format_bytes(traced.peak_bytes).split()
    assert any(re.fullmatch(rf"[1-9][\d.]* {unit}", words) for words, *_ in written)
    places = {(words, left, top): wide for words, left, top, wide, _ in written if words in named}
    for (_, left, top), wide in places.items():
        assert left + wide <= width
        assert not any(
            top == other_top and left < other_left < left + wide
            for _, other_left, other_top in places
        )
    if width == 1280:
        assert page.locator(".memkit-film").evaluate("film => film.offsetHeight") <= 560
    small = page.evaluate(SMALLEST)
    page.close()
    assert small >= 11


def test_keys_and_the_pointer_move_it(opened):
    hand = opened.locator(".hand")
    hand.focus()
    opened.keyboard.press("Home")
    opened.keyboard.press("ArrowRight")
    assert moment(opened) == 1 and "making the model" in hand.get_attribute("aria-valuetext")
    before = opened.locator(".memkit-film .say").inner_text()
    box = opened.locator("canvas.areas").bounding_box()
    found = []
    for across in (1, box["width"] / 2, box["width"] - 1):
        opened.mouse.click(box["x"] + across, box["y"] + box["height"] / 2)
        found.append(moment(opened))
    last = int(hand.get_attribute("max"))
    assert found[0] == 0 and found[2] >= last - 2
    # the axis takes 58 pixels, and the peak of the second step some more than its events
    assert abs(found[1] / last - (box["width"] / 2 - 58) / (box["width"] - 58)) < 0.04
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


@pytest.mark.parametrize(
    "width", [390, 640, 880, 1280]
)  # 880: as wide as JupyterLab shows it in a window of 1,280
def test_no_moment_moves_the_handle(opened, width):
    opened.set_viewport_size({"width": width, "height": 800})
    opened.get_by_role("button", name="My guess").click()
    opened.get_by_role("button", name="Go to the peak").click()
    places = opened.evaluate("""async () => { const film = document.querySelector(".memkit-film"), found = [];
        const hand = film.querySelector(".hand"), frame = () => new Promise(requestAnimationFrame);
        for (let move = -1; move < 50; move += 1) { if (move >= 0) hand.value = move * hand.max / 49;
            hand.dispatchEvent(new Event("input")); await frame();
            found.push(hand.getBoundingClientRect().top - film.getBoundingClientRect().top); }
        return found; }""")
    assert len(places) == 51 and len(set(places)) == 1


def test_where_motion_is_not_wanted_it_goes_from_phase_to_phase(browser, traced, tmp_path):
    film, context = SavedFilm(traced), browser.new_context(reduced_motion="reduce")
    page = context.new_page()
    page.goto(film.save(tmp_path / "film.html").as_uri() + "#event=0")
    page.evaluate("""() => { window.seen = []; const hand = document.querySelector(".hand");
        let last = +hand.value;  // it may be drawn once more where it stands
        new MutationObserver(() => { if (+hand.value !== last) seen.push(last = +hand.value); })
            .observe(hand, { attributes: true }); }""")
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


@pytest.mark.parametrize("width", [390, 1280])
def test_a_long_line_breaks_where_code_may(browser, traced, tmp_path, width):
    """Character by character: one that stands lower than the one before it follows a space or a sign."""
    path = tmp_path / "film.html"
    SavedFilm(traced, title="A film").save(path)
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.goto(path.as_uri())
    page.locator(".memkit-film .line").first.wait_for()
    before = page.evaluate(
        """() => {
            const found = [];
            for (const code of document.querySelectorAll(".memkit-film .line > :nth-child(2)")) {
                let last = null;
                const walk = document.createTreeWalker(code, NodeFilter.SHOW_TEXT);
                while (walk.nextNode()) for (let i = 0; i < walk.currentNode.length; i++) {
                    const range = document.createRange();
                    range.setStart(walk.currentNode, i); range.setEnd(walk.currentNode, i + 1);
                    const box = range.getBoundingClientRect();
                    if (last && box.top > last[1] + 5) found.push(last[0]);
                    if (box.width) last = [range.toString(), box.top];
                }
            }
            return found;
        }"""
    )
    page.close()
    assert set(before) <= set(" .,(=_") and (width > 390 or len(before) > 5)
