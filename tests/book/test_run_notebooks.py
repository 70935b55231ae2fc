"""What `make run-notebooks` stores: outputs of one clean run, and nothing that differs from run to run."""

import importlib.util

import nbformat
import pytest
from lab_server import ROOT
from nbclient.exceptions import CellExecutionError

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
