"""Streams against the spans that were put in."""

import pytest
from drawn import marks_of

from memkit.pictures.rows_of_bars import streams_figure


def test_a_bar_is_as_long_as_its_kernel():
    spans = [("kernel", 7, 30, 40), ("kernel", 7, 75, 25), ("copy", 20, 50, 40)]
    events = [{"ph": "X", "cat": c, "name": c, "ts": t, "dur": d, "args": {"stream": s}} for c, s, t, d in spans]
    picture = streams_figure(events)
    bars = marks_of(picture, "start")
    assert [(float(bar.data["start"]), float(bar.data["duration"])) for bar in bars] == [(t, d) for _, _, t, d in spans]
    scale = 694 / (100 - 30 + 2)
    assert [bar.at("width") for bar in bars] == pytest.approx([scale * d for _, _, _, d in spans], abs=0.1)
    assert "stream 20, copy from 50 to 90 µs" in picture.alt


def test_what_ran_on_no_stream_cannot_be_drawn():
    with pytest.raises(ValueError, match="none of them on a stream"):
        streams_figure([{"ph": "i"}])
