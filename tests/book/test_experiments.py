"""What the fold-outs of chapters 00, 02, 04 and 07 say of their experiments, computed."""

import json
import re
from pathlib import Path

import numpy as np
import torch

from memkit.allocator.config import AllocatorConfig
from memkit.allocator.film import Film
from memkit.allocator.stories import STORIES
from memkit.fitting.room import fit_on
from memkit.formats import running_sum, sticking_point
from memkit.hardware.cards import CARDS
from memkit.recomputation.frontier import MODELS, pareto_front, points
from memkit.tracing import trace_memory
from memkit.units import MIB, format_bytes
from memkit.widgets.frontier_explorer import cheapest_that_fits

CHAPTERS = Path(__file__).parents[2] / "chapters"


def text_of(chapter: str, cell_id: str) -> str:
    cells = json.loads(next(CHAPTERS.glob(f"{chapter}_*.ipynb")).read_text(encoding="utf-8"))["cells"]
    return next("".join(cell["source"]) for cell in cells if cell["id"] == cell_id)


def own_build(make_optimizer, rows: int):
    """The program of chapter 00, section "Your own model"."""

    def build():
        layers = (torch.nn.Linear(20_000, 20_000), torch.nn.ReLU(), torch.nn.Linear(20_000, 20_000))
        model = torch.nn.Sequential(*layers).to("cuda")
        optimizer = make_optimizer(model.parameters())

        def step():
            model(torch.randn(rows, 20_000, device="cuda")).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return build


def test_sgd_and_a_hundred_times_the_batch():
    sgd = trace_memory(own_build(lambda p: torch.optim.SGD(p, lr=0.1), 64)).for_step(2)
    large = trace_memory(own_build(torch.optim.AdamW, 6400)).for_step(2)
    text = text_of("00", "own-read")
    assert format_bytes(sgd.peak_bytes) in text
    assert format_bytes(large.at("forward").activations) in text
    assert format_bytes(large.peak_bytes) in text and "optimizer" in large.peak.name


def test_what_becomes_of_sums():
    text = text_of("02", "lab-explore")
    low, high = map(float, re.search(r"sums from ([\d.]+) to ([\d.]+)", text).groups())
    ends = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        ends.append(running_sum(0.001, 4096, "bfloat16", method="stochastic", rng=rng)[-1])
    assert (low, high) == (round(float(min(ends)), 2), round(float(max(ends)), 2))
    assert sticking_point(0.002, "bfloat16") == 1 and sticking_point(2**-10, "bfloat16") == 0.25
    assert running_sum(1.0, 4096, "float8_e4m3fn", method="kahan")[-1] == 256


def test_what_the_frontier_explorer_chooses():
    text = text_of("04", "frontier-text").partition("What you should find")[2]
    room = fit_on(CARDS["RTX 4090"], 0).room_bytes
    for length, name in re.findall(r"([\d,]+)(?: tokens)?: \*([^*]+)\*", text):
        found = points(MODELS["Llama-3.2-1B"], 8, int(length.replace(",", "")))
        assert found[cheapest_that_fits(found, room)].strategy.name == name
    assert all(point.peak_bytes > room for point in points(MODELS["Llama-3.2-1B"], 8, 4096))
    on_front = {p.strategy.name for p in pareto_front(points(MODELS["Llama-3.2-1B"], 8, 1024))}
    assert "√L groups" in on_front and not {"attention core", "full, reentrant"} & on_front
    assert "√L groups" not in {p.strategy.name for p in pareto_front(points(MODELS["Llama-3-8B"], 1, 8192))}


def film_of(story: str, expandable: bool, card_mib: int | None = None) -> Film:
    config = AllocatorConfig(expandable_segments=expandable)
    return Film(tuple(STORIES[story]()), config, card_mib and card_mib * MIB)


def smallest_card(story: str, expandable: bool) -> int:
    """The smallest card, in steps of 4 MiB, on which a story does not fail."""
    for card_mib in range(64, 257, 4):
        film = film_of(story, expandable, card_mib)
        if not film.still(len(film)).failure:
            return card_mib
    raise AssertionError(story)


def test_what_the_allocator_lab_shows():
    text = text_of("07", "lab-text").partition("What you should find")[2]
    reserved = re.search(r"2\. (\d+) MiB; (\d+) with", text).groups()
    fails = []
    for option, num_mib in zip((False, True), reserved, strict=True):
        free, small = film_of("a growing sequence", option), film_of("a growing sequence", option, 64)
        assert free.still(len(free)).reserved_bytes == int(num_mib) * MIB
        fails.append(bool(small.still(len(small)).failure))
    assert fails == [False, True]
    sizes = re.search(r"3\. (\d+) MiB; (\d+) with", text).groups()
    assert [smallest_card("a training step", option) for option in (False, True)] == list(map(int, sizes))
