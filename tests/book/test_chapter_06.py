"""The spike of chapter 06's section 6.3, as its cell plays it, against the published experiment; and its answers."""

import re

import pytest
from cells import after_setup, home_of, texts_of

FIRST_LINE = "spike, history_len, margin = 16, 1024, 0"


def played(spike: int = 16, history_len: int = 1024, margin: int = 0) -> dict:
    """What the cell's names are after it has run with these values in its first line."""
    import matplotlib as mpl

    mpl.use("agg")
    names, cell = dict(after_setup(home_of("06", "film"))), texts_of("06")["film"]
    assert cell.startswith(FIRST_LINE)
    exec(
        cell.replace(FIRST_LINE, f"spike, history_len, margin = {spike}, {history_len}, {margin}"),
        names,
    )
    names["plt"].close("all")
    return names


def test_the_spike_clips_three_quarters_and_is_forgotten_after_the_history():
    """The published experiment: a spike of 16 clips 74 % with an error of 75.8 %; current scaling 2.65 %."""
    found = played()
    assert found["clipped"][20] == pytest.approx(0.74, abs=0.04)
    assert found["errors"][20] == pytest.approx(0.758, abs=0.02)
    assert all(error == pytest.approx(0.0265, abs=0.001) for error in found["current"])
    assert found["fits"][-1] == pytest.approx(found["amaxes"][20])
    short = played(history_len=4)
    assert short["fits"][24] == pytest.approx(short["amaxes"][20]) and short["fits"][25] < 8


def test_the_answers_of_the_three_experiments():
    """Margin, history and a doubling, as the text tells them."""
    told = texts_of("06")["film-text"]
    three, four = played(margin=3), played(margin=4)
    assert (
        f"With 3 bits {three['clipped'][20]:.1%}".replace("%", " %") in told
        and four["clipped"][20] == 0
    )
    short, whole, double = played(history_len=1), played(), played(spike=2)
    steps = [sum(share > 0 for share in found["clipped"]) for found in (short, whole)]
    assert re.search(rf"{steps[0]} of 60, instead of {steps[1]}\.", told)
    clipped, error = double["clipped"][20], double["errors"][20]
    words = f"in step 20 {clipped:.1%} of the values are clipped, and its error is {error:.1%}"
    assert words.replace("%", " %") in told
