"""Everything about one text: who held the card, in which phase, by which line, which row of the table it is.

What decides: a limit or a neighbour without which the request would have been granted; else the phase, where its
frames name one cause; else pieces that are as large together as the request; else where in the step it was. A text
that has none of them gets no row.
"""

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass

from memkit.fit import CONTEXT_BYTES
from memkit.units import Printable, aligned_table, format_bytes, on_page
from stepscope.why.emergency import EMERGENCY
from stepscope.why.message import Message, messages_in, size_in
from stepscope.why.signs import Sign, signs_in
from stepscope.why.tracebacks import (
    BACKWARD,
    DECIDING,
    Frame,
    Phase,
    frames_in,
    frames_of,
    own_lines,
    phase_of,
    streams_of,
)

PASTE = "the last lines of the run, from 'Traceback (most recent call last)' on, or torch.cuda.memory_summary()"

LATE_STEP = 5
"""From this step on all states, temporaries and ordinary batches have been there before."""

STEPS = re.compile(
    r"(?m)^(?P<what>[^\n]*?)(?:(?<![\d.])(?P<bar>\d{1,9})(?:/\d+|it) \[\d+:\d\d|\[ *(?P<log>\d{1,9})/\d+\])"
)
"""A progress bar of tqdm, and the ``[1330/3696]`` of many training logs."""

NO_STEPS = re.compile(r"(?i)load|map|download|token|filter|split|fetch|eval|valid|predict|saving")
"""What a line counts that is no training step."""

NUM_OWN_LINES = 3

OWN_BYTES = 3 * CONTEXT_BYTES
"""A process's own context and libraries take less than this outside PyTorch; so it is no sign of a neighbour."""

TOGETHER = 64
"""Processes whose numbers differ by less are mostly of one start."""

MANY_PIECES = 8
"""Where more than one part in so many of what is reserved is in pieces, pieces are the matter."""


@dataclass(frozen=True, kw_only=True)
class Death:
    """One failure of one rank or process: an allocator's message or a ``sign``, and the frames above it."""

    rank: str
    frames: tuple[Frame, ...]
    step: int | None
    message: Message | None = None
    sign: Sign | None = None
    says: str = ""

    @property
    def phase(self) -> Phase | None:
        """What the program was doing."""
        return phase_of(self.frames)

    @property
    def key(self) -> tuple:
        """Two with one key died alike."""
        line = next(iter(own_lines(self.frames)), None)
        return self.sign, self.phase, line and (line.file, line.line), self.message is None


@dataclass(frozen=True, kw_only=True)
class Answer(Printable):
    """What a text says about the first failure in it; ``alike`` died the same way, ``others`` otherwise.

    ``row`` is the name of a row of ``EMERGENCY``, None where none is known to fit.
    """

    death: Death
    row: str | None
    because: str
    first: str
    alike: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    @property
    def own_lines(self) -> list[Frame]:
        """The reader's own lines, nearest to the failure first."""
        return own_lines(self.death.frames)

    @property
    def when(self) -> str:
        """Phase, step and lines in words; nothing where no phase is asked for.

        The host's memory or a worker's ends a program anywhere: its lines then tell nothing.
        """
        phase, step = self.death.phase, self.death.step
        if self.row in ("host", "shared memory"):
            return ""
        if phase is None:
            is_on_card = self.death.sign is None
            return "Without a traceback the text does not say in which phase." if is_on_card else ""
        where = f"Phase: {phase.name}" + (f", at step {step:,} of the log" if step else "")
        lines = self.own_lines[:NUM_OWN_LINES]
        if not lines:
            return (
                f"{where}\nNo frame is of a file of yours; the innermost is {self.death.frames[-1]}"
            )
        called = "".join(f"\n- called by {line}" for line in lines[1:])
        return f"{where}\nYour line: {lines[0]}{called}"

    @property
    def table(self) -> list[tuple[str, str, str]]:
        """Who holds the card."""
        message = self.death.message
        rows = [("who holds the card", "bytes", "of it")]
        for name, size in message.pieces:
            share = f"{size / message.total:.0%}" if message.total else "–"
            rows.append((name, format_bytes(size), share))
        return rows

    def __str__(self) -> str:
        message = self.death.message
        parts = [self.because, self.when]
        if self.first:
            row = EMERGENCY.get(self.row)
            # what a row says of the text, where the text says it
            seen = {"neighbour": message and message.others, "forward": self.death.phase}
            is_so = row and seen.get(self.row, True)
            known = f"Of the ways to die: {row.dies} (chapter {row.chapter}). " if is_so else ""
            parts.append(f"{known}Type first: {self.first}")
        if message and len(self.table) > 1:
            parts += [aligned_table(self.table), "\n".join(message.arithmetic)]
        if message and (wrong := tuple(message.contradictions)):
            parts.append(
                f"The message contradicts itself: {'; '.join(wrong)}. One of them is quoted wrongly, or is of "
                "another moment."
            )
        if message and message.missing:
            parts.append(f"Not in the message: {'; '.join(message.missing)}.")
        if self.alike:
            parts.append(f"{len(self.alike)} more died alike: {', '.join(self.alike)}.")
        parts += [f"Further down: {words}." for words in self.others]
        return on_page(*parts)

    def as_data(self) -> dict:
        """As plain data; sizes are bytes."""
        death, message = self.death, self.death.message
        row = EMERGENCY.get(self.row)
        return {
            "row": self.row,
            "because": self.because,
            "first": self.first,
            "chapter": row and row.chapter,
            "phase": death.phase and death.phase.name,
            "step": death.step,
            "own_lines": [fields_of(frame) for frame in self.own_lines],
            "message": asdict(message) | {"others": dict(message.others)} if message else None,
            "holders": dict(message.pieces) if message else {},
            "outside_bytes": message and message.outside,
            "contradictions": list(message.contradictions) if message else [],
            "missing": list(message.missing) if message else [],
            "rank": death.rank,
            "alike": list(self.alike),
            "others": list(self.others),
        }


def fields_of(frame: Frame) -> dict:
    """A frame as plain data."""
    return {"file": frame.file, "line": frame.line, "function": frame.function, "code": frame.code}


def why_it_died(text: str) -> Answer:
    """What a message, a traceback, a log of ranks or a ``memory_summary`` says about its first failure.

    Raises: ValueError: nothing in the text says that memory ran out.

    >>> message = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB. GPU 0 has a total capacity "
    >>> message += "of 31.36 GiB of which 471.69 MiB is free. Including non-PyTorch memory, this process has 16.63 GiB "
    >>> message += "memory in use. Process 19239 has 14.26 GiB memory in use. Of the allocated memory 15.03 GiB is "
    >>> message += "allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated."
    >>> why_it_died(message).row
    'neighbour'
    """
    lines = text.replace("\r", "\n")
    steps = [line for line in STEPS.finditer(lines) if not NO_STEPS.search(line["what"])]
    step = int(steps[-1]["bar"] or steps[-1]["log"]) if steps else None
    streams = streams_of(text).items()
    deaths = [death for rank, stream in streams for death in deaths_in(rank, stream, step)]
    deaths.sort(key=lambda death: bool(death.sign and death.sign.is_echo))
    if not deaths:
        if summary := summary_in(text):
            return of_summary(summary)
        begins = " ".join(text.split())[:60]
        what = f"the text begins {begins!r}" if begins else "it is empty"
        raise ValueError(f"nothing here says that memory ran out ({what}); paste {PASTE}")
    first, *rest = deaths
    row, because, what = verdict_on(first)
    alike = [death for death in rest if death.key == first.key]
    ranks = dict.fromkeys(f"rank {death.rank}" if death.rank else "again" for death in alike)
    others = {death.key: verdict_on(death)[1] for death in rest if death.key != first.key}
    return Answer(
        death=first,
        row=row,
        because=because,
        first=what,
        alike=tuple(ranks),
        others=tuple(words.rstrip(".") for words in others.values()),
    )


def deaths_in(rank: str, text: str, step: int | None) -> list[Death]:
    """The failures of one rank, in their order; one that is quoted twice is there once, with its frames."""
    frames = frames_in(text)
    found: dict[object, tuple[int, Death]] = {}

    def add(start: int, **what: object) -> None:
        sign = what.get("sign")
        above = () if sign and sign.is_echo else tuple(frames_of(text, frames, start))
        _, known = found.get(tuple(what.values()), (0, None))
        if known is None or len(above) > len(known.frames):
            found[tuple(what.values())] = start, Death(rank=rank, frames=above, step=step, **what)

    messages = list(messages_in(text))
    for start, message in messages:
        add(start, message=message)
    for start, sign, says in signs_in(text):
        if not messages or sign.row not in (
            "outside",
            None,
        ):  # a message says the same, with numbers
            add(start, sign=sign, says=says)
    return [death for _, death in sorted(found.values(), key=lambda one: one[0])]


def verdict_on(death: Death) -> tuple[str | None, str, str]:
    """The row, the reason in a sentence, and what to type first."""
    message, phase = death.message, death.phase
    if death.sign:
        row, first = death.sign.row, death.sign.first
        if row == "outside" and phase in DECIDING:
            row, first = phase.row, phase.first
        return row, death.says + ".", first or EMERGENCY[row].first
    where = f" ({phase.name})" if phase else ""
    asked = f"A request failed{where}"
    if message.tried is not None:
        asked = f"{format_bytes(message.tried)} were asked for{where}"
    if decided := by_numbers(message, limit, neighbour):
        row, words, first = decided
    elif death.rank.isdecimal() and int(death.rank) > 0 and message.gpu == 0:
        row, first = "card 0", ""
        words = f"rank {death.rank} asked card 0 for them, rank 0's where every rank sees all cards"
    elif phase in DECIDING:
        row, first = phase.row, phase.first
        words = f"{held(message)}. It is mostly this: {EMERGENCY[row].cause}"
    elif decided := by_numbers(message, graphs, one_tensor, holes):
        row, words, first = decided
    elif phase is None:
        row, words, first = None, held(message), f"paste the traceback too: {PASTE}"
    elif death.step and death.step >= LATE_STEP:
        row, first = "longest", ""
        words = (
            f"{held(message)}. {death.step - 1:,} steps went well before: the longest batch, if the next run dies at "
            "this step too; what grows, if less is free after each step"
        )
    else:
        row, first = phase.row, phase.first
        words = held(message)
        if phase is BACKWARD and not any(names_words(frame) for frame in death.frames):
            first = EMERGENCY["forward"].first
            words += ". As a backward begins all activations stand, of a language model mostly the logits"
        elif row:
            words += f". It is mostly this: {EMERGENCY[row].cause}"
    return row, f"{asked}, and {words}.", first or EMERGENCY[row].first


Decided = tuple[str | None, str, str] | None


def by_numbers(message: Message, *rules: Callable[[Message], Decided]) -> Decided:
    """What the first of these rules that applies says; a message without its request has no numbers to go by."""
    return next(filter(None, (rule(message) for rule in rules if message.tried is not None)), None)


def limit(message: Message) -> Decided:
    """A limit of this process, or more free than was asked for."""
    if message.allowed is not None:
        words = f"this process may reserve {format_bytes(message.allowed)} and no more"
        return None, words, "look for torch.cuda.set_per_process_memory_fraction, which sets that"
    if message.free is None or message.free <= message.tried + message.error:
        return None
    words = (
        f"{format_bytes(message.free)} are said to be free: a neighbour gave bytes back in between, or a limit holds "
        "that the message does not know (the driver's, a container's, that of a share of the card)"
    )
    return None, words, "watch nvidia-smi (rocm-smi) while it runs; run it alone on the card"


def neighbour(message: Message) -> Decided:
    """Other processes without which the request would have been granted."""
    beside, is_known = message.beside, message.in_use is not None
    if beside is None or message.tried > message.free + beside:
        return None
    if beside < max(message.total // 10, 0 if is_known else max(message.total // 4, OWN_BYTES)):
        return None
    words = f"{format_bytes(beside)} of the card are held outside this process's PyTorch, by whom is not said"
    if is_known:
        named = ", ".join(f"process {number}" for number in message.neighbours)
        words = f"{format_bytes(beside)} of the card are another process's ({named or 'which, is not said'})"
        if len(numbers := sorted(message.neighbours)) > 1 and numbers[-1] - numbers[0] < TOGETHER:
            words += (
                ", which were started together: perhaps your own ranks or workers, all on this card"
            )
    return "neighbour", f"{words}: without that {format_bytes(message.free + beside)} were free", ""


def graphs(message: Message) -> Decided:
    """Pools of CUDA graphs that have what was asked for, and give it to nobody else."""
    if not message.private or message.private < message.tried:
        return None
    words = f"{format_bytes(message.private)} are free in the pools of CUDA graphs, which only the graphs may use"
    return "compile", words, ""


def one_tensor(message: Message) -> Decided:
    """One request for most of the card."""
    if not message.total or message.tried <= message.total // 2:
        return None
    words = f"that is one tensor of {message.tried / message.total:.0%} of the card"
    first = "look at the shapes of your line: attention without flash, a one-hot, two vectors that broadcast"
    return "forward", words, first


def holes(message: Message) -> Decided:
    """Pieces that would have been enough, in one."""
    if message.in_pieces is None or message.in_pieces < message.tried:
        return None
    if MANY_PIECES * message.in_pieces < message.reserved:
        return None
    words = f"{format_bytes(message.in_pieces)} are reserved and not allocated, in pieces of which none is that large"
    return "holes", words, ""


def names_words(frame: Frame) -> bool:
    """Whether a frame is of a language model, whose logits are as many for each token as there are words."""
    return bool(
        re.search(r"(?i)logits|lm_head|causal|/transformers/|/trl/", f"{frame.path} {frame.code}")
    )


def held(message: Message) -> str:
    """Who holds most of the card, in words."""
    if not message.total or message.allocated is None:
        return "the text does not say who holds the card"
    name, num_bytes = max(message.pieces, key=lambda piece: piece[1])
    return f"{format_bytes(num_bytes)} of the card's {format_bytes(message.total)} are {name}"


SUMMARY = re.compile(
    r"CUDA memory summary, device ID (\d+).*?CUDA OOMs: (\d+)(?P<table>.*)", re.DOTALL
)
SUMMARY_ROW = re.compile(
    r"\| (Allocated|Active|GPU reserved|Non-releasable|Requested) memory +\| +(\d+) (\w+) +\| +(\d+) (\w+) +\|"
)


@dataclass(frozen=True)
class Summary:
    """What ``torch.cuda.memory_summary`` prints: a card, its failures, and bytes by name, now and at the peak."""

    gpu: int
    num_failed: int
    now: dict[str, int]
    peak: dict[str, int]


def summary_in(text: str) -> Summary | None:
    """The memory summary in a text."""
    found = SUMMARY.search(text)
    rows = SUMMARY_ROW.findall(found["table"]) if found else []
    if not rows:
        return None
    now = {name: size_in(*now) for name, *now, _, _ in rows}
    peak = {name: size_in(*peak) for name, _, _, *peak in rows}
    return Summary(int(found[1]), int(found[2]), now, peak)


def of_summary(summary: Summary) -> Answer:
    """What a summary says; it has no request and no phase."""
    now, peak = summary.now, summary.peak
    allocated, reserved = now["Allocated"], now["GPU reserved"]
    pieces = now.get("Non-releasable", reserved - allocated)
    message = Message(
        backend="CUDA",
        tried=None,
        gpu=summary.gpu,
        allocated=allocated,
        in_pieces=reserved - allocated,
    )
    because = (
        f"PyTorch has reserved {format_bytes(reserved)} on card {summary.gpu}, of which {format_bytes(allocated)} are "
        f"tensors' and {format_bytes(pieces)} in pieces between them; tensors had {format_bytes(peak['Allocated'])} at "
        f"the peak, and {summary.num_failed} requests failed"
    )
    is_holes = MANY_PIECES * pieces > reserved
    first = (
        EMERGENCY["holes"].first if is_holes else f"paste the message and its traceback: {PASTE}"
    )
    return Answer(
        death=Death(rank="", frames=(), step=None, message=message),
        row="holes" if is_holes else None,
        because=because + ".",
        first=first,
    )
