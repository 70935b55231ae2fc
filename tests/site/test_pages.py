"""The pages of the site against the notebooks that they come from, axe-core, and a reader who has only keys."""

import gzip
import json
import re
from io import BytesIO
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
from answer import OPENING, address_of
from bs4 import BeautifulSoup
from handouts import print_page, print_wall
from notebook_page import DOCUMENTS, letters_of, stem_of
from PIL import Image, ImageColor

from dev.notebooks import family_of, kind_of, notebooks, place_of
from memkit.pictures.colours import OKABE_ITO

pytestmark = [pytest.mark.site, pytest.mark.browser]
NOTEBOOKS = notebooks()
CHAPTERS = [path for path in NOTEBOOKS if not kind_of(path)]
NAMES = ["index", *map(stem_of, NOTEBOOKS), "claims", "questions", "handouts", "404"]
NAMES += ["lessons", *DOCUMENTS.values()]
WIDTHS, SCHEMES = (320, 800, 1280), ("light", "dark")
FOCUSED = """() => { const place = document.activeElement, box = place.getBoundingClientRect();
    const isInView = box.bottom > 0 && box.top < innerHeight;
    return [!!place.closest("main"), getComputedStyle(place).outlineStyle, isInView]; }"""
UNFOLDED = """() => [...document.querySelectorAll("main .cell details:not(:has(.controls))")].map((fold) =>
    [fold.querySelector("summary").textContent.trim(), fold.lastElementChild.checkVisibility(
        { contentVisibilityAuto: true, visibilityProperty: true })])"""
LOOKS = ["color-contrast", "link-in-text-block"]
"""The rules of axe-core that look at colours; what the others read is the same in dark."""
CUT_CODE = """[...document.querySelectorAll(".code pre")].filter((code) => code.scrollWidth > code.clientWidth)
    .map((code) => code.textContent)"""
LOW = """pressed => pressed.map((one) => (one.matches("[type=radio]") ? one.closest("label") : one))
    .filter((one) => one.getBoundingClientRect().height < 44).map(({ outerHTML }) => outerHTML.slice(0, 90))"""
DRAWN = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
"""A frame later the page knows its width and colours: ``book.js`` hears of a resize in the frame itself."""


@pytest.fixture(scope="module")
def soups(site) -> dict[str, BeautifulSoup]:
    return {
        path.name: BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
        for path in site.glob("*.html")
    }


def zipped(path: Path) -> int:
    """Bytes of a file as a server sends it."""
    data = path.read_bytes()
    return len(data) if path.suffix in (".gz", ".png") else len(gzip.compress(data, 6))


def test_there_is_a_page_for_every_chapter_and_it_bears_its_title(soups):
    assert {f"{name}.html" for name in NAMES} == set(soups)
    for path in NOTEBOOKS:
        title = (
            nbformat.read(path, as_version=4).cells[0].source.partition("\n")[0].removeprefix("# ")
        )
        soup = soups[f"{stem_of(path)}.html"]
        assert soup.title.text.startswith(title) and soup.h1.text == title
    for path in CHAPTERS:
        question = soups["lessons.html"].find(id=path.stem).find_all_next("p", limit=2)[1].text[:25]
        assert any(question in cell.source for cell in nbformat.read(path, as_version=4).cells)
    assert {"00"} <= {image["src"][9:11] for image in soups["lessons.html"].select("img")}
    listed = [link["href"] for link in soups["index.html"].select(".listed li > a:first-child")]
    assert listed == [f"{stem_of(path)}.html" for path in CHAPTERS]


@pytest.mark.parametrize("width, most", [(390, 3990), (1280, 2290)])
def test_the_front_page_is_a_fifth_as_tall_as_it_was(width, most, page, address):
    """It was 11,440 pixels at 1,280 and 19,950 at 390, with every question, a panel and two reports in it."""
    page.set_viewport_size({"width": width, "height": 844})
    page.goto(f"{address}index.html")
    page.locator(".stage canvas.areas").wait_for()
    assert page.evaluate("document.documentElement.scrollHeight") <= most


def test_every_link_leads_somewhere(site, soups):
    anchors = {name: {place["id"] for place in soup.select("[id]")} for name, soup in soups.items()}
    dead = []
    for name, soup in soups.items():
        for place in soup.select("[href], [src]"):
            parts = urlsplit(place.get("href") or place["src"])
            if parts.scheme:
                continue
            target = unquote(parts.path) or name
            if (
                not (site / target).is_file()
                or parts.fragment
                and unquote(parts.fragment) not in anchors[target]
            ):
                dead.append(f"{name}: {place.get('href') or place['src']}")
    assert not dead


def test_what_a_search_finds_is_there(site, soups):
    index = json.loads((site / "search.json").read_text(encoding="utf-8"))
    anchors = {name: {place["id"] for place in soup.select("[id]")} for name, soup in soups.items()}
    found = {index["titles"][number][0] for number, *_ in index["entries"]}
    assert found >= set(map(stem_of, NOTEBOOKS))
    for number, anchor, _, _ in index["entries"]:
        assert anchor in anchors[f"{index['titles'][number][0]}.html"]


@pytest.mark.parametrize("path", [path for path in NOTEBOOKS if kind_of(path)], ids=place_of)
def test_a_lesson_and_the_pages_beside_it_lead_to_each_other(path, soups):
    names = {f"{stem_of(member)}.html" for member in family_of(path)}
    for name in names:
        assert names - {name} <= {link["href"] for link in soups[name].select("p.run a")}, name
        assert len(soups[name].select(".contents ul a")) == len(names) - 1, (
            "in the contents too, for this lesson alone"
        )
    page, lesson = soups[f"{stem_of(path)}.html"], f"{path.stem}.html"
    assert page.select_one("a[rel=prev]")["href"] == lesson
    assert page.select_one("a[rel=next]")["href"] == soups[lesson].select_one("a[rel=next]")["href"]
    assert page.select_one(".contents [aria-current]").text == kind_of(path).capitalize()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=place_of)
def test_every_cell_keeps_its_address_and_every_picture_its_words(path, soups):
    soup, cells = soups[f"{stem_of(path)}.html"], nbformat.read(path, as_version=4).cells
    assert [place["id"] for place in soup.select(".cell")] == [
        f"cell-id={cell.id}" for cell in cells
    ]
    for cell in cells:
        place = soup.find(id=f"cell-id={cell.id}")
        if place.select_one(".panel"):
            assert place.select_one(".panel svg[role=img] title").text
            continue
        stored = [
            output.metadata["image/png"]["alt"]
            for output in cell.get("outputs", ())
            if "image/png" in output.get("data", ())
        ]
        assert [image["alt"] for image in place.select(".output img")] == stored
    assert all(image["alt"] for image in soup.select("img"))


def test_formulas_are_mathml_and_none_is_left_in_tex(soups):
    for name, soup in soups.items():
        for place in soup.select("pre, code, script, form"):
            place.extract()
        assert not re.findall(r"\$[^$\n]*\\[a-z]+|\\(?:frac|cdot|le|sum)\b", soup.get_text()), name
    assert sum(len(soup.select("math")) for soup in soups.values()) > 0


def test_bytes_stay_within_their_budgets(site, soups):
    """What a reader waits for: half a megabyte a page, 20 kB a film, 6.5 MB a click on Python; a twentieth above it.

    Of all 31 MB nobody waits for: 8 are Python for browsers, 7 the cards of 342 links, 6 the notebooks, 2 the films, 3
    the pictures, for a desk and for a phone.
    """
    for name, soup in soups.items():
        page = zipped(site / name)
        assert page <= 100_000, name
        first = page + sum(
            zipped(site / file) for file in ("book.css", "book.js", "live.mjs", "live/in_page.mjs")
        )
        first += sum(zipped(site / image["src"]) for image in soup.select("img")[:2])
        assert first <= 500_000, name
    assert zipped(site / "search.json") <= 195_000
    assert max(path.stat().st_size for path in site.glob("films/*.json.gz")) <= 21_000
    front = [
        site / name
        for name in ("index.html", "answer.mjs", "film.mjs", "live.mjs", "book.js", "book.css")
    ]
    assert sum(map(zipped, front)) <= 75_000
    live = site / "live"
    click = [
        *live.glob("pyodide*"),
        live / "python_stdlib.zip.gz",
        live / "memkit.zip.gz",
        site / "worker.mjs",
    ]
    assert sum(map(zipped, click)) <= 6_500_000
    shown = float(soups["index.html"].body["data-live-mb"])
    assert shown == pytest.approx(sum(map(zipped, click)) / 1e6, abs=0.1), (
        "the button says what a click fetches"
    )
    assert sum(file.stat().st_size for file in site.rglob("*") if file.is_file()) <= 32_000_000


@pytest.mark.parametrize("name", NAMES)
def test_axe_finds_nothing_at_three_widths_in_light_and_dark(name, page, address, axe):
    page.goto(f"{address}{name}.html")
    found = {}
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width, (
            "the page itself scrolls sideways"
        )
        cut = page.evaluate(CUT_CODE)
        assert width < 1280 or not cut, cut
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            page.evaluate(DRAWN)
            if violations := axe(page, () if scheme == "light" else LOOKS):
                found[width, scheme] = violations
    assert not found


def colours_of(place) -> dict[tuple, int]:
    """How many pixels of a place have which colour."""
    shot = Image.open(BytesIO(place.screenshot())).convert("RGB")
    return {colour: count for count, colour in shot.getcolors(1 << 20)}


@pytest.mark.parametrize("name", ["03_mixed_precision", "09_one_card"])
def test_a_picture_is_drawn_anew_on_a_dark_page_in_its_own_colours(name, page, address, site):
    """One of matplotlib's, and a chart: no filter, and its ground is the page's own."""
    css = (site / "book.css").read_text(encoding="utf-8")
    grounds = dict(zip(SCHEMES, re.findall(r"--paper: (#\w{3,6});", css), strict=True))
    page.goto(f"{address}{name}.html")
    page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    picture = page.locator(".output:not(.film) .picture img").first
    picture.scroll_into_view_if_needed()
    seen = {}
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        page.wait_for_function("image => image.complete", arg=picture.element_handle())
        page.evaluate(DRAWN)
        assert picture.evaluate("image => getComputedStyle(image).filter") == "none"
        counts = colours_of(picture)
        assert max(counts, key=counts.get) == ImageColor.getrgb(grounds[scheme])
        seen[scheme] = {colour for colour in OKABE_ITO if counts.get(ImageColor.getrgb(colour))}
    assert seen["light"] == seen["dark"] != set()


# a film's still is for a printer alone
NARROW = """() => [...document.querySelectorAll("picture img")]
    .filter((image) => image.clientWidth).map((image) =>
    [image.currentSrc, image.clientWidth, image.naturalWidth, image.closest(".picture").scrollWidth])"""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=place_of)
def test_a_phone_shows_a_picture_of_its_own_that_is_read_without_scrolling(path, page, address):
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{address}{stem_of(path)}.html")
    page.evaluate("""document.querySelectorAll('details, img').forEach((each) => {
        each.open = true;
        each.loading = "eager";
    })""")
    page.wait_for_function("[...document.images].every((image) => image.complete)")
    for source, wide, natural, scrolls in page.evaluate(NARROW):
        assert source.endswith("-narrow.svg") and natural > 0
        svg = page.request.get(source).text()
        units = float(re.search(r'viewBox="0 0 ([\d.]+)', svg)[1])
        assert letters_of(svg) * wide / units >= 11 - 0.2 and scrolls <= 352, source


@pytest.mark.parametrize("width", [1280, 1920])
def test_a_film_and_code_leave_the_column_of_text(width, page, address):
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"{address}01_memory_breakdown.html")
    film = page.locator(".cell .film:has(canvas)").first.bounding_box()
    text = page.locator(".cell.markdown p:visible").nth(3).bounding_box()
    assert film["width"] >= max(940, text["width"] + 200) and film["x"] + film["width"] <= width


def test_a_sheet_has_the_lesson_s_sentences_in_bold(soups):
    for path in CHAPTERS[:14]:
        text = "".join(cell.source + "\n" for cell in nbformat.read(path, as_version=4).cells)
        bold = re.findall(r"^\*\*[^*]+\*\*$", text, re.MULTILINE)
        sheet = soups["handouts.html"].find(id=f"handout-{path.stem[:2]}")
        assert len(sheet.select("li")) >= len(bold) >= 3 and sheet.img["alt"] and sheet.select("tr")


def test_each_chapter_prints_on_one_sheet_and_the_first_on_two(page, address):
    def num_sheets(mark: str) -> int:
        page.goto("about:blank")
        page.goto(f"{address}handouts.html{mark}")
        page.evaluate(
            "document.querySelectorAll('img').forEach((image) => { image.loading = 'eager'; })"
        )
        page.wait_for_load_state("networkidle")
        return len(re.findall(rb"/Type\s*/Page[^s]", page.pdf(prefer_css_page_size=True)))

    assert (num_sheets("#handout-00"), num_sheets("#handout-01")) == (1, 2)
    assert num_sheets("") == 14 + 1
    page.emulate_media(media="print")  # nothing goes on to the right of paper
    said = """() => { const area = document.querySelector('.picture'); area.setAttribute('role', 'group');
        return getComputedStyle(area, '::after').content; }"""
    assert page.evaluate(said) == "none"


def test_make_handouts_prints_a_sheet_and_no_navigation(chromium_path, address, tmp_path):
    """Chromium's own paper is narrower than that of the test above: there the page's small layout counted."""
    print_page(chromium_path, f"{address}handouts.html#handout-09", tmp_path / "09.pdf")
    assert len(re.findall(rb"/Type\s*/Page[^s]", (tmp_path / "09.pdf").read_bytes())) == 1


def test_the_sheet_for_the_wall_is_one_page_of_a3(chromium_path, tmp_path):
    print_wall(chromium_path, tmp_path / "D.pdf")
    printed = (tmp_path / "D.pdf").read_bytes()
    [box] = re.findall(rb"/MediaBox\s*\[0 0 ([\d.]+) ([\d.]+)\]", printed)
    millimetres = [float(points) / 72 * 25.4 for points in box]
    assert millimetres == pytest.approx([420, 297], abs=1)
    assert len(printed) > 500_000  # the picture is in it


def test_a_reader_with_keys_alone_goes_through_a_page(page, address):
    page.goto(f"{address}01_memory_breakdown.html")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the text"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    seen = 0
    controls = page.evaluate(
        "[...document.querySelectorAll('main :is(a[href], button, input, select, summary, [tabindex=\"0\"])')]"
        ".filter((place) => place.checkVisibility() && !place.matches(':disabled')).length"
    )
    for _ in range(controls + 5):
        page.keyboard.press("Tab")
        place = page.evaluate(FOCUSED)
        if not place[0]:
            break
        assert place[1] != "none" and place[2], "what has the focus is framed and in view"
        seen += 1
    radios = (
        page.locator("main [type=radio]").count()
        - page.locator("main form:has([type=radio])").count()
    )
    assert controls > 20, "the page has exercises, panels and links to go through"
    assert seen >= controls - radios - 3, (
        "every control of the text, and then on to what follows it"
    )


def test_the_search_answers_to_keys_and_fetches_its_index_at_the_first_one(page, address):
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{address}index.html")
    assert not any(url.endswith("search.json") for url in asked)
    page.keyboard.press("/")
    page.keyboard.type("C028")
    page.locator(".search li a").first.wait_for()
    assert any(url.endswith("search.json") for url in asked)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url("**/claims.html#C028")
    page.keyboard.press("/")
    page.keyboard.type("8-bit adam")
    page.get_by_text("places").wait_for()
    told = [each.removesuffix(" …") for each in page.locator(".search small").all_inner_texts()]
    texts = [
        entry[3]
        for entry in page.evaluate("fetch('search.json').then((file) => file.json())")["entries"]
    ]
    inside = [each.removeprefix("… ") for each in told if each.startswith("… ")]
    assert len(inside) > 3 and all(any(f" {each}" in text for text in texts) for each in inside)
    assert not any("**Exercise" in text for text in texts)
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type("xqzxqz")
    page.get_by_text("Nothing found.").wait_for()
    page.keyboard.press("Escape")
    assert page.input_value(".search input") == ""


FOUND = {
    "llama 3 8b 4090": "index.html?fit=Llama-3-8B%2FRTX%204090",
    "llama3 8b rtx4090": "index.html?fit=Llama-3-8B%2FRTX%204090",
    "does Mistral-7B fit an A10?": "index.html?fit=Mistral-7B%2FA10",
    "gpt2 xl l40s": "index.html?fit=GPT-2%20XL%2FL40S",
    "qwen3 30b a3b h100 nvl": "index.html?fit=Qwen3-30B-A3B%2FH100%20NVL",
    "llama 70b": "index.html?fit=Llama-2-70B%2F",
    "OOM error fix": "07_",
    "gradient checkpointing": "04_",
    "flash attention memory": "01_",
    "how much vram for 7b": "index.html#does-it-fit-my-card",
    "qlora": "10_",
    "adam optimizer states": "01_",
    "bf16 vs fp16": "03_",
    "gradient accumulation memory": "05_",
    "fragmentation expandable_segments": "07_",
    "fsdp": "11_",
    "zero stage 3": "11_",
    "kv cache": "13_",
    "what is the cuda context": "01_",
    "fp8 training": "06_",
    "logits memory": "01_",
    "loss scaling": "03_",
    "empty_cache": "07_",
    "deepspeed offload": "09_",
    "nvidia-smi vs torch": "07_",
    "unet": "12_",
    "dataloader": "08_",
}
"""What a visitor types, and how the address begins that should be among the first three."""


def test_a_search_ranks_what_has_some_of_the_words_and_answers_for_a_model_and_a_card(
    page, address
):
    page.goto(f"{address}05_gradient_accumulation.html")
    lost, answers = {}, json.loads(page.request.get(f"{address}answers.json").text())["of"]
    for query, wanted in FOUND.items():
        page.fill(".search input", "")
        page.wait_for_function("document.querySelector('.search ul').hidden")
        page.fill(".search input", query)
        page.locator(".search li a").first.wait_for()
        links = page.locator(".search li a")
        found = [link.get_attribute("href") for link in links.all()[:3]]
        if not any(each.startswith(wanted) or f"further-{wanted}" in each for each in found):
            lost[query] = found
        if "%2FRTX" in wanted:
            said = answers["Llama-3-8B"]["RTX 4090"]["said"]
            assert said in links.first.inner_text()
    assert not lost


def test_on_a_phone_the_contents_are_folded_and_open_by_key(page, address):
    page.set_viewport_size({"width": 320, "height": 568})
    page.goto(f"{address}01_memory_breakdown.html")
    assert page.locator("[type=number]").first.bounding_box()["width"] >= 48, (
        "WCAG's 24 pixels twice: four digits"
    )
    assert not page.is_visible(".contents nav")
    page.focus(".contents summary")
    page.keyboard.press("Enter")
    assert page.is_visible(".contents nav a[aria-current=page]")


def test_the_filter_of_claims_keeps_those_of_a_verdict(page, address):
    page.goto(f"{address}claims.html")
    page.select_option("[name=verdict]", "wrong")
    shown = page.locator(".claim:visible")
    assert 0 < shown.count() == page.locator(".claim[data-verdict=wrong]").count()
    page.fill("[name=words]", "no claim has these")
    assert not shown.count() and not page.locator("main h2:visible").count()
    page.fill("[name=words]", "")
    page.select_option("[name=verdict]", "")
    assert page.locator("main h2:visible").count() == page.locator("main h2").count() > 5


def test_a_phone_has_the_page_s_own_contents_and_a_heading_its_address(page, address):
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{address}04_activation_recomputation.html")
    page.locator(".here summary").click()
    page.locator(".here a").nth(2).click()
    heading = page.locator("h2").nth(2)
    assert abs(heading.bounding_box()["y"]) < 120
    heading.locator("a.anchor").click()
    assert unquote(page.url.partition("#")[2]) == heading.get_attribute("id")


def test_on_paper_solutions_and_hints_stay_folded(page, address):
    page.goto(f"{address}01_memory_breakdown.html")
    page.emulate_media(media="print")
    # what a fold hides is known to Chromium a frame after the style is
    kept = ["Hint 1", "Hint 2", "Solution"]
    others = (
        f"kept => ({UNFOLDED})().every(([words, is_shown]) => is_shown || kept.includes(words))"
    )
    page.wait_for_function(others, arg=kept)
    shown = page.evaluate(UNFOLDED)
    assert {words for words, is_shown in shown if not is_shown} == set(kept)
    assert any(is_shown for _, is_shown in shown)


@pytest.mark.parametrize("name", ["index", "07_my_job_died"])
def test_paper_begins_with_the_page_s_title_and_has_its_tables_and_film_whole(name, page, address):
    """A4 within its margins is narrower than the width from which a screen folds the contents."""
    page.set_viewport_size({"width": 703, "height": 1032})
    page.goto(f"{address}{name}.html")
    page.emulate_media(media="print")
    assert not page.locator("header.side").is_visible()
    assert page.locator("h1").bounding_box()["y"] < 60
    wide = "(wide) => wide.map((each) => each.getBoundingClientRect().right).filter((end) => end > innerWidth)"
    assert not page.locator("main table, main canvas").evaluate_all(wide)
    assert page.locator(".stage canvas.areas").is_visible() == (name == "index")


@pytest.mark.parametrize("name", ["07_my_job_died", "09_one_card", "C_formulas_and_names"])
def test_a_phone_shows_a_row_of_words_whole_each_under_its_column_s_name(
    name, page, address, soups
):
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{address}{name}.html")
    tables = page.locator(".stacks:not(details *)")
    for table in tables.all():
        assert table.evaluate("table => table.scrollWidth <= table.clientWidth")
    told = (
        tables.first.locator("tbody tr")
        .first.locator("td, th")
        .evaluate_all("cells => cells.map((cell) => getComputedStyle(cell, '::before').content)")
    )
    [head] = soups[f"{name}.html"].select(".stacks")[0].select("thead tr")
    names = [cell.get_text(strip=True) for cell in head.select("th")]
    assert [re.sub(r'^"|"$', "", each.partition(": ")[0]) for each in told] == names
    page.set_viewport_size({"width": 1280, "height": 844})
    assert tables.first.locator("thead").bounding_box()["x"] > 0


def test_a_thumb_finds_room_on_what_it_presses(pages, address):
    """44 pixels, as Apple and WCAG 2.5.5 ask for; links within text are theirs to be."""
    with pages.browser.new_context(
        viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True
    ) as context:
        page = context.new_page()
        for name in ("index", "01_memory_breakdown", "01_memory_breakdown_exercises", "claims"):
            page.goto(f"{address}{name}.html", wait_until="networkidle")
            pressed = page.locator(
                "main button:visible, main select:visible, summary:visible, main input:visible:not([type=checkbox])"
            )
            low = pressed.evaluate_all(LOW)
            assert not low, name


def test_letters_of_twice_the_size_push_no_menu_over_another(page, address):
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{address}index.html")
    page.add_style_tag(content="html { font-size: 200%; }")
    page.wait_for_function(
        "parseFloat(getComputedStyle(document.querySelector('.said')).fontSize) > 30"
    )
    one, other = (menu.bounding_box() for menu in page.locator(".answer select").all())
    assert other["x"] + other["width"] <= 390
    assert one["x"] + one["width"] <= other["x"] or one["y"] + one["height"] <= other["y"]
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_a_guess_stands_beside_its_answer_and_none_where_none_was_made(page, address):
    page.goto(f"{address}01_memory_breakdown.html")
    told = page.locator("[data-guessed]")
    assert told.count() == 3 and not any(each.is_visible() for each in told.all())
    assert "your guess: none" not in page.content()
    field, choices = page.locator(".guess").nth(0), page.locator(".guess").nth(1)
    field.locator("input").fill("40")
    field.locator("input").press("Enter")
    choices.get_by_label("two per parameter").check()
    assert page.url == f"{address}01_memory_breakdown.html"  # nothing is sent
    shown = [each.inner_text() for each in told.all() if each.is_visible()]
    assert shown == ["your guess: 40", "your guess: two per parameter"]


def test_what_is_shown_with_a_link_is_whole(site, soups):
    for name, soup in soups.items():
        said = soup.select_one("meta[property='og:description']")["content"]
        assert said.rstrip('*)"')[-1] in ".?!:" and 10 < len(said) < 320, (name, said)
    with Image.open(site / address_of(*OPENING).replace(".html", ".png")) as card:
        assert card.size == (1200, 630)
