"""``make record``: which cells run, what each needs, what is kept, and what a reader without a card then sees."""

import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pretend_card import pretend_card

from book import card_cells as record
from book.card_cells import after_setup, card_cells
from book.recordings import recorded_output
from dev.notebooks import notebooks
from memkit.units import GIB

NOTEBOOK = {
    "setup": (
        "import json\nfrom no_such_library import (\n    plot, draw)\nplot(1)\nbase = 3",
        ["setup"],
    ),
    "unused": ("raise ValueError('no cell needs this')\nother = 1", []),
    "half": ("def half(x):\n    return x / two", []),
    "two": ("two = 2", []),
    "words": ("print('not now')\nsize = half(base)", []),
    "card-works": ("if torch.cuda.is_available():\n    print(json.dumps(size))", []),
    "card-draws": ("if torch.cuda.is_available():\n    draw(size)", []),
}


@pytest.fixture
def book(tmp_path, monkeypatch):
    """A book of one notebook, whose card cells are looked for; its recordings."""
    cells = [
        {
            "cell_type": "code",
            "id": name,
            "source": f"import torch\n{source}",
            "metadata": {"tags": tags},
        }
        for name, (source, tags) in NOTEBOOK.items()
    ]
    path = tmp_path / "01_book.ipynb"
    path.write_text(json.dumps({"cells": cells}), encoding="utf-8")
    monkeypatch.setattr(record, "CHAPTERS", tmp_path)
    monkeypatch.setattr(record, "give_back", lambda: None)
    monkeypatch.setattr(record, "cap_gpu", lambda: None)
    card_cells.cache_clear()
    yield tmp_path / "kept"
    card_cells.cache_clear()


def test_what_runs_on_a_card_is_kept_and_one_that_fails_does_not_cost_the_others(book, capsys):
    with pretend_card(total_bytes=GIB, name="NVIDIA H200"):
        assert record.main(["--folder", str(book)]) == 1
    printed = capsys.readouterr()
    assert printed.out == "01-card-works\n1.5\n\n", printed.err
    assert printed.err == "01-card-draws: NameError: name 'draw' is not defined\n"
    [kept] = book.iterdir()
    run = json.loads(kept.read_text(encoding="utf-8"))
    assert kept.name == "card_nvidia-h200.json" and run["printed"] == {"01-card-works": "1.5\n"}
    assert run["about"]["torch"] == torch.__version__ and run["about"]["commit"]
    shown = recorded_output("01-card-works", book)
    assert shown.startswith("Recorded: NVIDIA H200, driver ") and shown.endswith(".\n1.5")


def test_a_cell_that_is_named_runs_alone_and_nothing_is_kept(book, capsys):
    with pretend_card(total_bytes=GIB):
        assert record.main(["01-card-works", "--folder", str(book)]) == 0
    assert capsys.readouterr().out == "01-card-works\n1.5\n\n" and not book.exists()
    with pytest.raises(SystemExit):
        record.main(["01-card-moon"])
    assert "no such cell: 01-card-moon; there are 01-card-works" in capsys.readouterr().err


def test_a_name_that_no_missing_library_brings_is_an_error(book):
    path = book.parent / "01_book.ipynb"
    path.write_text(path.read_text().replace("from no_such_library import (\\n    plot, draw)", ""))
    record.code_cells.cache_clear()
    with pytest.raises(NameError, match="plot"):
        after_setup.__wrapped__(path)
    record.code_cells.cache_clear()


def test_the_newest_run_is_shown(tmp_path):
    for number, (card, date) in enumerate(
        [("T4", "2026-12-24"), ("H200", "2027-01-01"), ("L4", "2026-01-02")]
    ):
        about = {"card": card, "driver": "580", "torch": "2.13.0", "date": date}
        run = {"about": about, "printed": {"01-card-moments": f"{number} GiB\n"}}
        (tmp_path / f"card_{card}.json").write_text(json.dumps(run))
    assert (
        recorded_output("01-card-moments", tmp_path)
        == "Recorded: H200, driver 580, torch 2.13.0, 2027-01-01.\n1 GiB"
    )
    assert recorded_output("01-card-ways", tmp_path).startswith(
        "No card's figures are kept here yet."
    )


def test_every_output_that_a_chapter_shows_is_of_the_cell_that_shows_it():
    shown = set()
    for path in notebooks():
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            for name in re.findall(r'recorded_output\("([\w-]+)"\)', "".join(cell["source"])):
                assert name == f"{path.name[:2]}-{cell['id']}"
                shown.add(name)
    assert len(shown) >= 5 and shown <= set(card_cells())


def test_without_a_card_it_says_so_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert record.main([]) == 2
    assert capsys.readouterr() == ("", "make record needs a CUDA card, and torch sees none here.\n")


def test_an_old_torch_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "__version__", "2.10.1+cu128")
    assert record.main([]) == 2
    assert capsys.readouterr().err == "make record needs torch 2.11 or later, not 2.10.1+cu128.\n"


def linked(folder: Path, *wanted: str) -> None:
    """A folder with these installed libraries, and what they require, and nothing else."""
    waiting, seen = list(wanted), set()
    while waiting:
        name = waiting.pop()
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # required on other platforms
        if found.name not in seen:
            seen.add(found.name)
            waiting += [
                re.match(r"[\w.-]+", line)[0]
                for line in found.requires or ()
                if "extra ==" not in line
            ]
            for top in {file.parts[0] for file in found.files} - {"..", "__pycache__"}:
                if not (folder / top).is_symlink():  # a CUDA build's libraries share a folder
                    (folder / top).symlink_to(found.locate_file(top))


WITH_LITTLE = """
import sys
sys.path += sys.argv[1:]
from book.card_cells import card_cells, code_cells, names_before, printed_by
for name, path in card_cells().items():
    if name not in ("01-card-moments", "04-card-ways", "12-card-unet", "09-card-steps"):  # those that take long
        [source] = [cell["source"] for cell in code_cells(path) if cell["id"] == name[3:]]
        printed_by(source, names_before(path, name[3:]))
        print(name)
"""


def test_a_python_that_has_torch_and_little_else_is_enough(tmp_path):
    """``make record WITH=python3`` brings lazy_loader and tqdm where they are missing."""
    root = Path(__file__).parents[2]
    assert "import lazy_loader; import tqdm" in (root / "Makefile").read_text(encoding="utf-8")
    linked(tmp_path, "torch", "numpy", "lazy_loader", "tqdm")
    assert not (tmp_path / "matplotlib").exists()
    command = [sys.executable, "-I", "-S", "-c", WITH_LITTLE, tmp_path, root, root / "chapters"]
    done = subprocess.run(list(map(str, command)), check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout.split()) == len(card_cells()) - 4
