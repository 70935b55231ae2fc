"""Giving back what a chapter held, on any machine and on a card."""

import sys
import weakref

import pytest
import torch

from memkit.measure import give_back
from memkit.units import MIB


def test_a_remembered_traceback_is_forgotten():
    def fail():
        tensor = torch.ones(1000)
        born.append(weakref.ref(tensor))
        raise ValueError

    born = []
    try:
        fail()
    except ValueError as error:
        sys.last_value, sys.last_traceback = error, error.__traceback__  # as a notebook does
    assert born[0]() is not None
    give_back()
    assert born[0]() is None
    assert not hasattr(sys, "last_value")


@pytest.mark.gpu
def test_a_card_gives_back_what_was_cached():
    tensor = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
    del tensor
    assert torch.cuda.memory_reserved() >= 256 * MIB
    assert give_back() >= 256 * MIB
