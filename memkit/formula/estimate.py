"""The memory of a training step by formula: no PyTorch, no data, milliseconds.

``estimate_memory(setup)`` makes the states, runs the model on paper, forward and backward, and lets the optimizer
step. At each instant it adds up what is alive, part by part. The peak is a maximum over instants, not a sum of
parts: gradients appear while activations are freed. Layers that are alike are run once and multiplied. The timeline's
events, one block after another, are written out when somebody asks for them.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise
from operator import attrgetter

from memkit.events import PARTS, Event, Events, play
from memkit.formula.backward import Backward
from memkit.formula.forward import ALONE, Alone, Forward
from memkit.formula.optimizer import write_init, write_states, write_states_of, write_step, write_update
from memkit.formula.paper import Block, Leaf, Paper
from memkit.formula.parameters import alike
from memkit.setup.layouts import Layout
from memkit.setup.models import ModelConfig
from memkit.setup.recipes import MIN_OFFLOADED, OptimizerConfig
from memkit.setup.training import TrainingSetup
from memkit.timeline import MAX_STEPS, Instant, MemoryTimeline
from memkit.units import ALLOCATOR_BLOCK_BYTES, as_whole_number


class Stretch:
    """Events that happen ``times`` times in a row: (block, +1) for a birth, (block, -1) for a free.

    ``change`` and ``highest`` are the bytes by part that they add in all, and at their first highest moment.
    """

    def __init__(self, events: list[tuple[Block, int]], times: int = 1):
        self.events, self.times = events, times
        self.change = dict.fromkeys(PARTS, 0)
        self.highest = play(((block.part, sign * block.num_bytes) for block, sign in events), self.change)


@dataclass(frozen=True)
class Phase:
    """A stretch of the step that ends in an instant, and that has a peak of its own if ``has_peak``."""

    name: str
    stretches: tuple[Stretch, ...]
    step: int = 1
    micro_batch: int = 1
    has_peak: bool = True


def added(now: dict[str, int], change: dict[str, int], times: int = 1) -> dict[str, int]:
    """Bytes by part after a change that happens ``times`` times."""
    return {part: num_bytes + times * change[part] for part, num_bytes in now.items()}


class Memory:
    """Bytes by part now, through one phase after another."""

    def __init__(self):
        self.now = dict.fromkeys(PARTS, 0)

    def instants(self, phase: Phase) -> list[Instant]:
        """Let a phase happen: its peak, if it has one, and its end."""
        peaks = [self.now]
        for stretch in phase.stretches:
            # a repeated stretch is highest in its first or in its last repetition
            peaks += (
                added(added(self.now, stretch.change, times), stretch.highest) for times in {0, stretch.times - 1}
            )
            self.now = added(self.now, stretch.change, stretch.times)
        peak = max(peaks, key=lambda parts: sum(parts.values()))
        when = {"step": phase.step, "micro_batch": phase.micro_batch}
        end = Instant(name=phase.name, **self.now, **when)
        return [Instant(name=f"{phase.name} peak", **peak, **when), end] if phase.has_peak else [end]


@dataclass(frozen=True)
class MicroBatch:
    """The events of one micro-batch.

    After its backward ``first_gradient`` is freed, the gradient of the loss, when ``loss.backward()`` has returned, and
    ``loss`` when the program binds that name anew.
    """

    forward: tuple[Stretch, ...]
    backward: tuple[Stretch, ...]
    first_gradient: tuple[Stretch, ...]
    loss: tuple[Stretch, ...]
    free_gradients: tuple[Stretch, ...]  # what ``zero_grad`` does to the gradients that it left


def estimate_memory(setup: TrainingSetup | ModelConfig, steps: int = 2) -> MemoryTimeline:
    """Bytes at every instant of ``steps`` training steps, by formula; states exist from the first optimizer step on.

    A recipe that torch does not run (a master copy, 8-bit states) is taken to update in fused kernels or in
    torch's ``foreach`` way, as its ``implementation`` says, and to cast gradients without a copy.

    Raises: ValueError: ``setup`` is no ``TrainingSetup``; there is no formula for its strategy (offload, reentrant) or
    for Adafactor in the backward; or ``steps`` is not a whole number above 0.

    >>> from memkit import TrainingSetup, models, recipes
    >>> setup = TrainingSetup(model=models.LLAMA_2_7B, precision=recipes.PURE_BF16, seq_len=512)
    >>> peak = estimate_memory(setup).peak
    >>> peak.name, peak.total_bytes
    ('optimizer peak', 67384156672)
    """
    if isinstance(setup, ModelConfig):
        raise ValueError(f"setup={setup.name!r} is a ModelConfig; wrap it: TrainingSetup(model=...)")
    return estimate_on(ALONE, setup, steps)


def estimate_on(rank: Alone, setup: TrainingSetup, steps: int = 2) -> MemoryTimeline:
    """``estimate_memory`` on a rank that may have others beside it."""
    strategy = setup.recomputation
    if strategy.is_reentrant or strategy.scope == "host":
        raise ValueError(f"strategy {strategy.name!r} has no formula for its peak; trace it")
    if rank.layout is not None and (setup.adapter is not None or setup.optimizer.place != "after backward"):
        raise ValueError(f"a layout with {setup.adapter or setup.optimizer.place} has no formula; trace it")
    if setup.optimizer.place == "in backward" and not setup.optimizer.record.steps_in_backward:
        raise ValueError(f"{setup.optimizer.name} with place='in backward' has no formula for its peak; trace it")
    steps = as_whole_number("steps", steps, 1, MAX_STEPS)
    memory = Memory()
    instants = tuple(instant for phase in phases(setup, steps, rank=rank) for instant in memory.instants(phase))
    events = Events(partial(written_events, setup, steps, rank))
    left_out = what_is_left_out(setup)
    provenance = {"left out": left_out} if left_out else {}
    return MemoryTimeline(
        instants=instants, source="formula", device=setup.device, events=events, provenance=provenance
    )


def what_is_left_out(setup: TrainingSetup) -> str:
    """What a run of this setup takes besides and no formula here knows. A peak is then printed as "at least".

    A recipe with copies of its own is estimated as libraries step it (Megatron, DeepSpeed); the program here steps by
    ``SixteenBitAdamW``, one tensor at a time in float32, whatever the optimizer's ``implementation`` says.
    """
    precision, left_out = setup.precision, []
    copies = precision.master_dtype, precision.main_gradient_dtype, precision.remainder_dtype
    if setup.device == "cpu" and precision.compute_dtype != "float32":
        left_out.append("what oneDNN packs for products of 16 bits")
    if setup.adapter is None and (any(copies) or precision.gradient_dtype != precision.weight_dtype):
        left_out.append("the float32 temporaries of memkit's own step, which a library's kernel does without")
    return "; ".join([*left_out, "trace_memory counts it"]) if left_out else ""


def phases(setup: TrainingSetup, steps: int, is_whole: bool = False, rank: Alone = ALONE) -> Iterator[Phase]:
    """The phases of the steps in order. What is freed after a backward goes to the phase after it."""
    bare = TrainingSetup(  # what no batch changes is written once and remembered
        model=setup.model, precision=setup.precision, optimizer=setup.optimizer, device=setup.device, seq_len=1,
        attention="stored", adapter=setup.adapter,
    )  # fmt: skip
    steps_in_backward = setup.optimizer.place == "in backward"
    run = run_micro_batch if is_whole or rank is not ALONE else added_up
    makes_states = run(setup, False, is_whole, rank, True) if steps_in_backward else None
    first = run(setup, False, is_whole, rank)
    does_accumulate = setup.grad_accum_steps > 1 or not setup.sets_grads_to_none
    later = run(setup, True, is_whole, rank) if does_accumulate else None
    temporaries, freed, accumulates = written_once(write_step, bare, rank.layout), (), False
    yield Phase("init", born(write_init, bare, rank.layout, is_whole), has_peak=False)
    for step in range(1, steps + 1):
        loss = ()
        for number in range(1, setup.grad_accum_steps + 1):
            batch = later if accumulates else (step == 1 and makes_states) or first
            yield Phase("forward", freed + batch.forward + loss, step, number)  # the name ``loss`` moves on
            yield Phase("backward", batch.backward, step, number)
            freed, loss, accumulates = batch.first_gradient, batch.loss, True
        if not steps_in_backward:
            states = born(write_states, bare, rank.layout, is_whole) if step == 1 else ()
            yield Phase("optimizer", freed + states + temporaries, step)
            freed = ()
        zeroed = first.free_gradients if setup.sets_grads_to_none else ()
        accumulates = not setup.sets_grads_to_none
        yield Phase("zero_grad", freed + zeroed + loss, step, has_peak=False)
        freed = ()


@lru_cache(maxsize=64)
def written_once(write: Callable, setup: TrainingSetup, layout: Layout | None = None) -> tuple[Stretch, ...]:
    """What ``write`` writes on a paper of its own."""
    paper = Paper(block_bytes=ALLOCATOR_BLOCK_BYTES if setup.device == "cuda" else 1)
    if layout is None or not layout.offloads or setup.device != "cuda":  # else all of it is in the host's memory
        write(setup, paper, layout)
    return (Stretch(paper.events),)


@lru_cache(maxsize=64)
def born(write: Callable, setup: TrainingSetup, layout: Layout | None, is_whole: bool) -> tuple[Stretch, ...]:
    """What ``write`` allocates and never frees. The order is of no matter, so alike layers are written once."""
    if is_whole or layout is not None:  # some layouts share out whole tensors, whichever block they are of
        return written_once(write, setup, layout)
    [one] = written_once(write, replace(setup, model=replace(setup.model, num_layers=1)))
    model = setup.model
    of = {n: [event for event in one.events if alike(model, event[0].where) == n] for n in {1, model.num_layers}}
    return tuple(Stretch(events, times) for times, events in of.items())


def written_events(setup: TrainingSetup, steps: int, rank: Alone = ALONE) -> Iterator[Event]:
    """Every allocation and free of the steps: all layers written out, each block with a number of its own.

    Frees with no birth between them come in the order of the births, whatever order this Python's function ends have.
    """
    alive: dict[Block, deque[int]] = defaultdict(deque)  # a stretch that comes again: the oldest block is freed first
    next_number, freed = 0, []
    for phase in phases(setup, steps, True, rank):
        for block, sign in (event for stretch in phase.stretches for event in stretch.events):
            number = next_number if sign > 0 else alive[block].popleft()
            event = Event(
                number, sign * block.asked_bytes, block.part, phase.name, block.op, block.where,
                step=phase.step, micro_batch=phase.micro_batch,
            )  # fmt: skip
            if sign > 0:
                alive[block].append(number)
                next_number += 1
                yield from sorted(freed, key=attrgetter("block"))
                freed.clear()
                yield event
            else:
                freed.append(event)
        yield from sorted(freed, key=attrgetter("block"))
        freed.clear()


def step_at_once(setup: TrainingSetup, paper: Paper, makes_states: bool) -> Callable[[Leaf], bool] | None:
    """For an optimizer that frees gradients: what it does with each complete one, returning whether it frees it."""
    optimizer = setup.optimizer
    if not optimizer.frees_gradients:
        return None

    def use(leaf: Leaf) -> bool:
        if optimizer.is_on_host:
            return leaf.parameter.count >= MIN_OFFLOADED
        before = paper.where, paper.op
        if makes_states:
            write_states_of(setup, paper, leaf.parameter)
        write_update(setup, paper, [leaf.parameter])
        paper.where, paper.op = before
        return True

    return use


def free_gradients(backward: Stretch) -> Stretch:
    """The frees of the gradients that a stretch of the backward has left."""
    left = [block for block, sign in backward.events if sign > 0 and block.part == "gradients" and block.is_alive]
    return Stretch([(block, -1) for block in left], backward.times)


def run_micro_batch(
    setup: TrainingSetup, accumulates: bool, is_whole: bool = False, rank: Alone = ALONE, makes_states: bool = False
) -> MicroBatch:
    """Forward and backward of a micro-batch.

    ``accumulates``: earlier micro-batches left gradients, which stay through this forward and are added to.
    ``makes_states``: an optimizer that steps in the backward makes its states in this one.
    """
    setup = rank.computes(setup)
    forward = Forward(setup, is_whole, rank)
    paper = forward.paper
    cuts = [(part.end_of_events, part.times) for part in forward.parts]

    def cut(times: int = 1) -> int:
        """A stretch of events ends here; it happens ``times`` times. Returns the number of stretches so far."""
        cuts.append((len(paper.events), times))
        return len(cuts)

    for unit in forward.units:  # autocast is left and forgets its casts
        unit.casts.clear()
        cut(unit.times)
    forward.end()
    dtypes = [dtype for dtype in (setup.precision.gradient_dtype, setup.precision.main_gradient_dtype) if dtype]
    use = step_at_once(setup, paper, makes_states)
    adds = rank.adds_gradients(accumulates)
    backward = Backward(paper, forward.loss, adds, dtypes if setup.adapter is None else (), use)
    end_of_forward, outside, left = cut(), [], []
    rank.enter_backward(accumulates)
    for part in reversed(forward.parts):
        if part.block is not None:
            rank.enter_backward_of(part.block)
        backward.run_to(part.operations.start)
        if part.block is None:
            outside += backward.take_gradients()
        else:
            left += rank.leave_backward_of(part.block, backward.take_gradients(), part.times)
        if part is forward.parts[0]:
            left += rank.leave_backward(outside)
        cut(part.times)
    end_of_backward = len(cuts)
    backward.first_gradient = None
    cut()
    forward.loss = None
    cut()
    bounds = pairwise([(0, 1), *cuts])
    stretches = tuple(Stretch(paper.events[start:end], times) for (start, _), (end, times) in bounds)
    return MicroBatch(
        forward=stretches[:end_of_forward],
        backward=stretches[end_of_forward:end_of_backward],
        first_gradient=stretches[end_of_backward : end_of_backward + 1],
        loss=stretches[end_of_backward + 1 :],
        free_gradients=tuple(free_gradients(stretch) for stretch in stretches[end_of_forward:end_of_backward]),
    )


def added_up(setup: TrainingSetup, *how: object) -> MicroBatch:
    """``run_micro_batch`` of one rank alone; all optimizers that leave the gradients alone share it.

    A planner asks for many setups that differ by optimizer only.
    """
    if not setup.optimizer.frees_gradients:
        setup = replace(setup, optimizer=OptimizerConfig(), grad_accum_steps=1, sets_grads_to_none=True)
    return remembered(setup, *how)


@lru_cache(maxsize=512)
def remembered(setup: TrainingSetup, *how: object) -> MicroBatch:
    """A micro-batch of which only what it adds up to is kept: none of its events, and no tensor."""
    batch = run_micro_batch(setup, *how)
    for stretches in vars(batch).values():
        for stretch in stretches:
            stretch.events = ()
    return batch
