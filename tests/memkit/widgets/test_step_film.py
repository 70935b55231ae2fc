"""The step film's data against the timeline that it is made of; tests/browser/test_film.py plays it."""

import json
import random
import re

import pytest
import torch

from memkit.formula.estimate import estimate_memory
from memkit.models import TINY_GPT2
from memkit.program.transformer import training_build
from memkit.setup import TrainingSetup
from memkit.timeline import Event, Instant, MemoryTimeline
from memkit.tracing.trace import trace_memory
from memkit.widgets.step_film import FILM, StepFilm

SETUP = TrainingSetup(model=TINY_GPT2, seq_len=32)


@pytest.fixture(scope="module")
def traced() -> MemoryTimeline:
    return trace_memory(training_build(SETUP))


def totals_of(data: dict) -> list[int]:
    """Bytes after each event, as the script reads the data."""
    sizes, total, totals = [], 0, []
    for change in data["changes"]:
        if change > 0:
            sizes.append(change)
        total += change if change > 0 else -sizes[-change - 1]
        totals.append(total)
    return totals


def test_the_data_have_the_instants_of_the_timeline(traced):
    data = StepFilm(traced).data
    totals = totals_of(data)
    assert max(totals) == traced.peak_bytes and totals[-1] == traced.instants[-1].total_bytes
    first_of_step_2 = next(first for first, _, step, _ in data["spans"] if step == 2)
    assert totals[first_of_step_2 - 1] == traced.at("zero_grad", step=1).total_bytes


def test_the_peak_is_in_the_step_whose_blocks_take_most_not_whose_requests_are_largest():
    first = [Event(0, size, "temporary", "forward") for size in (1000, -1000)]
    second = [Event(block, 300, "temporary", "forward", step=2) for block in (1, 2, 3)]
    highest = Instant(name="forward peak", total_bytes=3 * 512, step=2)
    timeline = MemoryTimeline(instants=(highest,), source="traced", events=first + second)
    assert repr(StepFilm(timeline)).endswith("peak 1.50 KiB in the forward of step 2 of 2.")


def test_every_block_has_its_part_its_line_and_its_operation(traced):
    data, births = StepFilm(traced).data, [event for event in traced.events if event.num_bytes > 0]
    for number in random.Random(0).sample(range(len(births)), 40):
        event, line = births[number], data["lines"][data["line"][number]]
        assert data["parts"][data["part"][number]][0] == event.part.replace("_", " ")
        assert f":{line[1]} " in event.where and line[0].split(" ")[0] in event.where
        assert data["ops"][data["op"][number]].replace(" ", "_") in event.op


def test_a_line_stands_as_it_is_written(traced):
    texts = [text.strip() for _, _, text in StepFilm(traced).data["lines"]]
    assert "loss.backward()" in texts and "optimizer.step()" in texts


def test_a_program_of_the_reader_s_own_shows_its_own_lines():
    def build():
        layer = torch.nn.Linear(8, 8, device="cuda")

        def step():
            layer(torch.ones(4, 8, device="cuda")).sum().backward()

        return step

    lines = StepFilm(trace_memory(build)).data["lines"]
    assert ("step · test_step_film.py", True) in [
        (name, "sum().backward()" in text) for name, _, text in lines
    ]


def test_a_formula_s_film_has_modules_for_lines():
    texts = [text for _, _, text in StepFilm(estimate_memory(SETUP)).data["lines"]]
    assert "blocks.*.mlp" in texts and len(texts) == len(set(texts))


def test_what_a_notebook_stores_is_the_film_s_data_a_picture_and_words(traced):
    film = StepFilm(traced, title="Mine")
    bundle, metadata = film._repr_mimebundle_()
    assert json.loads(bundle[FILM]) == json.loads(json.dumps(film.data))
    assert (
        bundle["text/plain"].startswith("Mine: ")
        and "image/png" in bundle
        and metadata["image/png"]["alt"]
    )


def test_a_timeline_without_events_is_refused():
    bare = MemoryTimeline(instants=(Instant(name="end", total_bytes=0),), source="measured")
    with pytest.raises(ValueError, match="this measured timeline has no events"):
        StepFilm(bare)


def test_a_film_that_asks_keeps_its_answer_to_itself(traced):
    """Neither its words nor its still picture say where the peak is; of the step only the forward is drawn."""
    told, asks = StepFilm(traced, title="T"), StepFilm(traced, title="T", asks=True)
    assert "peak" in repr(told) and "in the backward" in repr(told) and "▼" in told.chart.svg()
    assert repr(asks) == f"T: {len(traced.events):,} events. Where is the peak?"
    assert (
        "▼" not in asks.chart.svg()
        and "MiB," not in asks.chart.alt
        and "peak" not in asks.chart.alt
    )
    assert ">?<" in asks.chart.svg() and ">?<" not in told.chart.svg()
    forward = traced.at("forward peak", step=1).total_bytes
    ticks = [float(size) for size in re.findall(r">([\d.]+) MiB<", asks.chart.svg())]
    assert max(ticks) * 2**20 < 1.1 * forward  # the scale ends at what is drawn
