"""The scripts that write the site, part by part: what needs no built site, and runs with every change of one."""

import gzip
import json
import os
import re
import subprocess
import sys
import zipfile
from collections import Counter
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from xml.etree import ElementTree

import answer
import build
import nbformat
import panels
import pytest
from answer import WAYS, cards, in_lines, limits_of, links_of, script_of, setups
from bs4 import BeautifulSoup
from notebook_page import ChapterWriter, Files

from dev.notebooks import CHAPTERS
from memkit.fit import fit_on
from memkit.formula.estimate import estimate_memory
from memkit.models import TINY_GPT2, TINY_LLAMA
from memkit.tracing.trace import trace_memory
from stepscope import job_build
from stepscope.experts import PUBLISHED_MODELS

ROOT = Path(__file__).parents[2]
LESSON = CHAPTERS / "05_gradient_accumulation.ipynb"


def test_a_card_s_two_limits_are_where_the_verdict_changes():
    for card in cards():
        low, high = limits_of(card)
        told = [fit_on(card, size).verdict for size in (low, low + 1, high, high + 1)]
        assert told == ["fits", "tight", "tight", "does not fit"], card.name


@pytest.mark.parametrize("model", [TINY_GPT2, TINY_LLAMA], ids=lambda model: model.name)
def test_a_line_of_the_script_makes_the_bytes_that_the_traced_program_makes_there(model):
    """Of the forward: attention, MLP, the last norm with the head, the loss; of more than one number."""
    for job in setups(model)[:3]:
        job = replace(job, seq_len=64)
        told, traced = Counter(), Counter()
        timeline = in_lines(estimate_memory(job), job)
        for event in timeline.events:
            if event.num_bytes > 4 and event.phase == "forward":
                text = timeline.source_lines[event.where]
                for name in ("attention", "mlp", "self.norm", "cross_entropy"):
                    told[name] += event.num_bytes if name in text else 0
        program = trace_memory(job_build(job))
        for event in program.events:
            if event.num_bytes > 4 and event.phase == "forward":
                text = f"{event.where} {program.source_lines[event.where]}"
                for name, pattern in {
                    "attention": r"Attention\.| rotate |Block.*self\.attention",
                    "mlp": r" MLP\.|Block.*self\.mlp",
                    "self.norm": r"self\.norm\(",
                    "cross_entropy": r"cross_entropy",
                }.items():
                    traced[name] += event.num_bytes if re.search(pattern, text) else 0
        assert min(told.values()) > 0 and told == traced, script_of(job)


def test_a_block_that_no_line_makes_is_refused(monkeypatch):
    job = setups(TINY_GPT2)[0]
    monkeypatch.setattr(answer, "script_of", lambda job: script_of(job)[:-4])
    with pytest.raises(ValueError, match="no line of the script makes 'forward '"):
        in_lines(estimate_memory(job), job)


def test_a_notebook_that_was_run_half_is_refused(tmp_path):
    notebook = nbformat.read(LESSON, as_version=4)
    last = [cell for cell in notebook.cells if cell.cell_type == "code"][-1]
    last.execution_count, last.outputs = None, []
    nbformat.write(notebook, tmp_path / "half.ipynb")
    with pytest.raises(
        ValueError, match=r"half.ipynb: its outputs are not of one clean run; code cell \d+"
    ):
        ChapterWriter(Files(tmp_path, tmp_path), None).page(tmp_path / "half.ipynb")


def test_a_site_whose_address_is_known_names_it_in_every_page_and_lists_them(tmp_path):
    address = "https://somebody.github.io/memkit/"
    for name in ("fit/a-on-b.html", "01_one.html", "404.html"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    build.write_sitemap(tmp_path, address)
    listed = BeautifulSoup((tmp_path / "sitemap.xml").read_text(encoding="utf-8"), "html.parser")
    assert [place.text for place in listed.select("url loc")] == [
        f"{address}01_one.html",
        f"{address}fit/a-on-b.html",
    ]
    links = BeautifulSoup(links_of("01_one.html", "fit/a.png", address), "html.parser")
    assert links.select_one("link[rel=canonical]")["href"] == f"{address}01_one.html"
    assert links.select_one("meta[property='og:image']")["content"] == f"{address}fit/a.png"
    assert build.repository_of(address) == "https://github.com/somebody/memkit"
    assert "canonical" not in links_of("01_one.html", "", "")


def test_a_picture_has_its_size_and_the_width_at_which_its_letters_are_11_pixels(tmp_path):
    """Of a lesson with drawn figures, charts of matplotlib and a film."""
    (tmp_path / "pictures").mkdir()
    page = ChapterWriter(Files(ROOT, tmp_path), panels.Panels(ROOT, tmp_path)).page(LESSON)
    images = BeautifulSoup(page.html, "html.parser").select("img")
    assert len(images) > 4
    for image in images:
        root = ElementTree.parse(tmp_path / image["src"]).getroot()
        _, _, units, tall = map(float, root.get("viewBox").split())
        width, height = int(image["width"]), int(image["height"])
        assert height == pytest.approx(width * tall / units, abs=1)
        styles = (f"{each.get('font-size')}px {each.get('style')}" for each in root.iter())
        sizes = [float(size) for style in styles for size in re.findall(r"([\d.]+)px", style)]
        exponents = {round(0.7 * size, 1) for size in sizes}  # matplotlib's
        least = int(re.fullmatch(r"--least: (\d+)px", image["style"])[1])
        letters = min(size for size in sizes if size not in exponents)
        assert letters * least / units == pytest.approx(11, abs=0.02)


def test_a_picture_without_its_svg_is_refused(tmp_path):
    told = {"image/png": {"alt": "A line that falls."}}
    with pytest.raises(ValueError, match="'A line that falls.'… has no SVG beside its pixels"):
        Files(tmp_path, tmp_path).stored({"metadata": told, "data": {"image/png": ""}})
    with pytest.raises(ValueError, match="one is no SVG with a size"):
        Files(tmp_path, tmp_path).picture("one", "<svg/>", "")


def test_what_a_page_fetches_opens_a_panel_by_itself(tmp_path):
    """The zip alone, with nothing beside Python: ``-S`` hides what is installed."""
    with zipfile.ZipFile(BytesIO(panels.book(ROOT))) as archive:
        archive.extractall(tmp_path / "book")
    script = "import sys; import ahead; ahead.main(*sys.argv[1:])"
    command = [sys.executable, "-S", "-c", script, "BitExplorer", "{}", str(tmp_path / "made.gz")]
    path = os.pathsep.join((str(tmp_path / "book"), str(ROOT / "dev" / "site")))
    subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, cwd=tmp_path, check=True)
    assert json.loads(gzip.decompress((tmp_path / "made.gz").read_bytes()))["moves"]


def test_the_page_on_machines_counts_models_ways_and_cards():
    said = (Path(__file__).parents[2] / "dev" / "MACHINES.md").read_text(encoding="utf-8")
    assert len(WAYS) == 7
    assert (
        f"one of {len(PUBLISHED_MODELS)} models in one of seven ways on one of {len(cards())} cards"
        in said
    )
