"""The memory of a training step by formula: no PyTorch, no data, milliseconds.

``estimate_memory(setup)`` writes the list of the model's operations, walks it forward and back, and lets the optimizer
step. At each instant it adds up what is alive, part by part. The peak is a maximum over instants, not a sum of parts:
gradients appear while activations are freed. Layers that are alike are walked once and multiplied. The timeline's
events, one block after another, are written out when somebody asks for them.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain, count, groupby
from operator import itemgetter
from typing import NamedTuple

from memkit.formula.liveness import FREED, Allocations, Segment, Walk
from memkit.formula.model import model_of
from memkit.formula.run import Run, free_gradients, run_of
from memkit.recipes import OptimizerConfig
from memkit.setup import TrainingSetup
from memkit.strategies import NONE
from memkit.timeline import MAX_STEPS, PARTS, Event, Events, Instant, MemoryTimeline
from memkit.units import ALLOCATOR_BLOCK_BYTES, as_whole_number, shown


class Usage:
    """What a segment of events adds up to: ``change`` by part, and the parts at its first highest moment."""

    def __init__(self, segment: Segment, keeps_events: bool = True):
        self.times, self.events = segment.times, segment.events if keeps_events else ()
        self.change = dict.fromkeys(PARTS, 0)
        self.highest = dict(self.change)
        total = highest = 0
        for block, sign in segment.events:
            self.change[block.part] += sign * block.num_bytes
            total += sign * block.num_bytes
            if total > highest:
                self.highest, highest = dict(self.change), total


class Phase(NamedTuple):
    """A segment of the step that ends in an instant."""

    name: str
    usages: Sequence[Usage]
    step: int = 1
    micro_batch: int = 1


@dataclass(frozen=True)
class MicroBatch:
    """The sums of one: its phases, and what goes later: the gradient of the loss, the loss, and all gradients."""

    forward: tuple[Usage, ...]
    backward: tuple[Usage, ...]
    loss_gradient: tuple[Usage, ...]
    loss: tuple[Usage, ...]
    zero_grad: tuple[Usage, ...]


def run_micro_batch(
    run: Run,
    setup: TrainingSetup,
    *,
    is_whole: bool,
    makes_states: bool = False,
    accumulates: tuple[bool, ...] = (False,),
) -> list[MicroBatch]:
    """A micro-batch for each answer to ``accumulates``, from one walk; with its events if it ``is_whole``.

    ``makes_states``: an optimizer that steps in the backward makes its states in this one.
    """
    setup = run.computes(setup)
    walk = Walk(model_of(setup, is_whole), last_first=run.use(setup) is not None)

    def sums(segments: Iterable[Segment]) -> tuple[Usage, ...]:
        return tuple(Usage(segment, is_whole) for segment in segments)

    forward = sums(run.forward(walk))
    loss_gradient, loss = (
        sums([Segment(1, 0, [(block, FREED) for block in blocks])])
        for blocks in ([walk.loss_gradient], walk.with_loss)
    )
    backwards = [
        run.backward(setup, walk, accumulates=each, makes_states=makes_states)
        for each in accumulates
    ]
    return [
        MicroBatch(forward, sums(backward), loss_gradient, loss, sums(free_gradients(backward)))
        for backward in backwards
    ]


remembered = lru_cache(maxsize=512)(run_micro_batch)
"""For the sums alone, which have no events."""


def instants_of(phases: Iterable[Phase]) -> Iterator[Instant]:
    """Let phases happen: the bytes by part at the peak of each, unless it only makes or only frees, and at its end."""
    now = dict.fromkeys(PARTS, 0)
    for name, usages, step, micro_batch in phases:
        peak, peak_bytes = now, sum(now.values())
        for each in usages:
            # a phase is highest in its first or in its last repetition
            for times in {0, each.times - 1}:
                parts = {
                    part: now[part] + times * each.change[part] + each.highest[part]
                    for part in PARTS
                }
                if sum(parts.values()) > peak_bytes:
                    peak, peak_bytes = parts, sum(parts.values())
            now = {part: now[part] + each.times * each.change[part] for part in PARTS}
        if name not in ("init", "zero_grad"):
            yield Instant(name=f"{name} peak", **peak, step=step, micro_batch=micro_batch)
        yield Instant(name=name, **now, step=step, micro_batch=micro_batch)


def estimate_memory(setup: TrainingSetup, steps: int = 2) -> MemoryTimeline:
    """Bytes at every instant of ``steps`` training steps, by formula; states exist from the first optimizer step on.

    A recipe that torch does not run (a master copy) is taken to update in fused kernels or in
    torch's ``foreach`` way, as its ``implementation`` says, and to cast gradients without a copy.

    Raises: ValueError: ``setup`` is no ``TrainingSetup``; there is no formula for its strategy (offload, reentrant);
    or ``steps`` is not a whole number above 0.

    >>> from memkit import TrainingSetup, models, recipes
    >>> setup = TrainingSetup(model=models.LLAMA_2_7B, precision=recipes.PURE_BF16, seq_len=512)
    >>> peak = estimate_memory(setup).peak
    >>> peak.name, peak.total_bytes
    ('optimizer peak', 67384156672)
    """
    if not isinstance(setup, TrainingSetup):
        raise ValueError(f"setup={shown(setup)} is no TrainingSetup(model=...)")
    return estimate_run(run_of(setup), setup, steps)


def estimate_run(run: Run, setup: TrainingSetup, steps: int = 2) -> MemoryTimeline:
    """``estimate_memory`` of a setup that runs in this way."""
    strategy = setup.recomputation
    if strategy.is_reentrant or strategy.scope == "host":
        raise ValueError(f"strategy {strategy.name!r} has no formula for its peak; trace it")
    run.check(setup)
    steps = as_whole_number("steps", steps, 1, MAX_STEPS)
    instants = tuple(instants_of(phases(setup, steps, run)))
    events = Events(partial(written_events, setup, steps, run))
    how = {"source": "formula", "device": setup.device, "left_out": run.left_out(setup)}
    return MemoryTimeline(instants=instants, events=events, **how)


@lru_cache(maxsize=8192)
def second_step(setup: TrainingSetup) -> MemoryTimeline:
    """The second step, with two micro-batches at most: a third is as high as the second. Each later step is like it."""
    num_batches = min(setup.grad_accum_steps, 2)
    return estimate_memory(replace(setup, grad_accum_steps=num_batches)).for_step(2)


def phases(setup: TrainingSetup, steps: int, run: Run, is_whole: bool = False) -> Iterator[Phase]:
    """The phases of the steps in order. What is freed after a backward goes to the phase after it."""
    key = replace(setup, grad_accum_steps=1, sets_grads_to_none=True)
    # all such optimizers share a micro-batch; a planner asks for many
    if run.use(setup) is None:
        key = replace(key, optimizer=OptimizerConfig())
    batches = run_micro_batch if is_whole or run is not run_of(setup) else remembered
    does_accumulate = setup.grad_accum_steps > 1 or not setup.sets_grads_to_none
    each = (False, True) if does_accumulate else (False,)
    first, *later = batches(run, key, is_whole=is_whole, accumulates=each)
    has_step = run.has_optimizer_step(setup)
    [first_of_all] = (
        [first] if has_step else batches(run, key, is_whole=is_whole, makes_states=True)
    )
    # What no batch changes is written once and remembered.
    bare = replace(
        setup, micro_batch_size=1, seq_len=1, attention="stored", recomputation=NONE, dropout=0.0
    )
    is_repeated = run.is_repeated and not is_whole
    temporaries, freed, accumulates = written(run.write_step, bare), (), False
    yield Phase("init", written(run.write_weights, bare, is_repeated))
    for step in range(1, steps + 1):
        loss = ()
        for number in range(1, setup.grad_accum_steps + 1):
            batch = later[0] if accumulates else first_of_all if step == 1 else first
            # the name ``loss`` moves on
            yield Phase("forward", freed + batch.forward + loss, step, number)
            yield Phase("backward", batch.backward, step, number)
            freed, loss, accumulates = batch.loss_gradient, batch.loss, True
        if has_step:
            states = written(run.write_states, bare, is_repeated) if step == 1 else ()
            yield Phase("optimizer", freed + states + temporaries, step)
            freed = ()
        # Later micro-batches add to the first one's gradients and leave none of their own.
        zeroed = first.zero_grad if setup.sets_grads_to_none else ()
        accumulates = not setup.sets_grads_to_none
        yield Phase("zero_grad", freed + zeroed + loss, step)
        freed = ()


@lru_cache(maxsize=64)
def written(write: Callable, setup: TrainingSetup, is_repeated: bool = False) -> tuple[Usage, ...]:
    """What ``write`` writes. ``is_repeated``: it frees nothing, so that one layer stands for those that are alike."""
    if is_repeated:
        setup = replace(setup, model=setup.model.one_of_each)
    record = Allocations(ALLOCATOR_BLOCK_BYTES if setup.device == "cuda" else 1)
    write(setup, record)
    by_times = defaultdict(list)
    for event in record.events:
        by_times[event[0].times].append(event)
    return tuple(Usage(Segment(times, 0, events)) for times, events in by_times.items())


def written_events(setup: TrainingSetup, steps: int, run: Run) -> Iterator[Event]:
    """Every allocation and free of the steps: all layers written out, each block with a number of its own."""
    alive = defaultdict(deque)  # a segment that comes again: the oldest block is freed first
    numbers = count()
    for name, usages, step, micro_batch in phases(setup, steps, run, is_whole=True):
        events = chain.from_iterable(each.events for each in usages)
        for sign, neighbours in groupby(events, key=itemgetter(1)):
            numbered = [
                (next(numbers) if sign > 0 else alive[block].popleft(), block)
                for block, _ in neighbours
            ]
            for number, block in sorted(numbered, key=itemgetter(0)):
                if sign > 0:
                    alive[block].append(number)
                size, of_block = sign * block.asked_bytes, (block.op, block.where)
                when = {"step": step, "micro_batch": micro_batch}
                yield Event(number, size, block.part, name, *of_block, **when)
