"""A timeline's peak is a maximum over instants, its parts sum to its totals, and it survives JSON."""

import pytest

from memkit.timeline import INSTANTS, PARTS, Instant, MemoryTimeline


def instant(name="init", values=(1, 2, 3, 4, 5), **fields):
    return Instant(name=name, **dict(zip(PARTS, values, strict=True)), **fields)


def timeline(*totals, source="formula", **fields):
    names = [name for name in INSTANTS if name != "init"][: len(totals)]
    instants = tuple(Instant(name=n, total_bytes=t) for n, t in zip(names, totals, strict=True))
    return MemoryTimeline(instants=instants, source=source, **fields)


def test_a_total_is_the_sum_of_its_parts():
    assert instant().total_bytes == 15
    assert instant().unattributed_bytes == 0


def test_what_is_unknown_is_none_and_the_rest_is_unattributed():
    measured = Instant(name="forward", weights=10, total_bytes=25)
    assert measured.parts == {"weights": 10, **dict.fromkeys(PARTS[1:])}
    assert measured.unattributed_bytes == 15


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"weights": 1}, "unknown parts and no total_bytes"),
        ({"weights": 5, "total_bytes": 4}, "the parts sum to 5 B, but total_bytes=4"),
        ({**dict.fromkeys(PARTS, 1), "total_bytes": 6}, "the parts sum to 5 B, but total_bytes=6"),
    ],
)
def test_parts_that_do_not_add_up_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Instant(name="init", **fields)


def test_the_peak_is_a_maximum_and_not_a_sum():
    states = instant("forward", (8, 0, 16, 4, 0))
    other = instant("optimizer", (8, 8, 16, 0, 2))
    both = MemoryTimeline(instants=(states, other), source="formula")
    assert both.peak is other and both.peak_bytes == 34
    assert both.peak_bytes < sum(max(i.parts[part] for i in both.instants) for part in PARTS)


def test_of_equal_peaks_the_first_is_named():
    assert timeline(7, 9, 9).peak.name == "forward"


@pytest.mark.parametrize("fields", [{"source": "guessed"}, {"instants": ()}])
def test_a_timeline_needs_instants_and_a_known_source(fields):
    with pytest.raises(ValueError):
        MemoryTimeline(**{"instants": (instant(),), "source": "formula", **fields})


def test_an_instant_is_found_by_name_step_and_micro_batch():
    instants = [
        instant("backward", (step, batch, 0, 0, 0), step=step, micro_batch=batch)
        for step in (1, 2)
        for batch in (1, 2)
    ]
    both = MemoryTimeline(instants=tuple(instants), source="traced")
    assert both.at("backward") is instants[3]
    assert both.at("backward", step=1) is instants[1]
    assert both.at("backward", step=2, micro_batch=1) is instants[2]
    assert both.for_step(1).instants == tuple(instants[:2])
    with pytest.raises(ValueError, match="no instant 'forward'.*there are: backward"):
        both.at("forward")
    with pytest.raises(ValueError, match="step=3 is not in this timeline; it has: 1, 2"):
        both.for_step(3)


def test_the_table_has_a_row_for_each_instant_and_says_what_is_unknown():
    rows = timeline(2**30, 3 * 2**29).table().splitlines()
    assert len(rows) == 2 + 2
    assert rows[2].startswith("forward peak") and rows[2].count("unknown") == len(PARTS)
    assert rows[3].endswith("1.50 GiB")


def test_steps_and_micro_batches_are_named_where_there_are_several():
    twice = MemoryTimeline(
        instants=(
            instant("forward", micro_batch=1),
            instant("forward", micro_batch=2),
            instant("optimizer", step=2),
        ),
        source="formula",
    )
    assert "forward, micro-batch 2, step 1" in str(twice) and "optimizer, step 2" in str(twice)
