"""What `make run-notebooks` stores: outputs of one clean run, and nothing that differs from run to run."""

import importlib.util
import re
import xml.etree.ElementTree as ET
from base64 import b64decode
from io import BytesIO

import nbformat
import pytest
from drawn import SVG
from lab_server import ROOT
from nbclient.exceptions import CellExecutionError
from PIL import Image

spec = importlib.util.spec_from_file_location("run_notebooks", ROOT / "dev" / "run_notebooks.py")
run_notebooks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(run_notebooks)


def write(path, *sources):
    notebook = nbformat.v4.new_notebook(
        metadata={"widgets": {}, "vscode": {}, "memkit": {"draft": True}}
    )
    for number, source in enumerate(sources):
        cell = nbformat.v4.new_code_cell(
            source, execution_count=90 + number, metadata={"tags": ["setup"], "x": 1}
        )
        cell["id"] = f"cell-{number}"
        notebook.cells.append(cell)
    nbformat.write(notebook, path)


def test_a_clean_run_is_stored(tmp_path):
    path = tmp_path / "chapter.ipynb"
    write(
        path,
        "print(1)\nprint(2)",
        "from ipywidgets import IntSlider\nIntSlider(description='batch')",
        "6 * 7",
    )
    run_notebooks.run_chapter(path)
    notebook = nbformat.read(path, as_version=4)
    assert [cell.execution_count for cell in notebook.cells] == [1, 2, 3]
    assert [cell.id for cell in notebook.cells] == ["cell-0", "cell-1", "cell-2"]
    assert all(cell.metadata == {"tags": ["setup"]} for cell in notebook.cells)
    assert set(notebook.metadata) == {"kernelspec", "language_info", "memkit"}
    [stream], [slider], [result] = (cell.outputs for cell in notebook.cells)
    assert stream.text == "1\n2\n"
    assert list(slider.data) == ["text/plain"]
    assert result.data == {"text/plain": "42"}


def test_two_runs_store_the_same_file(tmp_path):
    path = tmp_path / "chapter.ipynb"
    write(path, "from ipywidgets import IntSlider\nIntSlider()", "print('same')")
    run_notebooks.run_chapter(path)
    first = path.read_bytes()
    run_notebooks.run_chapter(path)
    assert path.read_bytes() == first


def test_a_chapter_that_fails_is_left_as_it_was(tmp_path):
    path = tmp_path / "chapter.ipynb"
    write(path, "print(1)", "1 / 0")
    before = path.read_bytes()
    with pytest.raises(CellExecutionError, match="division by zero"):
        run_notebooks.run_chapter(path)
    assert path.read_bytes() == before


DRAWS = """import matplotlib.pyplot as plt
plt.style.use("book.book")
_, (left, right) = plt.subplots(1, 2, figsize=(14, 4))
left.plot([1, 3], label="what this line is about, in more words than a phone has room for in a line")
left.set_title("A title of a picture that has more letters than a phone")
left.legend()
right.bar(["one", "two"], [1, 2]);"""
CROWDED = """plt.plot([1])
plt.xticks(range(8), ["crowded"] * 8);"""


def test_a_figure_has_its_svg_and_its_twin_for_a_phone_beside_its_pixels(tmp_path):
    path = tmp_path / "chapter.ipynb"
    write(path, DRAWS, CROWDED)
    run_notebooks.run_chapter(path)
    cells = nbformat.read(path, as_version=4).cells
    [[two], [crowded]] = (cell.outputs for cell in cells)
    assert set(two.data) == {"image/png", "text/plain"}
    assert two.data["text/plain"] == "<Figure size 1540x440 with 2 Axes>"
    assert set(crowded.metadata["image/png"]) == {"svg"}  # on a phone its words would touch
    wide, narrow = (ET.fromstring(two.metadata["image/png"][name]) for name in ("svg", "narrow"))
    pixels = Image.open(BytesIO(b64decode(two.data["image/png"])))
    assert (int(wide.get("width")), int(wide.get("height"))) == pytest.approx(pixels.size, abs=2)
    assert int(narrow.get("width")) < 460 < int(wide.get("width"))
    texts = [text.text for text in narrow.iter(f"{SVG}text")]
    assert "A title of a picture that has" in texts and max(map(len, texts)) <= 42
    for picture in (wide, narrow):
        style, drawn = picture.findtext(f"{SVG}style"), ET.tostring(picture, encoding="unicode")
        assert "--g00:#000000;" in style and "dark){svg{--g00:#ececec;" in style
        assert "--ge0:#e0e0e0;" in style and "--ge0:#303030;" in style  # the grid, as pale on dark
        assert not re.findall("#(?:000000|e0e0e0|ffffff)", drawn.replace(style, ""))
