"""Run notebooks from top to bottom in a fresh kernel each and store what they print: `make run-notebooks`.

A notebook is written only if every cell ran. Stored: outputs with execution counts 1..n. Left out: the ids of
live widgets (their picture and text stay), times of execution, and the Python version. The run is one on a
CPU, so that the page shows what a reader without a GPU sees. What matplotlib draws has its SVG in the metadata of its
pixels, as a ``Chart`` has (``page_figures``).
"""

import argparse
import os
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

METADATA = {
    "kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)"},
    "language_info": {"name": "python"},
}
LIVE_WIDGET = "application/vnd.jupyter.widget-view+json"
KEPT_CELL_METADATA = {"tags", "jupyter", "memkit"}


def run_chapter(path: Path, seconds: int = 300) -> float:
    """Run the chapter, store its outputs in place, return the seconds it took.

    Raises: nbclient.exceptions.CellExecutionError: a cell failed; the file is left as it was.
    """
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    client = NotebookClient(
        notebook,
        timeout=seconds,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        coalesce_streams=True,
        store_widget_state=False,
        record_timing=False,
        extra_arguments=["--IPKernelApp.extensions=page_figures"],
    )
    start = time.perf_counter()
    path_of_extension = os.pathsep.join(
        [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    )
    client.execute(env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": path_of_extension})
    took = time.perf_counter() - start
    tidy(notebook)
    nbformat.validate(notebook)
    nbformat.write(notebook, path)
    return took


def tidy(notebook: nbformat.NotebookNode) -> None:
    """Remove what differs from run to run, and metadata that no reader needs."""
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    kept = {"memkit": notebook.metadata["memkit"]} if "memkit" in notebook.metadata else {}
    notebook.metadata = nbformat.from_dict(METADATA | kept)
    for cell in notebook.cells:
        cell.metadata = {
            name: value for name, value in cell.metadata.items() if name in KEPT_CELL_METADATA
        }
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(LIVE_WIDGET, None)
            if "alt" in (about := cell.metadata.get("memkit", {})) and "image/png" in output.get(
                "data", {}
            ):
                # what matplotlib draws has no words of its own; the cell's metadata has them, and the site shows them
                output.metadata["image/png"] = {"alt": about["alt"]} | output.metadata.get(
                    "image/png", {}
                )
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("data", True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("chapters", nargs="+", type=Path)
    for path in parser.parse_args().chapters:
        print(f"{path}: {run_chapter(path):.0f} s")


if __name__ == "__main__":
    main()
