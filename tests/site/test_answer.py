"""The film of the first page: each file against the formula's whole events, and a visitor's walk against both."""

import gzip
import json
import os
import random
import re
from itertools import accumulate
from math import floor
from urllib.parse import quote

import pytest
from answer import OPENING, WAYS, cards, film_name, limits_of, setups
from PIL import Image

from memkit.cards import CARDS
from memkit.fit import fit_on
from memkit.formula.estimate import estimate_memory
from memkit.units import ALLOCATOR_BLOCK_BYTES, GIB, MIB, format_bytes, round_up
from stepscope.experts import PUBLISHED_MODELS

pytestmark = [pytest.mark.site, pytest.mark.browser]
STEPS = int(os.environ.get("SITE_STATES", "40"))
NAMES = list(WAYS)
MOVES = "model/card/way/way/two at once/back/reload/offline, model/offline, way".split("/")
SETTLED = """document.querySelector(".stage .total")?.textContent
    && !document.querySelector("form.answer").matches(".is-stale, .is-waiting")"""
SEEN = """form => {
    const seen = (place) => !!place && place.checkVisibility({ visibilityProperty: true });
    const text = (name) => form.querySelector(name).textContent.trim(), stage = form.querySelector(".stage");
    return { model: form.model.value, card: form.card.value, isWaiting: form.matches(".is-stale, .is-waiting"),
        way: [...form.querySelectorAll(".ways button")].findIndex((each) => each.ariaPressed === "true"),
        isSeen: seen(stage.querySelector("canvas")) && text(".total") !== "",
        said: text(".said"), asked: text(".asked"), price: text(".price"),
        ways: [...form.querySelectorAll(".ways button")].map((each) =>
            [...each.children].map((part) => part.textContent)),
        total: text(".total"), when: text(".when"), say: text(".say"), link: form.querySelector(".link").href };
}"""


def whole(model: str, way: int) -> list[tuple[int, int, str]]:
    """After each event of the formula: all bytes in whole blocks, those of the event, and when it was in words."""
    events = list(estimate_memory(setups(PUBLISHED_MODELS[model])[way]).events)
    blocks = [round_up(abs(e.num_bytes), ALLOCATOR_BLOCK_BYTES) for e in events]
    sizes = [block if e.num_bytes > 0 else -block for e, block in zip(events, blocks, strict=True)]
    when = [
        "making the model" if e.phase == "init" else f"step {e.step}, {e.phase}" for e in events
    ]
    return list(zip(accumulate(sizes), sizes, when, strict=True))


def first_above(totals, limit: int) -> int | None:
    """Where the bytes first exceed a limit."""
    return next((at for at, total in enumerate(totals) if total > limit), None)


@pytest.mark.parametrize("model", PUBLISHED_MODELS)
def test_every_film_is_the_formula_s_at_its_peak_and_where_each_card_is_full(model, site):
    for way in range(len(WAYS)):
        moments = whole(model, way)
        film = json.loads(gzip.decompress((site / film_name(model, way)).read_bytes()))
        births = [change for change in film["changes"] if change > 0]
        sizes = [change if change > 0 else -births[-change - 1] for change in film["changes"]]
        totals, told = list(accumulate(sizes)), [total for total, *_ in moments]
        peak = estimate_memory(setups(PUBLISHED_MODELS[model])[way]).peak_bytes
        assert max(totals) == max(told) == peak
        for limit in (limit for card in cards() for limit in limits_of(card)):
            at, first = first_above(totals, limit), first_above(told, limit)
            assert (at is None) == (first is None)
            if at is not None:
                total, size, when = moments[first]
                span = [each for each in film["spans"] if each[0] <= at][-1]
                said = "making the model" if span[1] == "init" else f"step {span[2]}, {span[1]}"
                assert (totals[at], sizes[at], said) == (total, size, when), (way, limit)


def words(size: int) -> str:
    """Bytes as the film writes them; a half is rounded up, as JavaScript does."""
    for unit, name in ((1024 * GIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (1024, "KiB")):
        if size >= unit:
            if size / unit < 100:
                return f"{floor(100 * size / unit + 0.5) / 100:.2f} {name}"
            return f"{floor(size / unit + 0.5):,} {name}"
    return f"{size} B"


def is_true(seen: dict) -> list[str]:
    """What a page shows that the formula does not say of the model, card and way that it names."""
    model, card = PUBLISHED_MODELS[seen["model"]], CARDS[seen["card"]]
    peaks = [estimate_memory(job).peak_bytes for job in setups(model)]
    fits = [fit_on(card, peak) for peak in peaks]
    moments = whole(seen["model"], seen["way"])
    full = first_above([total for total, *_ in moments], limits_of(card)[1])
    at = max(range(len(moments)), key=lambda at: moments[at][0]) if full is None else full
    total, size, when = moments[at]
    wanted = {
        "ways": [
            [name, format_bytes(peak, 1), fit.verdict]
            for name, peak, fit in zip(NAMES, peaks, fits, strict=True)
        ],
        "total": words(total),
    }
    found = [
        f"{key}: {seen[key]} and not {value}" for key, value in wanted.items() if seen[key] != value
    ]
    starts = {
        "asked": f"{model.name}, all weights, on one {card.name} ({format_bytes(card.memory_bytes, 1)})",
        "said": fits[0].verdict.capitalize(),
        "price": NAMES[seen["way"]],
        "when": when,
        "say": f"{words(size)} are taken for"
        if full is None
        else f"Out of memory: {words(size)} are asked for",
    }
    found += [
        f"{key}: {seen[key]}, not {start}"
        for key, start in starts.items()
        if not seen[key].startswith(start)
    ]
    if fits[0].verdict == "does not fit" and fits[-1].verdict != "does not fit":
        able = next(at for at, fit in enumerate(fits) if fit.verdict != "does not fit")
        if NAMES[able].removeprefix("+ ") not in seen["said"]:
            found.append(seen["said"])
    return found


@pytest.fixture
def still(page, address):
    """The first page where motion is not wanted: a film stands at its peak, or where the card is full."""
    page.emulate_media(reduced_motion="reduce")
    page.goto(f"{address}index.html")
    page.wait_for_function(SETTLED)
    return page


def test_a_walk_over_models_cards_and_ways_is_never_wrong_and_never_stale(still, address, breaks):
    """Every state is looked at twice: at once, when what is seen is right or is not seen, and when it has settled."""
    page, drawn = still, random.Random("walk")
    form, told = page.locator("form.answer"), {}
    for step in range(STEPS):
        move = drawn.choice(MOVES)
        if move.startswith("offline"):
            breaks(drawn.choice(("answers.json", "films/")))
        if move in ("model", "two at once", "offline, model"):
            form.get_by_label("Model").select_option(drawn.choice(list(PUBLISHED_MODELS)))
        if move in ("card", "two at once"):
            form.get_by_label("Card").select_option(drawn.choice(cards()).name)
        if move in ("way", "offline, way"):
            form.locator(".ways button").nth(drawn.randrange(len(WAYS))).click()
        if move == "back":
            page.goto(f"{address}01_memory_breakdown.html")
            page.go_back()
        if move == "reload":
            page.reload()
        seen = form.evaluate(SEEN) if move not in ("back", "reload") else {"isSeen": False}
        assert not seen["isSeen"] or seen["isWaiting"] or not is_true(seen), (step, move)
        breaks.over()
        page.evaluate("dispatchEvent(new Event('online'))")
        page.wait_for_function(SETTLED)
        seen = form.evaluate(SEEN)
        assert seen["isSeen"] and not is_true(seen), (step, move, seen)
        told[seen["model"], seen["card"], seen["way"]] = seen["total"]
    assert len(told) > STEPS / 3


def test_a_link_opens_the_same_film_and_what_it_names_wrongly_is_said(still, address):
    page, form = still, still.locator("form.answer")
    form.get_by_label("Model").select_option("Qwen3-8B")
    form.get_by_label("Card").select_option("L40S")
    form.locator(".ways button", has_text="LoRA").first.click()
    page.wait_for_function(SETTLED)
    before, link = form.evaluate(SEEN), page.url
    page.goto("about:blank")
    page.goto(link)
    page.wait_for_function(SETTLED)
    assert form.evaluate(SEEN) == before and before["model"] == "Qwen3-8B" and before["way"] == 5
    for way in (NAMES[0], "LoRA"):  # each of the book's own is known
        page.goto(f"{address}index.html?fit=Qwen3-8B%2FL40S&way={quote(way)}")
        page.wait_for_function(SETTLED)
        assert form.locator(".unknown").inner_text() == ""
    page.goto(f"{address}index.html?fit={quote('llama-3-8b/RTX 9999')}&way=magic")
    page.wait_for_function(SETTLED)
    assert form.locator(".unknown").inner_text() == (
        "Not here: RTX 9999, magic, which the link names. Choose below."
    )
    assert form.evaluate(SEEN)["model"] == "Llama-3-8B" and not is_true(form.evaluate(SEEN))


def test_files_that_come_late_and_out_of_turn_are_shown_under_no_other_name_and_once(still):
    """A second model is chosen while the first one's answers come, the first again while the films come."""
    form, held = still.locator("form.answer"), {"answers.json": [], "films/": []}
    still.context.route("**/*answers.json*", lambda route: held["answers.json"].append(route))
    still.context.route("**/*films/*", lambda route: held["films/"].append(route))

    def come(words: str, count: int) -> None:
        while len(held[words]) < count:
            still.wait_for_timeout(20)
        while held[words]:
            held[words].pop(0).continue_()

    for model in ("Mistral-7B", "GPT-2 small"):
        form.get_by_label("Model").select_option(model)
    come("answers.json", 1)
    while len(held["films/"]) < 2:
        still.wait_for_timeout(20)
    form.get_by_label("Model").select_option("Mistral-7B")
    held["films/"].pop(0).continue_()
    still.wait_for_function(SETTLED)
    assert not is_true(form.evaluate(SEEN))
    come("films/", 2)
    form.get_by_label("Model").select_option("Qwen3-8B")
    still.evaluate("dispatchEvent(new Event('online'))")
    while len(held["films/"]) < 2:
        still.wait_for_timeout(20)
    held["films/"].pop(0).continue_()
    still.wait_for_function(SETTLED)
    still.evaluate("document.querySelector('.stage').firstChild.id = 'begun'")
    with still.expect_event("requestfinished"):
        come("films/", 1)
    still.wait_for_timeout(200)
    assert form.locator("#begun").count() == 1 and not is_true(form.evaluate(SEEN))
    still.context.unroute("**/*answers.json*")
    still.context.unroute("**/*films/*")


def test_who_chooses_before_the_script_has_come_is_shown_no_other_card_s_answer(still, address):
    held = []
    still.context.route("**/answer.mjs", lambda route: held.append(route))
    still.goto(f"{address}index.html")
    form = still.locator("form.answer")
    form.get_by_label("Card").select_option("RTX 3080")
    assert not form.locator(".said").is_visible() and not form.locator(".ways").is_visible()
    while not held:
        still.wait_for_timeout(20)
    held.pop().continue_()
    still.context.unroute("**/answer.mjs")
    still.wait_for_function(SETTLED)
    assert "on one RTX 3080" in form.locator(".asked").text_content()
    assert not is_true(form.evaluate(SEEN))


def test_a_script_that_cannot_be_fetched_is_said(still, address):
    still.context.route("**/answer.mjs", lambda route: route.abort())
    still.goto(f"{address}index.html")
    still.get_by_text("The films could not be fetched. Reload the page.").wait_for()
    still.context.unroute("**/answer.mjs")


@pytest.mark.parametrize("broken", ["answers.json", "films/"])
def test_what_cannot_be_fetched_is_not_shown_and_can_be_asked_for_again(broken, still, breaks):
    form = still.locator("form.answer")
    breaks(broken, times=1)
    form.get_by_label("Model").select_option("Mistral-7B")
    form.get_by_text("could not be fetched").wait_for()
    assert not any(
        form.locator(place).is_visible() for place in (".said", ".ways", ".stage", ".price")
    )
    form.get_by_role("button", name="Try again").click()
    still.wait_for_function(SETTLED)
    assert not is_true(form.evaluate(SEEN)) and form.evaluate(SEEN)["model"] == "Mistral-7B"


def test_the_film_moves_after_few_requests_without_python_and_stops_where_the_card_is_full(
    page, address
):
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{address}index.html")
    page.wait_for_function("+document.querySelector('.stage .hand')?.value > 0")
    assert len(asked) <= 10
    assert not any("pyodide" in url or "answers.json" in url for url in asked)
    form = page.locator("form.answer")
    page.get_by_text("Out of memory:").wait_for()
    seen = form.evaluate(SEEN)
    assert (seen["model"], seen["card"], seen["way"]) == (*OPENING, 0) and not is_true(seen)
    assert "optimizer.step()" in form.locator(".line.dies").inner_text()
    assert seen["when"].startswith("step 1, optimizer")
    form.locator(".hand").fill(form.locator(".hand").get_attribute("max"))
    assert f"the {OPENING[1]} was full before" in form.locator(".when").inner_text()
    form.locator(".ways [data-verdict=fits]").first.click()  # one tap, and it comes to its end
    page.get_by_text(": it fits.").wait_for()
    assert NAMES[form.evaluate(SEEN)["way"]] == "+ 8-bit states"


PHASES = {"init", "forward", "backward", "optimizer", "zero_grad"}
WRITTEN = """only => { const write = CanvasRenderingContext2D.prototype.fillText;
    globalThis.written = [];
    CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
        const { a, e, d, f } = this.getTransform(), wide = a * this.measureText(text).width;
        const left = a * x + e - (this.textAlign === "right" ? wide : 0);
        if (!only || this.canvas.width === only) written.push([text, left, left + wide, d * y + f]);
        write.call(this, text, x, y);
    }; }"""


@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_the_first_screen_shows_its_film_whole_and_in_readable_letters(width, page, address):
    height = 844 if width == 390 else 900
    page.set_viewport_size({"width": width, "height": height})
    page.goto(f"{address}index.html")
    page.wait_for_function("+document.querySelector('.stage .hand')?.value > 0")
    chart = page.locator(".stage canvas.areas").bounding_box()
    assert chart["y"] + chart["height"] <= height and chart["x"] + chart["width"] <= width
    assert page.locator(".stage .memkit-film").bounding_box()["width"] >= min(width - 40, 940)
    small = page.evaluate("""Math.min(...[...document.querySelectorAll("form.answer *")]
        .filter((each) => !each.matches("style, option") && each.textContent.trim() && each.checkVisibility())
        .map((each) => parseFloat(getComputedStyle(each).fontSize)))""")
    assert small >= 11
    page.get_by_text("Out of memory:").wait_for()
    page.evaluate(WRITTEN)
    page.emulate_media(color_scheme="dark")  # it is drawn anew
    page.wait_for_function("written.length > 0")
    ends = {text: right for text, _, right, _ in page.evaluate("written")}
    label = next(text for text in ends if text.startswith(OPENING[1]))
    assert ends[label] < ends["out of memory"] + 4 * page.evaluate("devicePixelRatio")


def test_what_stands_on_the_bars_of_lines_can_be_read_on_a_dark_page(still, axe):
    still.emulate_media(color_scheme="dark")
    assert still.locator(".stage .bar span:text('GiB')").count() >= 3
    assert axe(still, ["color-contrast"]) == []


UPRIGHT = """() => { const pen = CanvasRenderingContext2D.prototype, { moveTo, lineTo } = pen;
    globalThis.upright = [];
    pen.moveTo = function (x, y) { this.from = [x, y]; moveTo.call(this, x, y); };
    pen.lineTo = function (x, y) {
        const { a, d } = this.getTransform(), [left, top] = this.from ?? [];
        if (left === x) upright.push([a * x, d * top, d * y]);
        lineTo.call(this, x, y);
    }; }"""
"""Notes the lines that are drawn from above to below."""
TICKS = """() => { const fill = CanvasRenderingContext2D.prototype.fillRect;
    globalThis.ticks = [];
    CanvasRenderingContext2D.prototype.fillRect = function (x, y, wide, tall) {
        const { a, d, e, f } = this.getTransform();
        if (wide === 1) ticks.push([a * x + e, d * y + f, d * (y + tall) + f]);
        fill.call(this, x, y, wide, tall);
    }; }"""
"""Notes the lines a pixel wide: where the phases begin."""


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize(
    "model, card",
    [
        OPENING,
        ("Llama-3-8B", "RTX 4090"),
        ("Llama-3.2-1B", "L4"),
        ("Qwen3-0.6B", "T4"),
        ("GPT-2 small", "T4"),
    ],
)
def test_no_line_of_the_film_goes_through_what_is_written_above_or_below_it(
    model, card, width, still, address
):
    still.set_viewport_size({"width": width, "height": 900})
    still.goto(f"{address}index.html?fit={quote(f'{model}/{card}')}")
    still.wait_for_function(SETTLED)
    still.evaluate(WRITTEN)
    still.evaluate(UPRIGHT)
    still.evaluate(TICKS)
    still.emulate_media(color_scheme="dark")  # it is drawn anew
    still.wait_for_function("written.length > 0")
    names = [each for each in still.evaluate("written") if each[0] in PHASES]
    ticks = still.evaluate("ticks")
    assert len(ticks) >= len(names) >= 3
    assert not [
        text
        for text, left, right, y in names
        for x, top, bottom in ticks
        if left < x < right and top < y - 2 and bottom > y - 8
    ]
    above = [each for each in still.evaluate("written") if "peak" in each[0] or each[0][:2] == "ou"]
    above += [each for each in still.evaluate("written") if card in each[0]]
    lines = still.evaluate("upright")
    assert len(above) >= 2 and len(lines) >= len(above)
    crossed = [
        text
        for text, left, right, y in above
        for x, top, bottom in lines
        if left < x < right and top < y - 2 and bottom > y - 8
    ]
    assert not crossed


@pytest.mark.parametrize(
    "model, card", [("Llama-3-8B", "L40S"), ("GPT-2 small", "T4"), ("Llama-3.1-405B", "B200")]
)
def test_each_answer_has_a_page_and_a_picture(model, card, still, site, axe):
    form = still.locator("form.answer")
    form.get_by_label("Model").select_option(model)
    form.get_by_label("Card").select_option(card)
    still.wait_for_function(SETTLED)
    seen = form.evaluate(SEEN)
    still.goto(seen["link"])
    assert still.locator("main strong").first.inner_text() == seen["said"]
    rows = [row.locator("th, td").all_inner_texts() for row in still.locator("tbody tr").all()]
    assert [[name, peak, verdict] for name, _, _, verdict, peak in rows] == seen["ways"]
    picture = still.locator("meta[property='og:image']").get_attribute("content")
    assert (site / picture).read_bytes().startswith(b"\x89PNG")
    assert axe(still) == []
    still.get_by_text("Its film, another model or card").click()
    still.wait_for_function(SETTLED)
    assert form.evaluate(SEEN) == seen


@pytest.mark.parametrize("card, way", [(OPENING[1], "as most scripts"), ("L40S", "LoRA")])
def test_a_frame_is_saved_as_a_picture_with_whole_sentences(card, way, still):
    """Of a film that stops where the card is full, and of one that shows its peak."""
    form = still.locator("form.answer")
    form.get_by_label("Card").select_option(card)
    form.locator(".ways button", has_text=way).first.click()
    still.wait_for_function(SETTLED)
    still.evaluate(WRITTEN, 1200)
    with still.expect_download() as saved:
        form.get_by_role("button", name="Save this picture").click()
    assert saved.value.suggested_filename == f"{OPENING[0]}-on-{card.replace(' ', '-')}.png"
    with Image.open(saved.value.path()) as image:
        assert image.size == (1200, 630)
        counts = {colour: count for count, colour in image.convert("RGB").getcolors(1 << 20)}
    weights, paper = (0x00, 0x72, 0xB2), (255, 255, 255)
    assert counts[weights] > 20_000 and counts[paper] < 0.9 * 1200 * 630
    written = still.evaluate("written")
    assert all(
        left >= 0 and right <= 1200 and 0 < y <= 630 - 12 for _, left, right, y in written
    ), written
    seen, whole = form.evaluate(SEEN), " ".join(text for text, *_ in written)
    peak = seen["ways"][seen["way"]][1]
    told = f"{way[0].upper()}{way[1:]}: the peak is {peak}."
    for sentence in (f"{OPENING[0]} on one {card}", seen["said"], told, seen["say"]):
        assert sentence in whole


SHARES = """globalThis.shared = [];
navigator.canShare = ({ files }) => files?.length === 1;
navigator.share = async (facts) => {
    const files = facts.files?.map(({ name, type }) => `${name}, ${type}`);
    shared.push(files ? { ...facts, files } : facts);
    if ("%s") throw new DOMException("refused", "%s");
};
navigator.clipboard.writeText = async (text) => { globalThis.copied = text; };"""


@pytest.mark.parametrize("refusal", ["", "AbortError", "NotAllowedError"])
def test_a_phone_shares_this_film_and_where_it_may_not_the_link_is_copied(refusal, page, address):
    """Who closes the phone's own menu (``AbortError``) gets nothing copied."""
    size = {"width": 390, "height": 844}
    phone = page.context.browser.new_context(is_mobile=True, has_touch=True, viewport=size)
    phone.add_init_script(SHARES.replace("%s", refusal))
    page = phone.new_page()
    page.goto(f"{address}index.html?fit={quote('Qwen3-8B/L40S')}&way=LoRA")
    page.wait_for_function(SETTLED)
    form = page.locator("form.answer")
    page.get_by_role("button", name="Share this film").click()
    page.wait_for_function("shared.length === 1")
    said = f"{form.evaluate(SEEN)['said']} LoRA: the peak is {form.evaluate(SEEN)['ways'][5][1]}."
    facts = {"title": "Qwen3-8B on one L40S", "text": said}
    assert page.evaluate("shared.pop()") == facts | {"url": page.url}
    opens = page.url.split("?")[1]
    assert opens == "fit=Qwen3-8B%2FL40S&way=LoRA"
    told = {"NotAllowedError": ("Copied.", page.url)}.get(refusal, ("", None))
    form.locator(".copied", has_text=told[0]).wait_for(state="attached")
    assert (
        form.locator(".copied").inner_text(),
        page.evaluate("globalThis.copied ?? null"),
    ) == told
    if not refusal:
        page.get_by_role("button", name="Save this picture").click()
        page.wait_for_function("shared.length === 1")
        name = "Qwen3-8B-on-L40S.png, image/png"
        assert page.evaluate("shared.pop()") == facts | {"files": [name]}
    phone.close()


@pytest.mark.parametrize(
    "card, ending",
    [("RTX 4090", "GiB: it fits."), ("A100 SXM 40 GB", "may be more than is left.")],
)
def test_a_film_that_comes_to_its_end_says_whether_it_fits(card, ending, still):
    """Of a step that fits one card, and is tight on another."""
    form = still.locator("form.answer")
    model, way = ("Llama-3-8B", "LoRA") if card == "RTX 4090" else ("Llama-2-7B", "+ bf16 weights")
    form.get_by_label("Model").select_option(model)
    form.get_by_label("Card").select_option(card)
    form.locator(".ways button", has_text=way).first.click()
    still.wait_for_function(SETTLED)
    form.locator(".hand").fill(form.locator(".hand").get_attribute("max"))
    peak = estimate_memory(setups(PUBLISHED_MODELS[model])[NAMES.index(way)]).peak_bytes
    said = form.locator(".say").inner_text()
    assert said.startswith(f"The peak, {words(peak)}, is below the {card}'s ") and said.endswith(
        ending
    )
    assert (fit_on(CARDS[card], peak).verdict == "fits") == ("it fits" in said)


@pytest.mark.parametrize("film", ["Qwen3-30B-A3B-5", "Qwen3-30B-A3B-6", "GPT-2-small-3"])
def test_a_film_calls_no_operation_by_a_name_that_only_torch_has(film, still, address):
    still.goto(f"{address}index.html")
    said = still.evaluate(
        """async (film) => {
            const { Story } = await import("./film.mjs"), { fetchPacked } = await import("./live.mjs");
            const story = new Story(await fetchPacked(`films/${film}.json.gz`));
            return [...new Set(story.size.map((_, block) => story.said(block)))];
        }""",
        film,
    )
    assert len(said) > 10
    assert not [
        words for words in said if re.search(r"to copy|grouped|dynamic|4bit|output of layer", words)
    ]
