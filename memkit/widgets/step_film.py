"""The step film: a program's lines on one side, every block of memory on the other, and one handle.

Chapters 00, 01, 04, 05 and 09, the site, and ``stepscope report train.py --film film.html``. Python hands over the
events of a timeline once; from then on ``step_film.js`` moves everything in the page, without a kernel.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from html import escape
from itertools import groupby, islice, pairwise
from operator import itemgetter
from pathlib import Path

from memkit.pictures.colours import COLOUR
from memkit.pictures.timeline import REST, over_time_figure
from memkit.timeline import PARTS, Event, Events, MemoryTimeline, provenance_line
from memkit.units import ALLOCATOR_BLOCK_BYTES, format_bytes, round_up

SCRIPT = Path(__file__).with_suffix(".js")
FILM = "application/vnd.memkit.film"
"""The film's data in a stored output, from which the site makes the film again."""
MOST_EVENTS, MOMENTS = 12_000, 1_000
"""More events than the first are told in about as many moments as the second: a screen has no more columns."""
LINE = re.compile(r"(?P<file>.+):(?P<number>\d+) (?P<function>\S+)$")
PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<body class="memkit-film-page"><main><h1>{title}</h1><div id="film"></div></main>
<script type="application/json" id="data">{data}</script>
<script type="module">{script}
film(document.getElementById("film"), JSON.parse(document.getElementById("data").textContent), {{ hasLink: true }});
</script></body></html>
"""


class StepFilm:
    """A timeline with events, as a film: pull the handle or press *Play*, and see which line takes which bytes.

    With ``asks`` the peak stays hidden until a reader has set a guess. In a notebook the film moves without the
    kernel; ``save`` writes it as one HTML file. It needs ``anywidget``; without it there is a still picture.
    A long film is told in fewer moments, and one with ``limits``: then the moments at which the bytes first exceed
    one of these are among them.

    Raises: ValueError: the timeline has no events.

    >>> from memkit import TrainingSetup, estimate_memory, models
    >>> StepFilm(estimate_memory(TrainingSetup(model=models.TINY_GPT2, seq_len=64)), title="A tiny GPT-2")
    A tiny GPT-2: 1,092 events, peak 346.69 MiB in the backward of step 2 of 2.
    """

    def __init__(
        self,
        timeline: MemoryTimeline,
        title="A training step",
        asks: bool = False,
        limits: Iterable[int] = (),
    ):
        if not timeline.events:
            which = f"this {timeline.source} timeline"
            raise ValueError(f"{which} has no events, and a film shows nothing else")
        self.timeline, self.title, self.asks = timeline, title, asks
        self.limits = tuple(limits)

    @cached_property
    def data(self) -> dict:
        """What ``step_film.js`` plays; blocks are as large as the allocator makes them."""
        block_bytes = ALLOCATOR_BLOCK_BYTES if self.timeline.device == "cuda" else 1
        events, told = Events(self.timeline.events), ""
        if self.limits or len(events) > MOST_EVENTS:
            events, told = in_moments(events, block_bytes, self.limits)
        births = [event for event in events if event.num_bytes > 0]
        number_of = {event.block: number for number, event in enumerate(births, 1)}
        lines = lines_of(births, self.timeline.source_lines)
        ops, parts = list(dict.fromkeys(op_name(event.op) for event in births)), [*PARTS, REST]
        runs, start, spans = groupby(events, when), 0, []
        for key, run in runs:
            spans.append([start, *key])
            start += len(list(run))
        return {
            "title": self.title,
            "source": provenance_line(self.timeline),
            "leftOut": told,
            "asks": self.asks,
            "parts": [[part.replace("_", " "), COLOUR[part]] for part in parts],
            "ops": ops,
            "lines": list(lines.values()),
            "spans": spans,
            # a birth is its bytes, a free the number of its birth, below zero
            "changes": [
                round_up(e.num_bytes, block_bytes) if e.num_bytes > 0 else -number_of[e.block]
                for e in events
            ],
            "part": [parts.index(event.part or REST) for event in births],
            "line": [list(lines).index(place(event)) for event in births],
            "op": [ops.index(op_name(event.op)) for event in births],
        }

    @property
    def text(self) -> str:
        """The data as JSON that may stand inside a page: no markup, one line."""
        return json.dumps(self.data, separators=(",", ":"), sort_keys=True).replace("<", "\\u003c")

    @property
    def chart(self):
        """The still picture: the last step's areas, with the peak marked; the first step's alone if the film asks."""
        if self.asks:
            first = {f"{self.title}: the first": self.timeline}
            return over_time_figure(first, step=1, marks_peak=False)
        last = max(event.step for event in self.timeline.events)
        return over_time_figure({self.title: self.timeline}, step=last)

    def __repr__(self) -> str:
        events = Events(self.timeline.events)
        if self.asks:
            return f"{self.title}: {len(events):,} events. Where is the peak?"
        size, moment = format_bytes(self.timeline.peak_bytes), events.moment(events.peak())
        return f"{self.title}: {len(events):,} events, peak {size} in the {moment}."

    def _repr_mimebundle_(self, **kwargs) -> tuple[dict, dict]:
        """The film that plays; its still picture, its words and its data for pages without a kernel."""
        bundle, metadata = self.chart._repr_mimebundle_()
        try:
            from anywidget import AnyWidget
            from traitlets import Dict
        except ImportError:
            live = {}
        else:
            members = {"_esm": SCRIPT, "film": Dict().tag(sync=True)}
            film = type("Film", (AnyWidget,), members)(film=self.data)
            live, _ = film._repr_mimebundle_(**kwargs)
        return {**live, **bundle, FILM: self.text, "text/plain": repr(self)}, metadata

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


def when(event: Event) -> tuple[str, int, int]:
    """The phase of an event, its step and its micro-batch."""
    return event.phase, event.step, event.micro_batch


def place(event: Event) -> str:
    """The line or the module that made a block; alike blocks of a model are one place."""
    where = event.where.removesuffix(" (backward)")
    return where if LINE.match(where) else re.sub(r"\.\d+\b", ".*", where)


def lines_of(births: Iterable[Event], texts: dict[str, str]) -> dict[str, tuple[str, int, str]]:
    """Function, number and text of each line, the functions in the order in which they first run.

    A line of ``texts`` is there although it makes nothing.
    """
    places = dict.fromkeys([*map(place, births), *texts])
    lines: dict[str, tuple[str, int, str]] = {}
    for name in places:
        if found := LINE.match(name):
            heading = f"{found['function'].rpartition('<locals>.')[2]} · {found['file']}"
            lines[name] = (heading, int(found["number"]), texts.get(name, ""))
        else:
            lines[name] = ("", 0, name or "outside the program's lines")
    order = list(dict.fromkeys(heading for heading, _, _ in lines.values()))
    return dict(sorted(lines.items(), key=lambda item: (order.index(item[1][0]), item[1][1])))


def op_name(op: str) -> str:
    """An operation without its library's dots; ``step_film.js`` has the words for what it makes.

    >>> op_name("aten.native_layer_norm_backward.default"), op_name("aten.add.Tensor")
    ('native layer norm backward', 'add')
    """
    name = op.split(".")[1] if op.startswith("aten.") else op.partition(".")[0]
    return name.strip("_").replace("_", " ")
