"""The step film: a program's lines on one side, every block of memory on the other, and one handle.

Python hands over the events of a timeline once; from then on ``step_film.js`` moves everything in the page, without a
kernel. A film of a program's hundred thousand events, and one in a file, is ``stepscope.widgets.SavedFilm``.
"""

import json
import re
from collections.abc import Iterable
from functools import cached_property
from itertools import groupby
from pathlib import Path

from memkit.pictures.colours import COLOUR
from memkit.pictures.timeline import REST, over_time_figure
from memkit.timeline import PARTS, Event, Events, MemoryTimeline, provenance_line
from memkit.units import format_bytes, round_up

SCRIPT = Path(__file__).with_suffix(".js")
FILM = "application/vnd.memkit.film"
"""The film's data in a stored output, from which the site makes the film again."""
LINE = re.compile(r"(?P<file>.+):(?P<number>\d+) (?P<function>\S+)$")


class StepFilm:
    """A timeline with events, as a film: pull the handle or press *Play*, and see which line takes which bytes.

    With ``asks`` the peak stays hidden until a reader has set a guess. In a notebook the film moves without the
    kernel. It needs ``anywidget``; without it there is a still picture.

    Raises: ValueError: the timeline has no events.

    >>> from memkit import TrainingSetup, estimate_memory, models
    >>> StepFilm(estimate_memory(TrainingSetup(model=models.TINY_GPT2, seq_len=64)), title="A tiny GPT-2")
    A tiny GPT-2: 1,092 events, peak 346.69 MiB in the backward of step 2 of 2.
    """

    def __init__(self, timeline: MemoryTimeline, title="A training step", asks: bool = False):
        if not timeline.events:
            which = f"this {timeline.source} timeline"
            raise ValueError(f"{which} has no events, and a film shows nothing else")
        self.timeline, self.title, self.asks = timeline, title, asks
        self.granularity = timeline.granularity

    def told(self) -> tuple[Events, str]:
        """The events that the film tells, all of them here, and in words which it leaves out."""
        return Events(self.timeline.events), ""

    @cached_property
    def data(self) -> dict:
        """What ``step_film.js`` plays."""
        events, left_out = self.told()
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
            "leftOut": left_out,
            "asks": self.asks,
            "parts": [[part.replace("_", " "), COLOUR[part]] for part in parts],
            "ops": ops,
            "lines": list(lines.values()),
            "spans": spans,
            # a birth is its bytes, a free the number of its birth, below zero
            "changes": [
                round_up(e.num_bytes, self.granularity) if e.num_bytes > 0 else -number_of[e.block]
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
        size, peak = format_bytes(self.timeline.peak_bytes), events.peak(self.granularity)
        return f"{self.title}: {len(events):,} events, peak {size} in the {events.moment(peak)}."

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
