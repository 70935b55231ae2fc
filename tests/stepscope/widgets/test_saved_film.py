"""A film as a file, and a long one told in moments; tests/browser/test_film.py plays it."""

import pytest

from memkit.models import TINY_GPT2
from memkit.program.transformer import training_build
from memkit.setup import TrainingSetup
from memkit.timeline import MemoryTimeline
from memkit.tracing.trace import trace_memory
from memkit.units import ALLOCATOR_BLOCK_BYTES, round_up
from memkit.widgets.step_film import when
from stepscope.advice.alive import grouped, unfreed
from stepscope.widgets import saved_film
from stepscope.widgets.saved_film import SavedFilm, in_moments


@pytest.fixture(scope="module")
def traced() -> MemoryTimeline:
    return trace_memory(training_build(TrainingSetup(model=TINY_GPT2, seq_len=32)))


def test_a_long_film_is_told_in_fewer_moments_and_stays_exact_where_it_counts(traced, monkeypatch):
    """At the ends of phases, at the peak and where a limit is first exceeded: the bytes of each part, and the event."""
    levels = traced.events.levels(granularity=ALLOCATOR_BLOCK_BYTES)
    peak = max(levels.totals)
    limits = [peak * share // 100 for share in (20, 50, 80, 99)]
    told, words = in_moments(traced.events, ALLOCATOR_BLOCK_BYTES, limits, moments=60)
    fewer = told.levels()
    assert (
        len(told) < len(traced.events) / 2 and f"{len(traced.events):,} events are told in" in words
    )
    assert max(fewer.totals) == peak and unfreed(told) <= unfreed(traced.events)
    for limit in (*limits, peak - 1):
        at, whole = (
            next(index for index, total in enumerate(each.totals) if total > limit)
            for each in (fewer, levels)
        )
        assert fewer.at(at) == levels.at(whole)
        shown, event = told[at], traced.events[whole]
        assert (shown.where, shown.op, shown.step) == (event.where, event.op, event.step)
        assert shown.num_bytes == round_up(event.num_bytes, ALLOCATOR_BLOCK_BYTES)
    for phase in grouped(traced.events, when):
        last, of_all = (grouped(each, when)[phase][-1] for each in (told, traced.events))
        ends = [list(each).index(event) for each, event in ((told, last), (traced.events, of_all))]
        assert fewer.at(ends[0]) == levels.at(ends[1]), phase
    film = SavedFilm(traced)
    assert film.data["leftOut"] == "" and SavedFilm(traced, limits=limits).data["leftOut"] != ""
    monkeypatch.setattr(saved_film, "MOST_EVENTS", 100)
    assert "are told in" in SavedFilm(traced).data["leftOut"]


def test_a_title_is_words_and_no_markup(traced, tmp_path):
    page = (
        SavedFilm(traced, title="</script><b>1 < 2")
        .save(tmp_path / "film.html")
        .read_text(encoding="utf-8")
    )
    assert "<b>" not in page and page.count("</script>") == 2 and "&lt;b&gt;" in page
