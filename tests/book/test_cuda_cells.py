"""Each cell with a CUDA branch runs on a pretend card, after the cells that it needs: names, flow and asserts hold."""

import json
import re
import warnings
from functools import cache
from pathlib import Path

import pytest
from cells import CHAPTERS, cells_of, home_of, texts_of
from pretend_card import pretend_card

from book.card_cells import after_setup, card_cells, names_before, printed_by
from course.classroom import chapter_budgets
from dev.notebooks import notebooks, place_of
from memkit.fit import CONTEXT_BYTES
from memkit.units import GIB

NUMBERED = [path for path in notebooks() if path.name[0].isdigit()]
IN_CHAPTERS = [pytest.param(path, name[3:], id=name) for name, path in card_cells().items()]
NEEDS_A_CARD = {
    "02-card-measured": "errors of products and casts: values",
    "02-card-sums": "sums: values",
    "03-speed-ratios": "the time of a product",
    "06-speed-cell": "the time of a product",
    "09-offload-pinned": "the time of a copy",
    "11-bandwidth": "the time of a copy",
}
"""Cells that read what only a real card has. ``gpu`` runs them there."""


BEFORE_IT = cache(names_before)


def run_on_pretend_card(
    path: Path, cell_id: str, source: str | None = None, total_bytes: int = 16 * GIB
) -> str:
    """Run a cell on the card, and before it, without one, what it needs; returns what it printed."""
    names = dict(BEFORE_IT(path, cell_id))
    with warnings.catch_warnings(), pretend_card(total_bytes=total_bytes):
        warnings.simplefilter("ignore")
        return printed_by(source or texts_of(path.name[:2])[cell_id], names)


@pytest.mark.parametrize("path, cell_id", IN_CHAPTERS)
def test_a_cell_runs_on_a_pretend_card(path, cell_id, request):
    if request.node.callspec.id in NEEDS_A_CARD:
        pytest.skip(f"needs a real card: {NEEDS_A_CARD[request.node.callspec.id]}")
    run_on_pretend_card(path, cell_id)


def test_the_cells_that_need_a_card_are_there():
    assert set(NEEDS_A_CARD) <= {parameter.id for parameter in IN_CHAPTERS}


@pytest.mark.parametrize(
    "number", ["01", "02", "03", "04", "05", "06", "07", "09", "10", "11", "12", "13"]
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
    "packed, and predicted as padded": (
        "13",
        "card-packed",
        "estimate_memory(job)",
        "estimate_memory(replace(job, micro_batch_size=4, seq_len=512))",
    ),
    "the logits stay": (
        "13",
        "card-packed",
        "        step()\n        predicted",
        '        kept = torch.ones(960, 151_936, device="cuda")\n        step()\n        predicted',
    ),
}
"""What is done wrong, and where. No assert sees FP16 in place of BF16 (03: as many bytes) or a gradient that stays
beside a difference over one forward (03, 04, 06), or what cell and trace share."""


BEFORE = {"card-ways": "kept-on-card"}
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
            exec(compile(source, cell_id, "exec"), dict(after_setup(path)[0]))
        else:
            run_on_pretend_card(path, cell_id, source)


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
