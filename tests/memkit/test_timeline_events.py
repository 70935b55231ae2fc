"""What stands in memory after each event, and how high it rose: numpy's running sums are the oracle."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memkit.timeline import PARTS, Event, Events, Instant, MemoryTimeline


@st.composite
def drawn_events(draw) -> list[Event]:
    """Blocks that are born and, some of them, freed, in any order."""
    sizes = draw(st.lists(st.integers(1, 2000), min_size=1, max_size=12))
    parts = draw(
        st.lists(st.sampled_from((*PARTS, None)), min_size=len(sizes), max_size=len(sizes))
    )
    times = draw(st.permutations(range(2 * len(sizes))))
    events = []
    for moment in times:
        block = moment // 2
        born = any(event.block == block for event in events)
        if not born or draw(st.booleans()):
            events.append(Event(block, -sizes[block] if born else sizes[block], parts[block]))
    return events


@given(drawn_events(), st.sampled_from((1, 512)))
def test_levels_are_the_sums_of_a_matrix_of_blocks(events, granularity):
    """numpy's running sums over a table of events by part are the oracle."""
    table = np.zeros((len(events), len(PARTS) + 1), dtype=int)
    for row, event in enumerate(events):
        column = PARTS.index(event.part) if event.part else len(PARTS)
        table[row, column] = (
            np.sign(event.num_bytes) * -(-abs(event.num_bytes) // granularity) * granularity
        )
    heights = table.cumsum(axis=0)
    levels = Events(events).levels(granularity=granularity)
    assert levels.totals == heights.sum(axis=1).tolist()
    for column, part in enumerate((*PARTS, None)):
        assert levels.parts.get(part, [0] * len(events)) == heights[:, column].tolist()
    for index in range(len(events)):
        assert levels.at(index) == {part: heights[index] for part, heights in levels.parts.items()}


@given(drawn_events(), st.data())
def test_the_peak_of_a_stretch_counts_the_moment_before_it(events, data):
    start = data.draw(st.integers(0, len(events)))
    end = data.draw(st.integers(start, len(events)))
    totals = np.concatenate([[0], np.cumsum([event.num_bytes for event in events])])
    assert Events(events).levels().peak(start, end) == start - 1 + int(
        np.argmax(totals[start : end + 1])
    )
    assert Events(events).peak() == int(np.argmax(totals[1:]))


def test_events_are_made_when_they_are_asked_for():
    asked = []

    def make():
        asked.append(1)
        yield Event(1, 8)

    events = Events(make)
    both = MemoryTimeline(
        instants=(Instant(name="init", total_bytes=0),), source="formula", events=events
    )
    assert repr(events) == "<events, when asked>" and not asked
    assert both.events == (Event(1, 8),) == both.events and len(asked) == 1


def test_what_stood_before_a_recording_began_was_in_no_step():
    events = Events([Event(0, 8, phase="before"), Event(1, 4, phase="backward", step=2)])
    assert [events.moment(index) for index in (0, 1)] == ["", "backward of step 2 of 2"]
