"""What a script's trace notes beside the kit's log: how far it has come, what it leaves out, its evaluations.

Left out are workspaces of cuDNN, cuSOLVER and cuFFT and compiled steps. A library decides by itself, by card and
version, what it takes beside an operation's results. The trace names it once, with the first call's place. On the
CPU's rules the same is said of every operation that is no transformer's: measure it there.
"""

import functools
import sys
import time
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import accumulate, compress

import torch

from memkit.program.log import Log, Mark, Moment
from memkit.tracing.trace import LeftOut
from memkit.units import format_bytes
from stepscope.tracing.refusals import calling_frame, own_line

OPERATIONS_BETWEEN_LOOKS, SECONDS_BETWEEN_WORDS = 1000, 2.0
LONG_EVALUATION = 20_000
"""Operations of one evaluation after which its reader is told why it takes so long."""
LISTENER: ContextVar[Callable[[str], object] | None] = ContextVar("listener", default=None)
"""Who is told of every trace that is given no ``say``, a planner's too: the line under a notebook's cell."""


class Progress:
    """Counts operations and tells ``say``, every two seconds, where the program is: phase, line and count."""

    def __init__(self, say: Callable[[str], object] | None = None, steps: int = 1):
        self.say, self.steps = say or LISTENER.get(), steps
        self.num_operations = 0
        self.phase, self.started_at = "", 0  # and how many operations had run when it began
        self.has_said_why = False
        self.said_at = time.monotonic()

    def one_more(self, log) -> None:
        """Another operation is about to run; the clock is read once in a thousand."""
        self.num_operations += 1
        if self.say is None or self.num_operations % OPERATIONS_BETWEEN_LOOKS:
            return
        if self.phase != log.phase:
            self.phase, self.started_at = log.phase, self.num_operations
        if time.monotonic() - self.said_at >= SECONDS_BETWEEN_WORDS:
            step = f"step {log.step} of {self.steps}, {log.phase}"
            where = "build" if log.phase == "init" else step
            self.say(f"{where}: {self.num_operations:,} operations so far, now {own_line()}")
            self.said_at = time.monotonic()
        is_long = self.num_operations - self.started_at >= LONG_EVALUATION
        if log.phase in ("zero_grad", "evaluation") and is_long and not self.has_said_why:
            self.has_said_why = True
            self.say(
                f"calls of an evaluation that are alike are followed once; those of {own_line()} differ, as where "
                "words are made one by one, and each is followed: make it shorter for this trace (a cache that it "
                "keeps is then shorter too)"
            )


LEAST_SHARE = 0.01
"""Of the peak: what takes less is not worth a sentence."""


class ScriptLeftOut(LeftOut):
    """What the kit's trace leaves out, and compiled steps; told once, in warnings."""

    def __init__(self):
        super().__init__()
        self.largest_compiled = (0, "")

    def meet_compiled(self, name: str, num_bytes: int, place: str) -> None:
        """Remember the largest compiled step, by its code uncompiled: of torchao's AdamW 53 B a value, and not 8."""
        where = f"{place}: " if place else ""
        self.largest_compiled = max(self.largest_compiled, (num_bytes, f"{where}{name}"))

    def tell(self, peak_bytes: int) -> list[str]:
        """Warn once for each library, once for the CPU, and for a compiled step of note; returns the warnings."""
        texts, (num_bytes, where) = self.texts(peak_bytes), self.largest_compiled
        if num_bytes > LEAST_SHARE * peak_bytes:
            text = f"{where}: the workspace that a compiled step takes is not in the trace"
            texts.append(f"{text}, at most {format_bytes(num_bytes)}")
        frame = calling_frame()
        for text in texts:
            warnings.warn_explicit(text, UserWarning, frame.f_code.co_filename, frame.f_lineno)
        return texts


def as_compiled(tracer, compile, model=None, **options):
    """``torch.compile`` for a trace: a function without gradients is one kernel, all else runs as it is.

    ``compile`` is the one that it stands for: Lightning has put its own in torch's place, and wants it called.
    """
    if model is None:
        return functools.partial(as_compiled, tracer, compile, **options)
    if isinstance(model, torch.nn.Module):
        return compile(model, **options)

    @functools.wraps(model)
    def run(*args, **kwargs):
        if torch.is_grad_enabled():
            return compile(model, **options)(*args, **kwargs)
        start = len(tracer.log.events)
        try:
            return model(*args, **kwargs)
        finally:
            place = tracer.lines.of(sys._getframe(1))
            tracer.left_out.meet_compiled(model.__name__, tracer.log.leave_out(start), place)

    return run


ABOUT_NUMBER, OWN_LINE, KEPT_FOR_METRICS = "about the number", "own line", "kept for metrics"
IS_COMPILED = "is compiled"
"""In a timeline's provenance: what a reader of its peak has to know, a sentence a line; the program's line then; where
a ``Trainer`` keeps the logits of its evaluation; whether ``torch.compile`` was to run."""


BETWEEN_STEPS = "evaluation", "save", "load"
"""Phases that a script may have after an optimizer's step: a module runs without gradients, or a file of tensors is
written or read."""


@dataclass(slots=True)
class ScriptLog(Log):
    """``tops`` are the events at which more stood than ever before, the bytes, and the program's own line then."""

    live_bytes: int = 0
    tops: list[tuple[int, int, str]] = field(default_factory=lambda: [(-1, 0, "")])

    @property
    def moment(self) -> Moment:
        """Now; an evaluation is one, however many batches it has."""
        if self.phase not in BETWEEN_STEPS:
            return Log.moment.fget(self)
        here = self.phase, self.step
        earlier = sum((mark.name, mark.step) == here for mark in self.marks)
        return Moment(*here, 1 + earlier)

    def allocate(self, num_bytes: int, op: object, place: object = None) -> int:
        """A block is born; at a new peak the program's own line is noted."""
        block = Log.allocate(self, num_bytes, op, place)
        self.live_bytes += num_bytes
        if self.live_bytes > self.tops[-1][1]:
            self.tops.append((len(self.events) - 1, self.live_bytes, own_line()))
        return block

    def free(self, block: int) -> None:
        """A block is freed."""
        Log.free(self, block)
        self.live_bytes -= self.sizes[block]

    def leave_out(self, start: int) -> int:
        """Forget the blocks born and freed since position ``start`` of ``events``: a kernel held them in registers.

        Returns the bytes of those that stood together at most.
        """
        self.tops = [top for top in self.tops if top[0] < start]
        recent = self.events[start:]
        blocks = set(recent) & {~event for event in recent}
        gone = [event for event in recent if max(event, ~event) in blocks]
        kept = [max(event, ~event) not in blocks for event in recent]
        for items in (self.events, self.moments):
            items[start:] = compress(items[start:], kept)
        changes = (self.sizes[e] if e >= 0 else -self.sizes[~e] for e in gone)
        return max(accumulate(changes), default=0)

    def start_update(self) -> None:
        """A program writes over its weights itself: what came after the backward belongs to that."""
        self.start_optimizer()
        start = self.marks[-1].position
        self.moments[start:] = [self.moment] * len(self.moments[start:])
        for block in (event for event in self.events[start:] if event >= 0):
            self.births[block] = self.births[block]._replace(phase=self.phase)

    def line_at(self, event: int) -> str:
        """The program's own line at the highest peak up to this event."""
        return next((line for number, _, line in reversed(self.tops) if number <= event), "")

    def start_between(self, phase: str) -> None:
        """After an optimizer's step one of ``BETWEEN_STEPS`` begins; it lasts until the next one, or the next step."""
        if phase != self.phase and self.phase in ("zero_grad", *BETWEEN_STEPS):
            name, _, count = self.moment
            self.mark(name, count)
            self.phase = phase

    def end_step(self) -> None:
        """The training step has returned; an evaluation that came in it ends with it."""
        name, step, count = self.moment
        Log.end_step(self)
        if name in BETWEEN_STEPS:
            self.marks[-1] = Mark(self.marks[-1].position, name, step, count)
