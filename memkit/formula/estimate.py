"""The memory of a training step by formula: no PyTorch, no data, milliseconds.

``estimate_memory(setup)`` makes the states, runs the model on paper, forward and backward, and lets the optimizer
step. At each instant it adds up what is alive, part by part. The peak is a maximum over instants, not a sum of
parts: gradients appear while activations are freed. Layers that are alike are run once and multiplied. The timeline's
events, one block after another, are written out when somebody asks for them.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain, count, groupby, pairwise
from operator import itemgetter
from typing import NamedTuple

from memkit.events import PARTS, Event, Events, play
from memkit.formula.backward import Backward
from memkit.formula.forward import Run, run_of
from memkit.formula.paper import Block, Paper
from memkit.formula.parameters import times_of
from memkit.setup.models import ModelConfig
from memkit.setup.recipes import OptimizerConfig
from memkit.setup.strategies import NONE
from memkit.setup.training import TrainingSetup
from memkit.timeline import MAX_STEPS, Instant, MemoryTimeline
from memkit.units import ALLOCATOR_BLOCK_BYTES, as_whole_number


class Stretch:
    """Events that happen ``times`` times in a row: (block, +1) for a birth, (block, -1) for a free.

    ``change`` and ``highest`` are the bytes by part that they add in all, and at their first highest moment.
    """

    def __init__(self, events: Sequence[tuple[Block, int]], times: int = 1):
        self.events, self.times = events, times
        self.change = dict.fromkeys(PARTS, 0)
        self.highest = play(((block.part, sign * block.num_bytes) for block, sign in events), self.change)


class Phase(NamedTuple):
    """A stretch of the step that ends in an instant."""

    name: str
    stretches: Sequence[Stretch]
    step: int = 1
    micro_batch: int = 1


def instants_of(phases: Iterable[Phase]) -> Iterator[Instant]:
    """Let phases happen: the bytes by part at the peak of each, unless it only makes or only frees, and at its end."""
    now = dict.fromkeys(PARTS, 0)
    for name, stretches, step, micro_batch in phases:
        peak, peak_bytes = now, sum(now.values())
        for stretch in stretches:
            for times in {0, stretch.times - 1}:  # it is highest in its first or in its last repetition
                parts = {part: now[part] + times * stretch.change[part] + stretch.highest[part] for part in PARTS}
                if sum(parts.values()) > peak_bytes:
                    peak, peak_bytes = parts, sum(parts.values())
            now = {part: now[part] + stretch.times * stretch.change[part] for part in PARTS}
        if name not in ("init", "zero_grad"):
            yield Instant(name=f"{name} peak", **peak, step=step, micro_batch=micro_batch)
        yield Instant(name=name, **now, step=step, micro_batch=micro_batch)


def estimate_memory(setup: TrainingSetup | ModelConfig, steps: int = 2) -> MemoryTimeline:
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
    if isinstance(setup, ModelConfig):
        raise ValueError(f"setup={setup.name!r} is a ModelConfig; wrap it: TrainingSetup(model=...)")
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
    left_out = what_is_left_out(setup)
    provenance = {"left out": left_out} if left_out else {}
    return MemoryTimeline(
        instants=instants, source="formula", device=setup.device, events=events, provenance=provenance
    )


@lru_cache(maxsize=8192)
def second_step(setup: TrainingSetup) -> MemoryTimeline:
    """The second step, with two micro-batches at most: a third is as high as the second. Each later step is like it."""
    return estimate_memory(replace(setup, grad_accum_steps=min(setup.grad_accum_steps, 2))).for_step(2)


def what_is_left_out(setup: TrainingSetup) -> str:
    """What a run of this setup takes besides and no formula here knows. A peak is then printed as "at least".

    A recipe with copies of its own is estimated as libraries step it (Megatron, DeepSpeed); the program here steps by
    ``SixteenBitAdamW``, one tensor at a time in float32, whatever the optimizer's ``implementation`` says.
    """
    precision, left_out = setup.precision, []
    copies = precision.master_dtype, precision.main_gradient_dtype, precision.remainder_dtype
    if setup.device == "cpu" and precision.compute_dtype != "float32":
        left_out.append("what oneDNN packs for products of 16 bits")
    if any(copies) or precision.gradient_dtype != precision.weight_dtype:
        left_out.append("the float32 temporaries of memkit's own step, which a library's kernel does without")
    return "; ".join([*left_out, "trace_memory counts it"]) if left_out else ""


def phases(setup: TrainingSetup, steps: int, run: Run, is_whole: bool = False) -> Iterator[Phase]:
    """The phases of the steps in order. What is freed after a backward goes to the phase after it."""
    steps_at_once = run.use(setup, Paper(), False) is not None
    key = replace(setup, grad_accum_steps=1, sets_grads_to_none=True)
    if not steps_at_once:  # all such optimizers share a micro-batch; a planner asks for many
        key = replace(key, optimizer=OptimizerConfig())
    batch = run_micro_batch if is_whole or run is not run_of(setup) else remembered
    makes_states = None if run.has_optimizer_step(setup) else batch(run, key, False, is_whole, True)
    first = batch(run, key, False, is_whole, False)
    does_accumulate = setup.grad_accum_steps > 1 or not setup.sets_grads_to_none
    later = batch(run, key, True, is_whole, False) if does_accumulate else None
    # What no batch changes is written once and remembered.
    bare = replace(setup, micro_batch_size=1, seq_len=1, attention="stored", recomputation=NONE, dropout=0.0)
    is_repeated = run.is_repeated and not is_whole
    temporaries, freed, accumulates = written(run.write_step, bare), (), False
    yield Phase("init", written(run.write_weights, bare, is_repeated))
    for step in range(1, steps + 1):
        loss = ()
        for number in range(1, setup.grad_accum_steps + 1):
            # ``makes_states`` is None unless the optimizer steps in the backward.
            events = later if accumulates else (step == 1 and makes_states) or first
            yield Phase("forward", freed + events["forward"] + loss, step, number)  # the name ``loss`` moves on
            yield Phase("backward", events["backward"], step, number)
            freed, loss, accumulates = events["first gradient"], events["loss"], True
        if run.has_optimizer_step(setup):
            states = written(run.write_states, bare, is_repeated) if step == 1 else ()
            yield Phase("optimizer", freed + states + temporaries, step)
            freed = ()
        # Later micro-batches add to the first one's gradients and leave none of their own.
        zeroed = first["zero_grad"] if setup.sets_grads_to_none else ()
        accumulates = not setup.sets_grads_to_none
        yield Phase("zero_grad", freed + zeroed + loss, step)
        freed = ()


@lru_cache(maxsize=64)
def written(write: Callable, setup: TrainingSetup, is_repeated: bool = False) -> tuple[Stretch, ...]:
    """What ``write`` writes on a paper of its own.

    ``is_repeated``: it frees nothing, so that its order is of no matter and one layer stands for those that are alike.
    """
    model = setup.model
    if is_repeated:
        setup = replace(setup, model=model.one_of_each)
    paper = Paper(block_bytes=ALLOCATOR_BLOCK_BYTES if setup.device == "cuda" else 1)
    write(setup, paper)
    if not is_repeated:
        return (Stretch(paper.events),)
    times = [times_of(model, block.where) for block, _ in paper.events]
    return tuple(Stretch([e for e, n in zip(paper.events, times) if n == num], num) for num in dict.fromkeys(times))


def written_events(setup: TrainingSetup, steps: int, run: Run) -> Iterator[Event]:
    """Every allocation and free of the steps: all layers written out, each block with a number of its own.

    Frees with no birth between them come in the order of the births, whatever order this Python's function ends have.
    """
    alive: dict[Block, deque[int]] = defaultdict(deque)  # a stretch that comes again: the oldest block is freed first
    numbers = count()
    for name, stretches, step, micro_batch in phases(setup, steps, run, True):
        events = chain.from_iterable(stretch.events for stretch in stretches)
        for sign, neighbours in groupby(events, key=itemgetter(1)):
            numbered = [(next(numbers) if sign > 0 else alive[block].popleft(), block) for block, _ in neighbours]
            for number, block in sorted(numbered, key=itemgetter(0)):
                if sign > 0:
                    alive[block].append(number)
                yield Event(
                    number, sign * block.asked_bytes, block.part, name, block.op, block.where, step=step,
                    micro_batch=micro_batch,
                )


def run_micro_batch(
    run: Run, setup: TrainingSetup, accumulates: bool, is_whole: bool, makes_states: bool
) -> dict[str, tuple[Stretch, ...]]:
    """The events of a micro-batch's forward and backward, and what is freed later.

    That is the "first gradient", of the loss, when ``loss.backward()`` has returned; the "loss" when the program binds
    that name anew; and what ``zero_grad`` frees of the gradients.

    ``accumulates``: earlier micro-batches left gradients, which stay through this forward and are added to.
    ``makes_states``: an optimizer that steps in the backward makes its states in this one.
    """
    setup = run.computes(setup)
    forward = run.forward(setup, is_whole, run)
    paper, cuts = forward.paper, [(0, 1), *((part.end_of_events, part.times) for part in forward.parts)]

    def cut(times: int = 1) -> None:
        """A stretch of events ends here; it happens ``times`` times."""
        cuts.append((len(paper.events), times))

    for unit in forward.units:  # autocast is left and forgets its casts
        unit.casts.clear()
        cut(unit.times)
    forward.end()
    use = run.use(setup, paper, makes_states)
    backward = Backward(paper, forward.loss, run.adds_gradients(accumulates), run.gradient_dtypes(setup), use)
    cut()  # after ``Backward``, whose gradient of the loss is made before the engine runs
    end_of_forward, outside, left = len(cuts) - 1, [], []
    run.enter_backward(None, accumulates)
    for part in reversed(forward.parts):
        if part.block is not None:
            run.enter_backward(part.block, accumulates)
        backward.run(part.operations)
        if part.block is None:
            outside += backward.take_gradients()
        else:
            left += run.leave_backward(part.block, backward.take_gradients(), part.times)
        if part is forward.parts[0]:
            left += run.leave_backward(None, outside)
        cut(part.times)
    stretches = tuple(Stretch(paper.events[start:end], times) for (start, _), (end, times) in pairwise(cuts))
    return {
        "forward": stretches[:end_of_forward],
        "backward": stretches[end_of_forward:],
        "first gradient": (Stretch([(backward.first_gradient.block, -1)]),),
        "loss": (Stretch([(forward.loss.storage.block, -1)]),),
        "zero_grad": tuple(frees_of_gradients(stretch) for stretch in stretches[end_of_forward:]),
    }


def frees_of_gradients(backward: Stretch) -> Stretch:
    """The frees of the gradients that a stretch of the backward has left."""
    left = [block for block, sign in backward.events if sign > 0 and block.part == "gradients" and block.is_alive]
    return Stretch([(block, -1) for block in left], backward.times)


@lru_cache(maxsize=512)
def remembered(*how: object) -> dict[str, tuple[Stretch, ...]]:
    """A micro-batch of which only what it adds up to is kept: none of its events, and no tensor."""
    batch = run_micro_batch(*how)
    for stretch in chain.from_iterable(batch.values()):
        stretch.events = ()
    return batch
