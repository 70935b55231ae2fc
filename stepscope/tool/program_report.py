"""A report on a program nobody has run: its peak by part, moment and line, the cards it fits, what would help.

The changes that help most are tried on the program itself where that can be done from outside, and traced a second
time: only what was traced again is promised.
"""

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from weakref import WeakSet

import torch
import torch._functorch.config
from torch.nn.modules.module import (
    register_module_forward_pre_hook,
    register_module_module_registration_hook,
)
from torch.optim.optimizer import register_optimizer_step_post_hook

from memkit.cards import CARDS, CardMemory
from memkit.fit import Fit
from memkit.timeline import MemoryTimeline
from memkit.tracing.shapes import NeedsValues
from memkit.units import aligned_table, format_bytes, on_page
from stepscope.advice.changes import (
    ARGMAX_LOGITS,
    DEL_OUTPUTS,
    EIGHT_BIT,
    HALF_BATCH,
    LOADED_TO_HOST,
    LOSS_IN_PIECES,
    STEPS_IN_BACKWARD,
    WITHOUT_CACHE,
    Change,
    Effect,
    best_of_each_kind,
    helpful,
)
from stepscope.advice.diagnosis import (
    Diagnosis,
    Growing,
    changes_in_words,
    diagnose_memory,
    growth_in_words,
)
from stepscope.advice.left_out import LeftOut, fits_of, left_out_in_words, left_out_of
from stepscope.allocator.replay import Replay, replay_trace
from stepscope.tool.changed import (
    KeptOutputs,
    Loaders,
    changed_build,
    changes_for,
    compiled_checkpoints,
    configs_with_cache,
    difference,
    frozen_in_float32,
    half_batch_option,
    loads_noted,
    on_its_worst,
    watched,
)
from stepscope.tool.pieces import HEAD
from stepscope.tool.script import Script
from stepscope.tracing.log import (
    ABOUT_NUMBER,
    IS_COMPILED,
    KEPT_FOR_METRICS,
    LEAST_SHARE,
    OWN_LINE,
)
from stepscope.tracing.trace import trace_script

STEPS_OF_A_LEAK = 4
"""Fewer steps show no leak."""

WORTH_A_WORD = 1.25
"""Reserved bytes in so many times those that a card has to have are not what the program needs."""

LARGE_SHARE = 0.1
"""Of the peak: gradients that take less are not worth what freeing them at once forbids."""

NO_CARD_FITS = "no card of the table has room for it"
NUM_TRIED, NUM_CHANGES = 8, 3
"""So many of the cures that the trace points to are traced again, and so many that helped are shown."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What ``stepscope report`` shows: the trace and its replay, the page about its peak, and what follows."""

    name: str
    trace: MemoryTimeline
    replay: Replay
    left_out: tuple[LeftOut, ...]
    fits: tuple[Fit, ...]
    most_bytes: int  # as ``allocated_bytes``; more where it is compiled over checkpoints
    frozen_bytes: int = 0  # weights in float32 that are not trained
    batches: str = ""
    page: Diagnosis | None = None  # not before the first line is said
    changes: tuple[Effect, ...] = ()
    untried: tuple[str, ...] = ()  # what may help too, after so many traces or with a library

    @property
    def allocated_bytes(self) -> int:
        """Bytes allocated at the peak: the tensors', rounded up, and ends of blocks that are not split off."""
        return self.replay.peak_allocated_bytes

    @property
    def expected_bytes(self) -> int:
        """Bytes on the card at the peak: the tensors' and the expected bytes of what they leave out."""
        return self.most_bytes + sum(item.expected_bytes for item in self.left_out)

    @property
    def least_bytes(self) -> int:
        """What stands at the peak whatever a compiler makes of forward and backward."""
        return max(
            i.total_bytes
            - (i.activations + i.temporary) * i.name.startswith(("forward", "backward"))
            for i in self.trace.instants
        )

    @property
    def steps_bytes(self) -> int:
        """The most that stands in a step, once model and optimizer are made; with an untied head init may take more."""
        return max(i.total_bytes for i in self.trace.instants if not i.name.startswith("init"))

    @property
    def headline(self) -> str:
        """The peak, its moment, the program's own line then, and the least card that it fits, or the one asked."""
        line = self.trace.provenance.get(OWN_LINE, "")
        fit = self.fits[0]
        if len(self.fits) > 1:
            enough = [fit for fit in self.fits if fit.is_expected]
            fit = min(enough, key=lambda fit: CARDS[fit.card].memory_bytes, default=None)
        verdict = f"it {fit.predicate} on one {fit.card}" if fit else NO_CARD_FITS
        expected = format_bytes(self.expected_bytes)
        moment = self.trace.events.moment(self.replay.peak_event)
        allocated = format_bytes(self.allocated_bytes)
        where = f"in {moment}" + f", at {line}" * bool(line)
        total = f"{self.name}: {allocated} allocated at the peak, {where}; {expected} expected on the card: {verdict}."
        if IS_COMPILED in self.trace.provenance:
            least, most = map(format_bytes, (self.least_bytes, self.most_bytes))
            total = (
                f"{self.name}, compiled: between {least} and about {most} allocated at the peak "
            )
            total += f"({allocated} uncompiled, {where}); {expected} expected on the card, or less: {verdict}."
        return f"{self.batches}: {expected}; {verdict}.\n{total}" if self.batches else total

    @property
    def about(self) -> str:
        """What a reader of the number has to know, a sentence a line."""
        said = []
        if (unsplit := self.allocated_bytes - self.trace.peak_bytes) > 0:
            said.append(
                f"Of the first, {format_bytes(unsplit)} are ends of blocks that the allocator does not split off."
            )
        if self.steps_bytes < self.trace.peak_bytes:
            said.append(
                f"Making the model takes more than any step: the steps reach {format_bytes(self.steps_bytes)}."
            )
        if copied := self.trace.provenance.get("copies of the weights"):
            said.append(
                f"Of the weights {copied} are a second set, of the trained ones' sizes, "
                "that nobody trains: an average's, as EMA keeps it, a target or a reference model, a checkpoint "
                "that a name keeps, or gathered copies."
            )
        needed, cached = self.replay.allocator.needed_bytes, self.replay.peak_reserved_bytes
        if cached > WORTH_A_WORD * needed:
            said.append(
                f"Of the expected bytes {format_bytes(cached - needed)} are cached in whole free segments, which go "
                "back before a request fails: a smaller card may do."
            )
        if self.frozen_bytes > LEAST_SHARE * self.trace.peak_bytes:
            said.append(
                f"Of the weights {format_bytes(self.frozen_bytes)} are in float32 and not trained: half of that in "
                "bfloat16 (from_pretrained(dtype=torch.bfloat16); FSDP2 by Accelerate makes float32 of all weights)."
            )
        about = filter(None, self.trace.provenance.get(ABOUT_NUMBER, "").split("\n"))
        return "\n".join([*said, *(f"About this number: {words}." for words in about)])

    @property
    def details(self) -> str:
        """What grows, the step by moment and part, the lines at the peak, what is left out, and the cards."""
        fits = [["card", "memory left, expected", "verdict"]]
        fits += [
            [fit.card, format_bytes(fit.expected_bytes).replace("-", "−"), fit.verdict]
            for fit in self.fits
        ]
        lines = [("made at the peak by", "part", "blocks", "bytes")]
        lines += [line.row for line in self.page.lines]
        step = self.trace.for_step(self.trace.peak.step)
        words = left_out_in_words(self.left_out)
        tables = str(step), aligned_table(lines), words, aligned_table(fits)
        return "\n\n".join([*growth_in_words(self.page.growing), *tables])

    @property
    def advice(self) -> str:
        """What to change, before all tables."""
        untried = f"Not tried: {'; '.join(self.untried)}." if self.untried else ""
        return on_page(changes_in_words(self.changes), untried, self.details)

    def __str__(self) -> str:
        return "\n\n".join(filter(None, (self.headline, self.about, self.advice)))


def report_on(
    build: Callable,
    name: str = "program",
    steps: int = 2,
    say: Callable[[str], None] = lambda words: None,
    assume: Mapping[str, float] | None = None,
    num_batches: int = 0,
    card: CardMemory | None = None,
    begin: Callable[[str], None] = lambda text: None,
) -> Report:
    """Trace ``build`` on CUDA's rules, diagnose it, and trace the changes that help most.

    ``say`` is told what is being done, one line at a time; ``assume`` is ``trace_script``'s. ``num_batches``: a
    script's loader is asked for so many, and the script trains on the worst. ``card``: the one to be judged.
    ``begin`` is given the first line, and what is to be known about its number, before anything is traced again.

    Raises: what ``trace_script`` raises.

    >>> from memkit import TrainingSetup, models, training_build
    >>> report = report_on(training_build(TrainingSetup(model=models.TINY_GPT2, seq_len=64)))
    >>> "8-bit AdamW" in report.advice  # under "Not tried" where bitsandbytes is not installed
    True
    """
    steps += bool(num_batches)  # the second step's batch may have been fetched before the first
    traced = partial(trace_script, steps=steps, say=say, assume=assume)
    batches, script = "", build
    if num_batches:
        build, batches = on_its_worst(script, num_batches, traced, say)

    def trace_of(change: str) -> MemoryTimeline:
        """A trace of the program with this change; half the batches, and the worst of twice as many, are asked for."""
        if change != "half_batch" or not num_batches:
            return traced(changed_build(build, change))
        return traced(on_its_worst(changed_build(script, change), 2 * num_batches, traced, say)[0])

    say(f"tracing {steps} steps of {name}")
    first = FirstTrace()
    is_watched = isinstance(build, Script) and not num_batches
    with first.watching():
        trace = traced(watched(build, first.loaders) if is_watched else build)
    refuse_budget(trace)
    replay, left_out = replay_trace(trace), left_out_of(trace)
    most_bytes = replay.peak_allocated_bytes
    if first.checkpoints:
        with compiled_checkpoints({}, are_kept=True):
            most_bytes = max(most_bytes, replay_trace(traced(build)).peak_allocated_bytes)
    report = Report(
        name=name,
        trace=trace,
        replay=replay,
        left_out=left_out,
        fits=fits_of(left_out, most_bytes, card),
        most_bytes=most_bytes,
        frozen_bytes=sum(first.frozen),
        batches=batches or difference(first.loaders.seen),
    )
    begin(report.headline)
    if report.about:
        begin(report.about)
    say(f"replaying {len(trace.events):,} events")
    page = diagnose_memory(trace)
    report = replace(report, page=replace(page, growing=grown(page, traced, build, steps, say)))
    can_halve = not is_watched or first.loaders.by_loader or half_batch_option(build)[0]
    cures = first.cures(
        trace,
        page.cures,
        can_halve=bool(can_halve),
        can_step_early=isinstance(build, Script) and not build.ranks,
    )
    # nobody can halve from outside what build() makes
    can_be_made = [
        c for c in cures if c.program and (isinstance(build, Script) or c is not HALF_BATCH)
    ]
    untried = [cure.name for cure in can_be_made[NUM_TRIED:]]
    effects = verified(script, can_be_made[:NUM_TRIED], page, trace_of, say, untried)
    best = tuple(best_of_each_kind(helpful((*page.changes, *effects)), NUM_CHANGES))
    return replace(report, changes=best, untried=tuple(untried))


class FirstTrace:
    """What is seen of a program while it is traced as it stands, and which cures are then worth a second trace."""

    def __init__(self):
        self.loaders, self.kept = Loaders(), KeptOutputs()
        self.steps: Counter[tuple[int, str]] = Counter()  # of each optimizer
        self.possible: dict[Change, None] = {}  # what this program can take
        self.with_cache: list = []
        self.heads: WeakSet[torch.nn.Module | None] = WeakSet()
        self.frozen: list[int] = []  # of the first module that is called
        self.loads: dict[str, None] = {}
        self.checkpoints: dict[str, None] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Around the trace."""
        with ExitStack() as watches:
            for handle in (
                register_optimizer_step_post_hook(
                    lambda optimizer, *_: self.steps.update(
                        [(id(optimizer), type(optimizer).__name__)]
                    )
                ),
                register_module_module_registration_hook(self.made),
                register_module_forward_pre_hook(self.called),
            ):
                watches.callback(handle.remove)
            watches.enter_context(self.kept.watching())
            watches.enter_context(loads_noted(self.loads))
            watches.enter_context(compiled_checkpoints(self.checkpoints, are_kept=False))
            yield

    def called(self, module: torch.nn.Module, args: tuple) -> None:
        """A module is called; of the first one the weights are looked at, and a head makes logits for a loss."""
        if not self.frozen:
            self.frozen.append(frozen_in_float32(module))
        if module in self.heads and torch.is_grad_enabled():
            self.possible[LOSS_IN_PIECES] = None

    def made(self, parent: torch.nn.Module, name: str, child: torch.nn.Module | None) -> None:
        """A module is given a child."""
        self.with_cache += configs_with_cache(parent)
        self.possible |= dict.fromkeys(changes_for(parent, name, child))
        if name == HEAD:
            self.heads.add(child)

    def cures(
        self,
        trace: MemoryTimeline,
        of_page: Sequence[Change],
        *,
        can_halve: bool,
        can_step_early: bool,
    ) -> list[Change]:
        """Those to try, in their order: what everybody tries first, what this program shows, what its peak points
        to, ``of_page``, and what it can take.
        """
        loaded = f"{LOADED_TO_HOST.name} in {', '.join(self.loads)}"
        is_in_backward = trace.peak.name.startswith("backward")
        is_kept = self.kept.bytes_in_backward > LEAST_SHARE * trace.peak_bytes
        has_adam = any(name in ("Adam", "AdamW") for _, name in self.steps)
        # else a weight would be stepped by a gradient that is not whole, or by another loss's
        can_step_early &= len(self.steps) == 1 and self.kept.num_backwards <= self.steps.total()
        are_large = trace.peak.gradients > LARGE_SHARE * trace.peak_bytes
        # a name that holds the last outputs, and a cache among them
        holds = [self.kept.cure_of_forward] if self.kept.in_forward else []
        holds += [WITHOUT_CACHE] * bool(self.with_cache)
        of_peak = {HALF_BATCH: [], DEL_OUTPUTS: holds, EIGHT_BIT: [EIGHT_BIT] * has_adam}
        return [
            *[HALF_BATCH] * can_halve,
            *[replace(LOADED_TO_HOST, name=loaded)] * bool(self.loads),
            *([self.kept.cure_of_backward] if is_in_backward and is_kept else []),
            *[STEPS_IN_BACKWARD] * (can_step_early and are_large),
            *[ARGMAX_LOGITS] * (KEPT_FOR_METRICS in trace.provenance),
            *(change for cure in of_page for change in of_peak.get(cure, [cure])),
            *self.possible,
        ]


def refuse_budget(trace: MemoryTimeline) -> None:
    """Raises: ValueError: compiled by a budget, which may take more than any trace has."""
    budget = torch._functorch.config.activation_memory_budget
    if IS_COMPILED in trace.provenance and budget < 1:
        raise ValueError(
            f"activation_memory_budget={budget}: it bounds what is kept, and the peak may rise as it falls (pytorch "
            "#197838), above all that a trace has. Trace it without the budget, each block compiled by itself, or run "
            "it on a card with measure_memory"
        )


def tried(
    say: Callable,
    words: str,
    trace: Callable[[], MemoryTimeline],
    lacks: Callable[[Exception], None] = lambda error: None,
) -> MemoryTimeline | None:
    """A further trace of any program; None, and a word about it, where there is none.

    What the program prints, and what is said of its lines, stands there from the first trace. ``lacks`` is told of a
    library that is not installed here, and of a line that then asks for values: who reads the report can give both.
    """
    say(words)
    try:
        with (
            open(os.devnull, "w", encoding="utf-8", errors="replace") as nowhere,
            redirect_stdout(nowhere),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            return trace()
    except Exception as error:  # noqa: BLE001 - what cannot be done to a program is not advised
        say(f"not traced ({type(error).__name__}: {error})")
        if isinstance(error, (ImportError, NeedsValues)):
            lacks(error)
        return None


def grown(
    page: Diagnosis, traced: Callable, build: Callable, steps: int, say: Callable
) -> tuple[Growing, ...]:
    """What still grows over four steps: a batch that is fetched ahead grows once, and a leak goes on."""
    if not page.growing or steps >= STEPS_OF_A_LEAK:
        return page.growing
    words = f"tracing {STEPS_OF_A_LEAK} steps, for something grows"
    longer = tried(say, words, partial(traced, build, steps=STEPS_OF_A_LEAK))
    return page.growing if longer is None else diagnose_memory(longer).growing


def verified(
    build: Callable,
    cures: Sequence[Change],
    page: Diagnosis,
    trace_of: Callable,
    say: Callable,
    untried: list[str],
) -> Iterator[Effect]:
    """The cures, each known by a trace of the program with that change, ``trace_of(name)``.

    One whose library is not installed here, or that asks for values, goes to ``untried`` with what to type.
    """
    option = half_batch_option(build)[0] if isinstance(build, Script) else ""
    for cure in cures:
        trace = tried(
            say,
            f"tracing again: {cure.name}",
            partial(trace_of, cure.program),
            lambda error, name=cure.name: untried.append(f"{name} ({error})"),
        )
        if trace is None:
            continue
        name = f"{cure.name} ({option})" if option and cure is HALF_BATCH else cure.name
        yield Effect(
            change=replace(cure, name=name),
            before_bytes=page.peak_reserved_bytes,
            after_bytes=replay_trace(trace).peak_reserved_bytes,
            how="second trace" + ", uncompiled" * (IS_COMPILED in trace.provenance),
        )
