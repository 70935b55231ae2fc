"""The step film of a long program, or in a file: ``stepscope report train.py --film film.html``, and the site's.

A page has fewer columns than a program has events, so a long film is told in moments.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import replace
from html import escape
from itertools import islice, pairwise
from operator import itemgetter
from pathlib import Path

from memkit.timeline import Events, MemoryTimeline
from memkit.units import round_up
from memkit.widgets.step_film import SCRIPT, StepFilm, place, when

MOST_EVENTS, MOMENTS = 12_000, 1_000
"""More events than the first are told in about as many moments as the second: a screen has no more columns."""
PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ margin: 0; color-scheme: light dark; background: Canvas; color: CanvasText;
  font: 16px/1.5 system-ui, sans-serif; }}
main {{ max-width: 1060px; margin: auto; padding: 16px; }}
h1 {{ font-size: 24px; }}
</style>
<body><main><h1>{title}</h1><div id="film"></div></main>
<script type="application/json" id="data">{data}</script>
<script type="module">{script}
film(document.getElementById("film"), JSON.parse(document.getElementById("data").textContent), {{ hasLink: true }});
</script></body></html>
"""


class SavedFilm(StepFilm):
    """The film of a timeline, which ``save`` writes as one HTML file.

    A long one is told in fewer moments, and one with ``limits``: then the moments at which the bytes first exceed one
    of these are among them.
    """

    def __init__(
        self,
        timeline: MemoryTimeline,
        title="A training step",
        asks: bool = False,
        limits: Iterable[int] = (),
    ):
        super().__init__(timeline, title, asks)
        self.limits = tuple(limits)

    def told(self) -> tuple[Events, str]:
        """All events, or of too many the moments that count; and that in words."""
        events, words = super().told()
        if self.limits or len(events) > MOST_EVENTS:
            events, words = in_moments(events, self.granularity, self.limits)
        return events, words

    def save(self, path: str | Path) -> Path:
        """Write the film as an HTML file that needs nothing else: no kernel, no network, no library."""
        script = SCRIPT.read_text(encoding="utf-8")
        page = PAGE.format(title=escape(self.title), data=self.text, script=script)
        Path(path).write_text(page, encoding="utf-8")
        return Path(path)


def in_moments(
    events: Events, granularity: int, limits: Iterable[int] = (), moments: int = MOMENTS
) -> tuple[Events, str]:
    """A long film's events told in fewer moments, and that in words; bytes of each part and line stay exact at each.

    Of each stretch its highest and its lowest moment are kept, and of all the peak, the ends of phases, and where the
    bytes first exceed one of ``limits``. Blocks of one line and operation that are made between two moments and
    freed between two others are told as one; what is made and freed between two moments is not told. Sizes are rounded
    up to ``granularity``.
    """
    totals, length = events.levels(granularity=granularity).totals, -(-2 * len(events) // moments)
    highs = [totals.index(max(totals))]
    for limit in limits:
        highs += islice((at for at, total in enumerate(totals) if total > limit), 1)
    kept = {len(events) - 1, *highs, *(at - 1 for at in highs if at)}
    kept |= {at for at, (e, after) in enumerate(pairwise(events)) if when(e) != when(after)}
    for start in range(0, len(events), length):
        stretch = range(start, min(start + length, len(events)))
        kept |= {max(stretch, key=totals.__getitem__), min(stretch, key=totals.__getitem__)}
    ends = sorted(kept)
    freed_at = {event.block: at for at, event in enumerate(events) if event.num_bytes < 0}
    groups: dict[tuple, list[int]] = {}
    for at, event in enumerate(events):
        if event.num_bytes > 0:
            free = freed_at.get(event.block)
            lives = bisect_left(ends, at), len(ends) if free is None else bisect_left(ends, free)
            if lives[0] < lives[1]:
                groups.setdefault((lives, place(event), event.part, event.op), []).append(at)
    told = []  # of each group where it is told: moment, frees first, then as it was
    for ((first, last), *_), births in groups.items():
        size = sum(round_up(events[at].num_bytes, granularity) for at in births)
        born = replace(events[births[-1]], num_bytes=size)
        told.append((first, 1, births[-1], born))
        if last < len(ends):
            free = events[freed_at[born.block]]
            told.append((last, 0, births[-1], replace(free, num_bytes=-size)))
    words = f"{len(events):,} events are told in {len(ends):,} moments."
    return Events(event for *_, event in sorted(told, key=itemgetter(0, 1, 2))), words
