"""A training setup refuses what cannot be trained, in one sentence with the value and what was allowed."""

from dataclasses import replace

import pytest
from bad_values import BAD_VALUES, VALID

from memkit.models import TINY_GPT2, TINY_LLAMA
from memkit.setup import TrainingSetup


@pytest.mark.parametrize("record, fields, shows", BAD_VALUES)
def test_a_bad_value_gives_one_clear_error(record, fields, shows):
    with pytest.raises(ValueError) as caught:
        record(**{**VALID[record], **fields})
    message = str(caught.value)
    for piece in shows:
        assert piece in message, f"{message!r} does not show {piece!r}"
    assert "\n" not in message and len(message) < 300


@pytest.mark.parametrize("record", VALID, ids=lambda record: record.__name__)
def test_the_values_beside_a_bad_one_are_good(record):
    record(**VALID[record])


def test_a_what_if_is_checked_like_a_new_record():
    with pytest.raises(ValueError, match="seq_len=2048 is above max_seq_len=1024"):
        replace(TrainingSetup(model=TINY_GPT2), seq_len=2048)


def test_rotary_positions_have_no_longest_sequence():
    assert TrainingSetup(model=TINY_LLAMA, seq_len=10 * TINY_LLAMA.max_seq_len).seq_len == 10_240


@pytest.mark.parametrize("name, largest", [("micro_batch_size", 10**9), ("grad_accum_steps", 4096)])
def test_the_largest_number_is_taken_and_the_next_is_not(name, largest):
    assert getattr(TrainingSetup(model=TINY_LLAMA, **{name: largest}), name) == largest
    with pytest.raises(ValueError, match=f"{name}={largest + 1} is above {largest}"):
        TrainingSetup(model=TINY_LLAMA, **{name: largest + 1})


def test_whole_numbers_of_numpy_are_taken():
    import numpy as np

    setup = TrainingSetup(model=TINY_LLAMA, micro_batch_size=np.int64(3), dropout=0)
    assert setup == TrainingSetup(model=TINY_LLAMA, micro_batch_size=3) and hash(setup)
