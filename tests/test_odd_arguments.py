"""Every function of the front door refuses odd arguments in words: what came, and what it wants."""

import importlib
import inspect
import math
import pickle
import pkgutil
import re
from dataclasses import replace
from typing import get_type_hints

import pytest
import torch

import memkit
from book import load_claims, load_recordings
from memkit.allocator.stories import rounding_story
from memkit.hardware.driver import gpu_cap_bytes
from memkit.setup.models import GPT2_SMALL, TINY_GPT2
from memkit.setup.strategies import NONE, Strategy, all_strategies, every, sequential
from memkit.setup.training import TrainingSetup
from memkit.tracing import counted_flops

ODD = (None, True, -1, 0, 1.5, math.nan, math.inf, 10**400, "GPT-2", "", b"x", [], {}, object(), len, "cuda:9",
       torch.ones(2), 1j)
RAW = re.compile(
    r"object (is not|has no attribute)|unsupported operand|unhashable|bad operand|Errno(?! 2)|subscriptable"
    r"|not iterable|argument of type|positional argument|not supported between|unpack|object of type|interpreted as"
)
SETUP = TrainingSetup(model=TINY_GPT2, seq_len=16)
TIMELINE = memkit.estimate_memory(SETUP)
TRACE = memkit.MemoryTimeline(instants=TIMELINE.instants, source="traced", events=rounding_story())


def build():
    weight = torch.ones(4, requires_grad=True)
    return lambda: (weight * 2).sum().backward()


VALID = {
    "MemoryTimeline": {"instants": TIMELINE.instants, "source": "formula"},
    "ModelConfig": {"num_layers": 1, "hidden_size": 8, "num_heads": 1, "vocab_size": 8, "max_seq_len": 8},
    "OptimizerConfig": {},
    "TrainingSetup": {"model": TINY_GPT2, "seq_len": 16},
    "Transformer": {"setup": replace(SETUP, device="cpu")},
    "activation_bytes": {"setup": SETUP},
    "aligned_table": {"rows": [["one cell"]]},
    "block_ledger": {"setup": SETUP},
    "bytes_per_parameter": {"precision": SETUP.precision, "optimizer": SETUP.optimizer},
    "compare": {"timelines": (TIMELINE, TIMELINE)},
    "count_parameters": {"config": TINY_GPT2},
    "diagnose_memory": {"source": TRACE},
    "estimate_memory": {"setup": SETUP},
    "format_bytes": {"num_bytes": 5},
    "format_count": {"count": 5},
    "format_gb": {"num_bytes": 5},
    "give_back": {},
    "on_page": {"parts": ("One sentence.",)},
    "measure_memory": {"build": build, "device": "cpu", "steps": 1},
    "plan_recomputation": {"setup": SETUP, "card_bytes": 10**10},
    "replay_snapshot": {"source": TRACE},
    "replay_trace": {"trace": TRACE},
    "round_to": {"values": [1.0], "fmt": "bfloat16", "overflow": "saturate"},
    "saved_bytes": {"run": lambda: None},
    "saved_storages": {"run": lambda: None},
    "trace_memory": {"build": build, "steps": 1},
    "training_build": {"setup": replace(SETUP, device="cpu")},
}
"""A call that works for every function of the front door; each argument in turn is made odd."""
CALLED_BY_US = {"build", "run", "make_model", "make_optimizer", "next_batch", "make_policy", "say"}
"""Arguments that are functions: ``len`` is one, and its own error is the caller's."""
SPEAKS_IN_TYPE_ERRORS = {"round_to"}
"""A dtype that is no number's ends in a TypeError, as in numpy, in whole words."""


def odd_calls():
    """Every argument of every function, with a default or without, that is no ``**card``."""
    return [
        (name, parameter.name)
        for name in VALID
        for parameter in inspect.signature(getattr(memkit, name)).parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD
    ]


def call(name: str, arguments: dict):
    positional = arguments.pop("timelines", arguments.pop("parts", ()))
    return getattr(memkit, name)(*positional, **arguments)


def test_every_function_of_the_front_door_is_tried():
    functions = {name for name in memkit.__all__ if callable(getattr(memkit, name))}
    assert functions == set(VALID) and len(functions) >= 25


@pytest.mark.parametrize("name", VALID)
def test_the_call_that_is_made_odd_works(name):
    call(name, dict(VALID[name]))


@pytest.mark.parametrize("name, argument", odd_calls())
def test_an_odd_argument_ends_in_words(name, argument):
    """It is taken, or it is refused in one sentence; nothing is raised by what the value was then used for."""
    for value in ODD:
        if value is len and argument in CALLED_BY_US:
            continue
        odd = {"timelines": (TIMELINE, value), "parts": (value,)}.get(argument, value)
        try:
            call(name, {**VALID[name], argument: odd})
        except (ValueError, FileNotFoundError) as error:
            assert len(str(error).split()) >= 3, f"{name}({argument}={value!r}): {error}"
            assert not RAW.search(str(error)), f"{name}({argument}={value!r}): {error}"
        except TypeError as error:
            if name not in SPEAKS_IN_TYPE_ERRORS or RAW.search(str(error)):
                raise AssertionError(f"{name}({argument}={value!r}): {error}") from error


@pytest.mark.parametrize("name", ["estimate_memory", "measure_memory", "trace_memory"])
@pytest.mark.parametrize("steps", [0, -1, 1.5, True, None, "two", 10_001, 2**63])
def test_a_number_of_steps_that_nobody_takes_or_waits_for_is_refused(name, steps):
    with pytest.raises(ValueError, match=f"steps={steps!r} is"):
        call(name, {**VALID[name], "steps": steps})


@pytest.mark.parametrize("name, device", [("measure_memory", "tpu"), ("trace_memory", "tpu"), ("trace_memory", None)])
def test_a_device_that_is_none_of_ours_is_refused(name, device):
    with pytest.raises(ValueError, match=f"device={device!r} is"):
        call(name, {**VALID[name], "device": device})


def test_a_name_that_no_timeline_has_is_refused():
    with pytest.raises(ValueError, match="names='initt' is not one of init, .*did you mean init"):
        memkit.compare(TIMELINE, TIMELINE, names=["initt"])


@pytest.mark.parametrize("call, words", [
    (lambda: memkit.count_parameters("GPT-2"), "config='GPT-2' is not a ModelConfig"),
    (lambda: SETUP.under("full"), "strategy='full' is not a Strategy"),
    (lambda: TrainingSetup(model=GPT2_SMALL, sets_grads_to_none="False"), "sets_grads_to_none='False' is not a bool"),
    (lambda: memkit.ModelConfig(num_layers=1, hidden_size=8, num_heads=1, vocab_size=8, max_seq_len=8,
                                ties_embeddings="False"), "ties_embeddings='False' is not a bool"),
    (lambda: all_strategies(-3), "num_layers=-3"), (lambda: sequential(-1), "num_segments=-1"),
    (lambda: every(0), "period=0"), (lambda: Strategy(name="x", code="", stops_early="no"), "stops_early='no'"),
    (lambda: counted_flops("GPT-2", NONE), "setup='GPT-2' is not a TrainingSetup"),
    (lambda: counted_flops(SETUP, "none"), "strategy='none' is not a Strategy"),
    (lambda: counted_flops(SETUP, NONE, device="mps"), "device='mps' is not one of cuda, cpu"),
    (lambda: load_claims("nowhere.toml"), "no ledger of claims at nowhere.toml"),
    (lambda: load_recordings("01", "nowhere"), "no recordings at nowhere"),
    (lambda: memkit.format_bytes(10**400), "is not between"),
])
def test_what_was_taken_or_failed_raw_is_refused(call, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        call()


@pytest.mark.parametrize("text", ["1e400", "1e999999999", "nan", "inf", "-3", "0", "four", "1/0", "1e-400"])
def test_a_cap_that_no_card_has(text):
    with pytest.raises(ValueError, match="MEMKIT_GPU_GIB="):
        gpu_cap_bytes({"MEMKIT_GPU_GIB": text})


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
