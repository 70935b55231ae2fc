"""Who is alive after each event: a sum over every block's own events is the oracle."""

from hypothesis import given
from tests_of_the_kit import kit_tests

from memkit.timeline import Events
from stepscope.advice.alive import bytes_of, grouped, live_at, unfreed

drawn_events = kit_tests("test_timeline_events.py").drawn_events


@given(drawn_events())
def test_who_is_alive_is_who_was_born_and_not_freed(events):
    for index in range(len(events)):
        sums = {event.block: 0 for event in events[: index + 1]}
        for event in events[: index + 1]:
            sums[event.block] += event.num_bytes
        live = live_at(events, index)
        assert {born.block: born.num_bytes for born in live} == {
            block: size for block, size in sums.items() if size
        }
        assert bytes_of(live) == Events(events).levels().totals[index]
        assert bytes_of(live) == sum(map(bytes_of, grouped(live, lambda e: e.part).values()))
    assert unfreed(events) == {born.block for born in live_at(events, len(events) - 1)}
