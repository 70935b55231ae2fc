"""The memory of a training step by formula: no PyTorch, no data, milliseconds.

``estimate_memory(setup)`` sums the ledger of states, writes the model's operations on a tape, reads the tape
backwards and lets the optimizer step. At each instant it adds up what is alive, part by part. The peak is a
maximum over instants, not a sum of parts: gradients are born while activations die.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from memkit.formula.backward import Backward
from memkit.formula.forward import Schedule
from memkit.formula.optimizer import held_bytes, initial_events, state_events, step_events
from memkit.formula.tape import Tape
from memkit.setup.models import ModelConfig
from memkit.setup.training import TrainingSetup
from memkit.timeline import PARTS, Instant, MemoryTimeline
from memkit.units import as_whole_number

RANDOM_STATE_BYTES = 5056
"""The state of the CPU's random number generator (``torch.get_rng_state()``), which every checkpoint keeps."""


@dataclass(frozen=True)
class Stretch:
    """Events that happen ``times`` times in a row: (part, bytes), positive for a birth and negative for a free."""

    events: list[tuple[str, int]]
    times: int = 1


class Memory:
    """Bytes by part, now and at the highest moment of the phase."""

    def __init__(self):
        self.now = dict.fromkeys(PARTS, 0)
        self.total = 0
        self.start_phase()

    def start_phase(self) -> None:
        """The highest moment so far is now."""
        self.peak, self.peak_total = dict(self.now), self.total

    def play(self, stretches: Iterable[Stretch]) -> None:
        """Let the stretches happen. A repeated one is highest in its first or in its last repetition."""
        for stretch in stretches:
            if stretch.times > 0:
                self._play_once(stretch)
            if stretch.times > 2:
                for part, num_bytes in stretch.events:
                    self.now[part] += (stretch.times - 2) * num_bytes
                    self.total += (stretch.times - 2) * num_bytes
            if stretch.times > 1:
                self._play_once(stretch)

    def _play_once(self, stretch: Stretch) -> None:
        for part, num_bytes in stretch.events:
            self.now[part] += num_bytes
            self.total += num_bytes
            if self.total > self.peak_total:
                self.start_phase()

    def end_phase(self, name: str, **when: int) -> tuple[Instant, Instant]:
        """The instants of the phase, its peak and its end; the next phase starts here."""
        peak = Instant(name=f"{name} peak", **self.peak, **when)
        self.start_phase()
        return peak, Instant(name=name, **self.now, **when)


@dataclass(frozen=True)
class MicroBatch:
    """The events of one micro-batch. ``first_gradient`` and ``loss`` are freed a little after its backward."""

    forward: list[Stretch]
    backward: list[Stretch]
    first_gradient: list[Stretch]
    loss: list[Stretch]


def estimate_memory(setup: TrainingSetup, steps: int = 2) -> MemoryTimeline:
    """Bytes at every instant of ``steps`` training steps, by formula; states exist from the first optimizer step on.

    A recipe that torch does not run (a master copy, 8-bit states) is taken to update in fused kernels or in
    torch's ``foreach`` way, as its ``implementation`` says, and to cast gradients without a copy.

    Raises: ValueError: ``setup`` is no ``TrainingSetup``, or ``steps`` is not a whole number above 0.

    >>> from memkit import TrainingSetup, models, recipes
    >>> setup = TrainingSetup(model=models.LLAMA_2_7B, precision=recipes.PURE_BF16, seq_len=512)
    >>> peak = estimate_memory(setup).peak
    >>> peak.name, peak.total_bytes
    ('optimizer peak', 67384156672)
    """
    if isinstance(setup, ModelConfig):
        raise ValueError(f"setup={setup.name!r} is a ModelConfig; wrap it: TrainingSetup(model=...)")
    if not isinstance(setup, TrainingSetup):
        raise ValueError(f"setup={setup!r} is not a TrainingSetup")
    steps = as_whole_number("steps", steps, 1)
    memory = Memory()
    memory.play([Stretch(initial_events(setup))])
    instants = [Instant(name="init", **memory.now)]
    memory.start_phase()
    accumulates, known = False, {}
    for step in range(1, steps + 1):
        loss = []
        for micro_batch in range(1, setup.grad_accum_steps + 1):
            if accumulates not in known:
                known[accumulates] = one_micro_batch(setup, accumulates)
            batch, when = known[accumulates], {"step": step, "micro_batch": micro_batch}
            before, num_before = dict(memory.now), len(instants)
            memory.play(batch.forward + loss)  # the name ``loss`` moves on to the new one
            instants += memory.end_phase("forward", **when)
            memory.play(batch.backward)
            instants += memory.end_phase("backward", **when)
            memory.play(batch.first_gradient)
            loss, accumulates = batch.loss, True
            if micro_batch > 1 and memory.now == before:  # so is each one after it
                again = instants[num_before:]
                later = range(micro_batch + 1, setup.grad_accum_steps + 1)
                instants += [replace(instant, micro_batch=number) for number in later for instant in again]
                break
        memory.play([Stretch(state_events(setup) if step == 1 else []), Stretch(step_events(setup))])
        instants += memory.end_phase("optimizer", step=step)
        if setup.sets_grads_to_none:
            memory.play([Stretch([("gradients", -memory.now["gradients"])])])
            accumulates = False
        memory.play(loss)
        instants.append(Instant(name="zero_grad", **memory.now, step=step))
        memory.start_phase()
    return MemoryTimeline(instants=tuple(instants), source="formula", device=setup.device)


def one_micro_batch(setup: TrainingSetup, accumulates: bool) -> MicroBatch:
    """Forward and backward of a micro-batch. Three blocks are written; the middle one's events are repeated.

    ``accumulates``: earlier micro-batches left gradients, which stay through this forward and are added to.
    """
    random_state_bytes = RANDOM_STATE_BYTES if setup.device == "cpu" else 0  # CUDA's is kept on the host
    tape = Tape(lambda num_bytes: held_bytes(num_bytes, setup.device), random_state_bytes)
    schedule = Schedule(setup, tape)
    cuts = [(0, 1)]

    def cut(times: int = 1) -> int:
        """A stretch of events ends here; it happens ``times`` times. Returns the number of stretches so far."""
        cuts.append((len(tape.events), times))
        return len(cuts) - 1

    x = schedule.embed()
    cut()
    blocks = []
    for times in kinds_of_layers(setup.model.num_layers):
        start = len(tape.operations)
        x = schedule.block(x)
        cut(times)
        blocks.append((slice(start, len(tape.operations)), schedule.new_parameters, times))
    loss = schedule.loss(x)
    cut()
    for _, parameters, times in blocks:
        tape.forget_casts(parameters)
        cut(times)
    schedule.end_forward()
    precision = setup.precision
    kept = [dtype for dtype in (precision.gradient_dtype, precision.main_gradient_dtype) if dtype]
    backward = Backward(tape, loss, accumulates, kept)
    end_of_forward = cut()
    operations = tape.operations
    backward.read(operations[blocks[-1][0].stop :])
    cut()
    for block, _, times in reversed(blocks):
        backward.read(operations[block])
        cut(times)
    backward.read(operations[: blocks[0][0].start])
    end_of_backward = cut()
    backward.end()
    cut()
    tape.drop(loss)
    cut()
    events = [(storage.part, sign * storage.num_bytes) for storage, sign in tape.events]
    stretches = [Stretch(events[start:end], times) for (start, _), (end, times) in pairwise(cuts)]
    *_, first_gradient, loss_freed = stretches
    return MicroBatch(
        forward=stretches[:end_of_forward],
        backward=stretches[end_of_forward:end_of_backward],
        first_gradient=[first_gradient],
        loss=[loss_freed],
    )


def kinds_of_layers(num_layers: int) -> list[int]:
    """How many layers each block on the tape stands for: the first, those between, the last.

    The layers between are alike. The first is the last to need the tables that all share; the last one's
    output goes to the final norm and not to another block.
    """
    return [1] * num_layers if num_layers < 4 else [1, num_layers - 2, 1]
