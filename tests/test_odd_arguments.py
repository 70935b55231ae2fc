"""Every door refuses an argument of the wrong type in one sentence; what cannot be, or comes from outside, too."""

import importlib
import inspect
import pickle
import pkgutil
import re
from dataclasses import replace
from typing import get_type_hints

import pytest

import memkit
from book import load_claims, load_recordings
from memkit.setup.models import TINY_GPT2
from memkit.setup.strategies import NONE, all_strategies, every, sequential
from memkit.setup.training import TrainingSetup
from memkit.tracing import counted_flops

SETUP = TrainingSetup(model=TINY_GPT2, seq_len=16)
TIMELINE = memkit.estimate_memory(SETUP)


def build():
    return lambda: None


@pytest.mark.parametrize("call", [
    lambda steps: memkit.estimate_memory(SETUP, steps),
    lambda steps: memkit.measure_memory(build, device="cpu", steps=steps),
    lambda steps: memkit.trace_memory(build, steps=steps),
], ids=["estimate", "measure", "trace"])
@pytest.mark.parametrize("steps", [0, -1, 10_001])
def test_a_number_of_steps_that_nobody_takes_or_waits_for_is_refused(call, steps):
    with pytest.raises(ValueError, match=f"steps={steps!r} is"):
        call(steps)


@pytest.mark.parametrize("call, words", [
    (lambda: memkit.measure_memory(build, device="tpu"), "device='tpu' is"),
    (lambda: memkit.trace_memory(build, device="tpu"), "device='tpu' is"),
    (lambda: memkit.compare(TIMELINE, TIMELINE, names=["initt"]), "names='initt' is not one of init, forward peak"),
    (lambda: memkit.estimate_memory(3), "setup=3 is not a TrainingSetup or a ModelConfig"),
    (lambda: memkit.aligned_table(7), "rows=7 is no list of list"),
    (lambda: replace(SETUP, sets_grads_to_none="False"), "sets_grads_to_none='False' is not a bool"),
    (lambda: all_strategies(-3), "num_layers=-3"), (lambda: sequential(-1), "num_segments=-1"),
    (lambda: every(0), "period=0"),
    (lambda: counted_flops(SETUP, NONE, device="mps"), "device='mps' is not one of cuda, cpu"),
    (lambda: load_claims("nowhere.toml"), "no ledger of claims at nowhere.toml"),
    (lambda: load_recordings("01", "nowhere"), "no recordings at nowhere"),
    (lambda: memkit.format_bytes(10**400), "is not between"),
])
def test_what_cannot_be_is_refused_in_words(call, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        call()


class Odd:
    """What no argument of any function takes."""


PACKAGES = ["memkit", "book", *(f"memkit.{each.name}" for each in pkgutil.iter_modules(memkit.__path__) if each.ispkg)]
OFFERED = {
    value: f"{package}.{name}"
    for package in PACKAGES
    for name in importlib.import_module(package).__all__
    if inspect.isroutine(value := getattr(importlib.import_module(package), name)) or inspect.isclass(value)
}
"""Every function and class that a room or the book offers."""


def kinds_in(offered) -> dict:
    """The arguments that an annotation says something of; a ``*rest`` has no name to give it by."""
    hints = get_type_hints(offered.__init__ if inspect.isclass(offered) else offered)
    parameters = inspect.signature(offered).parameters.values()
    by_name = {p.name: hints.get(p.name, object) for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    return {name: kind for name, kind in by_name.items() if kind is not object}


@pytest.mark.parametrize("offered", OFFERED, ids=OFFERED.values())
def test_every_door_refuses_what_no_annotation_takes(offered):
    for name in kinds_in(offered):
        with pytest.raises(ValueError, match=f"{name}=.*Odd object"):
            offered(**{name: Odd()})


@pytest.mark.parametrize("offered", OFFERED, ids=OFFERED.values())
def test_what_a_door_hands_out_can_be_sent_to_another_process(offered):
    assert pickle.loads(pickle.dumps(offered)) is offered
