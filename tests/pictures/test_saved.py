"""The bars of a block: their sizes are the ledger's, their sums are in the words for who does not see them."""

import pytest
from drawn import marks_of

from memkit.formula.activations import block_ledger
from memkit.pictures.rows_of_bars import ledger_pieces, saved_figure
from memkit.setup.models import GPT2_LARGE
from memkit.setup.recipes import PURE_BF16
from memkit.setup.training import TrainingSetup

LEDGER = block_ledger(TrainingSetup(model=GPT2_LARGE, precision=PURE_BF16, micro_batch_size=8))


def test_pieces_sum_to_the_ledger():
    assert sum(ledger_pieces(LEDGER).values()) == pytest.approx(LEDGER.per_sbh)


def test_a_bar_is_as_long_as_its_pieces():
    pieces = ledger_pieces(LEDGER)
    picture = saved_figure({"GPT-2 large": pieces})
    marks = marks_of(picture, "size")
    assert [float(mark.data["size"]) for mark in marks] == pytest.approx(list(pieces.values()), rel=1e-5)
    scale = 780 / sum(pieces.values())
    assert [mark.at("width") / scale for mark in marks] == pytest.approx(list(pieces.values()), abs=0.1 / scale)
    assert "GPT-2 large 32.1 sbh" in picture.alt


def test_no_bars_no_picture():
    with pytest.raises(ValueError, match="at least one bar"):
        saved_figure({})
