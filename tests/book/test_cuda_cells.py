"""Each cell with a CUDA branch runs on a pretend card, after the cells that it needs: names, flow and asserts hold."""

import ast
import json
import re
import warnings
from functools import cache
from pathlib import Path

import pytest
from cells import CHAPTERS, after_setup, cells_of, home_of, texts_of
from pretend_card import pretend_card

from book.measurements import MEASUREMENTS
from course.classroom import chapter_budgets
from dev.notebooks import notebooks, place_of
from memkit.fit import CONTEXT_BYTES
from memkit.units import GIB

NUMBERED = [path for path in notebooks() if path.name[0].isdigit()]
IN_CHAPTERS = [
    pytest.param(path, cell["id"], id=f"{path.name[:2]}-{cell['id']}")
    for path in NUMBERED
    for cell in cells_of(path)
    if cell["cell_type"] == "code" and "cuda.is_available()" in "".join(cell["source"])
]
NEEDS_A_CARD = {
    "02-card-measured": "errors of products and casts: values",
    "02-card-sums": "sums: values",
    "03-speed-ratios": "the time of a product",
    "06-speed-cell": "the time of a product",
    "09-offload-pinned": "the time of a copy",
}
"""Cells that read what only a real card has. ``gpu`` runs them there."""


def names_in(source: str) -> tuple[set[str], set[str]]:
    """Names that the source defines, and names that it reads."""
    defined, read = set(), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            (defined if isinstance(node.ctx, ast.Store) else read).add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            defined.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            defined |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    return defined, read


def needed_by(path: Path, cell_id: str) -> list[str]:
    """Cells before this one that define what it reads, or what those read, in order; those of the setup left out."""
    before = [cell for cell in cells_of(path) if cell["cell_type"] == "code"]
    ids = [cell["id"] for cell in before]
    texts, order = texts_of(path.name[:2]), []
    defined, read = names_in(texts[cell_id])
    wanted = read - defined - after_setup(path).keys()
    for cell in reversed(before[: ids.index(cell_id)]):
        defined, read = names_in(texts[cell["id"]])
        if "setup" not in cell["metadata"].get("tags", []) and defined & wanted:
            order.insert(0, cell["id"])
            wanted = (wanted - defined) | (read - after_setup(path).keys())
    return order


@cache
def names_before(path: Path, cell_id: str) -> dict:
    """The names of a notebook when it comes to a cell, as far as the cell needs them."""
    names = dict(after_setup(path))
    for needed in needed_by(path, cell_id):
        exec(compile(texts_of(path.name[:2])[needed], needed, "exec"), names)
    return names


def run_on_pretend_card(
    path: Path, cell_id: str, source: str | None = None, total_bytes: int = 16 * GIB
) -> str:
    """Run a cell on the card, and before it, without one, what it needs; returns what it printed."""
    names, printed = dict(names_before(path, cell_id)), []
    names["print"] = lambda *words, sep=" ", **_: printed.append(sep.join(map(str, words)))
    names["display"] = printed.append
    with warnings.catch_warnings(), pretend_card(total_bytes=total_bytes):
        warnings.simplefilter("ignore")
        exec(compile(source or texts_of(path.name[:2])[cell_id], cell_id, "exec"), names)
    return "\n".join(map(str, printed))


@pytest.mark.parametrize("path, cell_id", IN_CHAPTERS)
def test_a_cell_runs_on_a_pretend_card(path, cell_id, request):
    if request.node.callspec.id in NEEDS_A_CARD:
        pytest.skip(f"needs a real card: {NEEDS_A_CARD[request.node.callspec.id]}")
    run_on_pretend_card(path, cell_id)


def test_the_cells_that_need_a_card_are_there():
    assert set(NEEDS_A_CARD) <= {parameter.id for parameter in IN_CHAPTERS}


@pytest.mark.parametrize(
    "number", ["01", "02", "03", "04", "05", "06", "07", "09", "10", "12", "13"]
)
def test_a_chapter_measures_in_its_body_and_shows_a_published_run_without_a_card(number):
    cells = cells_of(next(CHAPTERS.glob(f"{number}_*.ipynb")))
    [cell] = [
        cell
        for cell in cells
        if cell["id"].startswith("card-")
        and cell["id"] != "card-measured"
        and cell["cell_type"] == "code"
    ]
    texts = ["".join(each["source"]) for each in cells]
    ends = (
        at
        for at, text in enumerate(texts)
        if re.search(r"^## Further|^\*\*Further\.\*\*", text, re.MULTILINE)
    )
    assert cells.index(cell) < next(ends, len(cells))  # a lesson's Further is a notebook of its own
    assert (
        "assert " in "".join(cell["source"]) and "nbval-ignore-output" in cell["metadata"]["tags"]
    )
    printed = "".join("".join(output.get("text", "")) for output in cell["outputs"])
    assert any(card in printed for card in ("B200", "H100", "A100", "Measured on a card"))


@pytest.mark.parametrize("path, cell_id", [case for case in IN_CHAPTERS if "-card-" in case.id])
def test_a_cell_fits_on_the_card_that_its_chapter_s_title_names(path, cell_id, request):
    """A class shares its cards by these numbers."""
    if request.node.callspec.id in NEEDS_A_CARD:
        pytest.skip(f"needs a real card: {NEEDS_A_CARD[request.node.callspec.id]}")
    budget = chapter_budgets()[path.name[:2]]
    run_on_pretend_card(path, cell_id, total_bytes=budget + CONTEXT_BYTES)


MISTAKES = {
    "a model of another depth": (
        "10",
        "card-line",
        "estimate_memory(job)",
        "estimate_memory(replace(job, model=replace(job.model, num_layers=27)))",
    ),
    "the weights are in bf16": (
        "01",
        "card-moments",
        '.to("cuda"), batch',
        '.to("cuda").bfloat16(), batch',
    ),
    "another batch": ("01", "card-moments", '.to("cuda"), batch=1', '.to("cuda"), batch=2'),
    "autocast is never on": (
        "03",
        "card-autocast",
        "enabled=precision.uses_autocast",
        "enabled=False",
    ),
    "no recomputation": ("04", "card-ways", "if names is not None:", "if False:"),
    "a list that matches nothing": (
        "04",
        "card-ways",
        '("attention", "addmm")',
        '("attention", "mm")',
    ),
    "one piece for all": ("05", "card-pieces", "micro_batches=micro_batches)", "micro_batches=1)"),
    "half the tokens": ("06", "card-layer", "torch.ones(tokens, ", "torch.ones(tokens // 2, "),
    "cuBLAS's workspaces are counted": (
        "01",
        "card-moments",
        "torch.cuda.max_memory_allocated() - before",
        "torch.cuda.max_memory_allocated()",
    ),
    "a forward and a backward, and no step": (
        "01",
        "card-moments",
        'two_steps(GPT(**HALF).to("cuda"), batch=1, seq=1024)',
        'GPT(**HALF).to("cuda")(*2 * [torch.zeros(1, 1024, dtype=torch.long, device="cuda")])',
    ),
    "a sum without the lost bits": (
        "02",
        "card-sums",
        "corrected = term - lost[0] if lost else term",
        "corrected = term",
    ),
    "another dtype of the total": (
        "02",
        "card-sums",
        "dtype=getattr(torch, of_total)",
        "dtype=torch.float64",
    ),
    "a total more": ("02", "card-sums", '2 * ["bfloat16"]', '3 * ["bfloat16"]'),
    "autocast over weights in bf16": (
        "03",
        "card-autocast",
        'GPT(**GPT2_SMALL).to("cuda")',
        'GPT(**GPT2_SMALL).to("cuda").bfloat16()',
    ),
    "blocks in bf16": ("04", "card-ways", 'heads=8).to("cuda")', 'heads=8).to("cuda").bfloat16()'),
    "a prediction without accumulation": (
        "05",
        "card-pieces",
        "grad_accum_steps=micro_batches",
        "grad_accum_steps=1",
    ),
    "another attention": (
        "07",
        "card-died",
        "training_build(setup_now)",
        'training_build(replace(setup, attention="flash"))',
    ),
    "the first step is measured": (
        "07",
        "card-died",
        "        step()  # cuBLAS's workspaces and the optimizer's states are there now\n",
        "",
    ),
    "the first step, which makes the states": (
        "09",
        "card-steps",
        "        step()  # AdamW's states are there now, and cuBLAS's workspaces, which are no tensor's\n",
        "",
    ),
    "an optimizer without states": (
        "09",
        "card-steps",
        "job_build(way)()",
        'job_build(replace(way, optimizer=OptimizerConfig(record="SGD", implementation="fused")))()',
    ),
    "the logits whole": (
        "09",
        "card-steps",
        "job_build(way)()",
        "job_build(replace(way, loss_pieces=1))()",
    ),
    "every step after the backward": (
        "09",
        "card-steps",
        "job_build(way)()",
        'job_build(replace(way, place="after backward"))()',
    ),
    "the dropout is left out": (
        "10",
        "card-line",
        "estimate_memory(job)",
        "estimate_memory(replace(job, adapter=replace(job.adapter, dropout=0.0)))",
    ),
    "adapters of another dtype": (
        "10",
        "card-line",
        "estimate_memory(job)",
        'estimate_memory(replace(job, adapter=replace(job.adapter, dtype="bfloat16")))',
    ),
    "somebody else's bytes on the card": (
        "10",
        "card-line",
        "        torch.cuda.reset_peak_memory_stats()\n",
        '        other = torch.ones(2**26, device="cuda")\n        torch.cuda.reset_peak_memory_stats()\n',
    ),
    "the piece before is held": (
        "13",
        "card-loss",
        "        step()\n        peak",
        "        held = pieces_build(size)\n        step()\n        peak",
    ),
    "a trace of another size": (
        "13",
        "card-loss",
        "partial(pieces_build, size)",
        "partial(pieces_build, 2048)",
    ),
}
"""What is done wrong, and where. No assert sees FP16 in place of BF16 (03: as many bytes) or a gradient that stays
beside a difference over one forward (03, 04, 06), or what cell and trace share (whether 13's pieces are run
twice)."""


BEFORE = {"card-ways": "kept-on-card", "card-loss": "loss-on-card"}
"""The function that a card's cell calls, in the cell before it."""


@pytest.mark.parametrize("mistake", MISTAKES)
def test_an_assert_of_a_cell_sees(mistake):
    number, cell_id, old, new = MISTAKES[mistake]
    texts = texts_of(number)
    source = "\n\n\n".join(texts[name] for name in (BEFORE.get(cell_id), cell_id) if name)
    assert old in source
    path, source = home_of(number, cell_id), source.replace(old, new)
    with pytest.raises(AssertionError):
        if f"{number}-{cell_id}" in NEEDS_A_CARD:  # its values are a CPU's too
            exec(compile(source, cell_id, "exec"), dict(after_setup(path)))
        else:
            run_on_pretend_card(path, cell_id, source)


RECORD_NEEDS_A_CARD = {
    "bandwidth": "times",
    "card_formats": "values",
    "matmul_rates": "times",
    "fp8_products": "times",
    "context": "other processes",
    "optimizer_steps": "paged memory of bitsandbytes",
}
"""Programs of ``make record`` that read what only a real card has."""


@pytest.mark.parametrize(
    "chapter, name", [key for key in MEASUREMENTS if key[1] not in RECORD_NEEDS_A_CARD]
)
def test_a_program_of_make_record_runs_on_a_pretend_card(chapter, name):
    with warnings.catch_warnings(), pretend_card(total_bytes=79 * GIB):
        warnings.simplefilter("ignore")
        found = MEASUREMENTS[chapter, name]("cuda")
    assert found.numbers
    for key, timeline in found.timelines.items():
        if key.endswith(", measured"):  # by the allocator's snapshot, the first setup as all others
            traced = found.timelines[key.replace(", measured", ", traced")]
            assert abs(timeline.peak_bytes / traced.peak_bytes - 1) < 0.001, key


def test_the_programs_that_need_a_card_are_there():
    assert set(RECORD_NEEDS_A_CARD) < {name for _, name in MEASUREMENTS}


@pytest.mark.parametrize("path", NUMBERED, ids=place_of)
def test_what_prints_a_card_s_own_figures_is_not_compared(path):
    """``make check-notebooks`` passes on a card too; what such a cell says for sure it asserts."""
    for cell in cells_of(path):
        tags = cell["metadata"].get("tags", [])
        if cell["cell_type"] == "markdown" or not cell["outputs"] or "setup" in tags:
            continue
        words = ("give_back()", "capped_card(", "is_available()")
        # that needs a library
        if cell["id"] != "te-cell" and any(word in "".join(cell["source"]) for word in words):
            assert "nbval-ignore-output" in tags, cell["id"]


def small_card_cells() -> list:
    [path] = CHAPTERS.glob("07_*.ipynb")
    code = [cell for cell in cells_of(path) if cell["cell_type"] == "code"]
    return [cell["id"] for cell in code if "with capped_card(" in "".join(cell["source"])]


@pytest.mark.parametrize("cell_id", small_card_cells())
def test_a_cell_with_a_small_card_runs_on_a_pretend_card(cell_id):
    """With a workspace of cuBLAS there already: it is none of the cell's bytes."""
    [path] = CHAPTERS.glob("07_*.ipynb")
    warm_up = (
        'x = torch.ones(8, 8, device="cuda", requires_grad=True)\n(x @ x).sum().backward()\ndel x\n'
    )
    run_on_pretend_card(path, cell_id, warm_up + texts_of("07")[cell_id])


def test_no_chapter_says_that_it_needs_a_card():
    for path in notebooks():
        assert "needs a CUDA card" not in json.dumps(
            json.loads(path.read_text(encoding="utf-8"))["cells"]
        ), path.name
