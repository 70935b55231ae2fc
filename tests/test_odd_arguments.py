"""Every function of the front door refuses odd arguments in words: what came, and what it wants."""

import inspect
import math
import re

import pytest

import memkit
from book.claims import load_claims
from book.recordings import load_recordings
from memkit.hardware.driver import gpu_cap_bytes
from memkit.setup.models import GPT2_SMALL, TINY_GPT2
from memkit.setup.strategies import NONE, Strategy, all_strategies, every, sequential
from memkit.setup.training import TrainingSetup
from memkit.tracing.flops import counted_flops

ODD = (None, True, -1, 0, 1.5, math.nan, math.inf, 10**400, "GPT-2", "", b"x", [], {}, object(), len)
RAW = re.compile(r"object (is not|has no attribute)|unsupported operand|unhashable|bad operand|Errno(?! 2)")
SETUP = TrainingSetup(model=TINY_GPT2, seq_len=16)


def called(function, value):
    """Call with the odd value for each argument that has no default, or for the first where all have one."""
    parameters = list(inspect.signature(function).parameters.values())
    wanted = [p for p in parameters if p.default is p.empty] or parameters[:1]
    by_name = {p.name: value for p in wanted if p.kind is p.KEYWORD_ONLY}
    return function(*[value for p in wanted if p.kind is not p.KEYWORD_ONLY], **by_name)


FUNCTIONS = [name for name in memkit.__all__ if callable(getattr(memkit, name))]


def test_the_front_door_has_its_functions():
    assert len(FUNCTIONS) >= 25 and {"estimate_memory", "count_parameters", "diagnose_memory"} <= set(FUNCTIONS)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_odd_arguments_end_in_words(name):
    function = getattr(memkit, name)
    for value in ODD if inspect.signature(function).parameters else ODD[:1]:
        try:
            called(function, value)
        except (ValueError, TypeError, FileNotFoundError) as error:
            assert len(str(error).split()) >= 3, f"{name}({value!r}): {error}"
            assert not RAW.search(str(error)), f"{name}({value!r}): {error}"


@pytest.mark.parametrize("call, words", [
    (lambda: memkit.count_parameters("GPT-2"), "config='GPT-2' is not a ModelConfig"),
    (lambda: memkit.predict_peak(SETUP, "full"), "strategy='full' is not a Strategy"),
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
])  # fmt: skip
def test_what_was_taken_or_failed_raw_is_refused(call, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        call()


@pytest.mark.parametrize("text", ["1e400", "1e999999999", "nan", "inf", "-3", "0", "four", "1/0", "1e-400"])
def test_a_cap_that_no_card_has(text):
    with pytest.raises(ValueError, match="MEMKIT_GPU_GIB="):
        gpu_cap_bytes({"MEMKIT_GPU_GIB": text})
