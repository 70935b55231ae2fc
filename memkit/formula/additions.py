"""Puts together what a setup asks for: a transformer, and each addition that is asked for.

An addition is a subclass of ``Transformer`` that writes or walks the list of operations in another way. Another package
adds its own with ``addition``; the formula itself names none of them.
"""

from collections.abc import Callable
from functools import lru_cache

from memkit.formula.cpu import OnCPU
from memkit.formula.model import Transformer
from memkit.formula.rms_norm import WithNormInSteps
from memkit.setup.training import TrainingSetup

ADDITIONS: list[tuple[type[Transformer], Callable[[TrainingSetup], bool]]] = [
    (OnCPU, lambda setup: setup.device == "cpu"),
    (
        WithNormInSteps,
        lambda setup: setup.model.norm == "rmsnorm" and not (setup.uses_fused_norm and setup.device == "cuda"),
    ),
]
"""Each with the setups that get it, beside others that they ask for."""


def addition(is_asked_for: Callable[[TrainingSetup], bool]) -> Callable[[type], type]:
    """For a subclass of ``Transformer``: the setups for which this holds get it."""

    def add(kind: type[Transformer]) -> type[Transformer]:
        ADDITIONS.append((kind, is_asked_for))
        return kind

    return add


@lru_cache
def _with_additions(kinds: tuple[type[Transformer], ...]) -> type[Transformer]:
    """A transformer with all of them."""
    return type("Model", (*kinds, Transformer), {}) if kinds else Transformer


def model_class_of(setup: TrainingSetup) -> type[Transformer]:
    """A transformer with the additions that a setup asks for."""
    return _with_additions(tuple(kind for kind, is_asked_for in ADDITIONS if is_asked_for(setup)))


def model_of(setup: TrainingSetup, is_whole: bool = False) -> Transformer:
    """The list of a setup's operations; ``table()`` prints it.

    >>> from memkit.setup.models import TINY_GPT2
    >>> model = model_of(TrainingSetup(model=TINY_GPT2, seq_len=64))
    >>> for line in model.table(unit=1).splitlines()[2:5]:
    ...     print(line[:63].rstrip())
    1   blocks.0.norm_1     layer_norm  norm 1 input, weight, bias
    2   blocks.0.attention  addmm       norm 1 output, weight, bias
    3   blocks.0.attention  attention   query, key and value, one s
    """
    return model_class_of(setup)(setup, is_whole)
