"""Parts and phases of a recording that names none, from its own pattern.

A recording of a GPU knows sizes and moments, not purposes. But training has a shape: there is a multiset of
sizes, the parameters', of which whole copies stand between the phases: weights and states before the forward,
one copy more, the gradients, when the activations are gone. That wave is looked for. What the optimizer then
leaves beside it is a state; what is born before the first gradient and freed after it is an activation. Where
no such wave is found, the parts are not told apart. The first product's gradients, born before the first gradient
of a parameter, count as of the forward; that is a block or two.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from memkit.allocator.replays import Replay
from memkit.events import Event, Events

MAX_COPIES = 5
"""Weights, gradients and up to three states of a parameter."""

ENOUGH, COVERED = 0.98, 0.75
"""Shares: of one copy's bytes that must match at a wave's end; of the bytes at the end that are copies."""

MAX_HELD = 8
"""So many blocks that are no copies may stand between the phases, held by a name in the program."""

MAX_HELD_COPIES = 2
"""So many blocks that the program holds may have the size of a parameter: logits of as many tokens as the model is
wide are as large as its head. They are only looked for where no wave is found without them."""

MISFIT = 0.002
"""A wave that leaves a larger share of a copy unexplained, at its best moment, is none."""


@dataclass(frozen=True)
class Wave:
    """One step by the indices of its events: start, first gradient, all gradients, the first of them freed."""

    start: int
    first: int
    complete: int
    freed: int
    gradients: frozenset[int]


@dataclass
class Steps:
    """The steps of a recording, and the part of every block that is a copy of a parameter."""

    waves: list[Wave] = field(default_factory=list)
    roles: dict[int, str] = field(default_factory=dict)
    misfit: float = 1.0  # bytes at the first wave's end that no copy explains, or lacks, as a share of a copy


def with_parts(run: Replay) -> tuple[Replay, str]:
    """The run with a part for each block, and who says so: its "trace", its own "pattern", or nobody, ""."""
    if any(event.part for event in run.timeline.events):
        return run, "trace"
    inferred = with_inferred_parts(run.timeline.events)
    if inferred is None:
        return run, ""
    return replace(run, timeline=replace(run.timeline, events=inferred)), "pattern"


def with_inferred_parts(events: Events) -> tuple[Event, ...] | None:
    """The events with part and phase, or ``None`` where no training step is found."""
    kept = events.unfreed()
    at_end = Counter(event.num_bytes for event in events if event.block in kept)
    signatures = []
    for copies in range(MAX_COPIES, 0, -1):
        signature = Counter({size: count // copies for size, count in at_end.items() if count >= copies})
        covered = copies * sum(size * count for size, count in signature.items())
        if covered and covered >= COVERED * sum(size * count for size, count in at_end.items()):
            signatures.append(signature)
    for num_held, signature in product(range(MAX_HELD_COPIES + 1), signatures):
        steps = _steps(events, signature, kept, num_held)
        weights = sum(e.num_bytes for e in events if e.block in kept and steps.roles.get(e.block) == "weights")
        copy_bytes = sum(size * count for size, count in signature.items())
        if steps.misfit <= MISFIT and weights >= ENOUGH * copy_bytes:  # what stands at the end holds the weights too
            told = _labelled(events, steps)
            # Little is made between the optimizer and the next forward: a peak there is of steps that were not found.
            return None if told[events.peak()].phase == "zero_grad" else told
    return None


def _steps(events: Events, signature: Counter, kept: set[int], num_held: int) -> Steps:
    """The steps for one signature of parameters, as far as they are found, with so many copies held besides."""
    steps, start = Steps(), 0
    freed_at = {event.block: index for index, event in enumerate(events) if event.num_bytes < 0}
    while start < len(events):
        level = _next_level(events, start, signature, kept, num_held)
        if level is None:
            break
        base, complete, misfit = level
        before, after = (
            {event.block for event in events.live_at(index) if event.num_bytes in signature}
            for index in (base, complete)
        )
        born = _last_copy(events, after - before, signature)
        gradients = frozenset(events[index].block for index in born)
        copy_bytes = sum(size * count for size, count in signature.items())
        if abs(sum(events[i].num_bytes for i in born) - copy_bytes) > (1 - ENOUGH) * copy_bytes:
            break
        freed = _let_go(events, gradients, freed_at, copy_bytes)
        wave = Wave(base, born[0], complete + 1, max(freed, complete + 1), gradients)
        if not steps.waves:
            steps.misfit = misfit
            steps.roles |= _first_roles(events, before, signature, kept)
        steps.waves.append(wave)
        steps.roles |= dict.fromkeys(gradients, "gradients")
        _inherit(events, wave, steps.roles, signature, freed_at)
        start = wave.freed
    return steps


def _next_level(
    events: Sequence[Event], start: int, signature: Counter, kept: set[int], num_held: int
) -> tuple[int, int, float] | None:
    """The last moment with j whole copies and little else, and the best one with j + 1, across a forward.

    Little else: a few blocks that the program holds by name, the batch, the logits, the loss, of which ``num_held``
    may have the size of a parameter. A forward is told by more blocks than that which are born after the first
    moment, and freed. The third value is what does not match at the second one, as a share of a copy.
    """
    levels = range(1, MAX_COPIES + 1)
    copy_bytes = sum(size * count for size, count in signature.items())
    slack = copy_bytes - int(ENOUGH * copy_bytes)
    counts: Counter = Counter()
    born_at: dict[int, int] = {}
    matched, num_beyond = [0] * (MAX_COPIES + 1), [0] * (MAX_COPIES + 1)  # bytes in j copies; blocks beyond them
    total = num_strays = num_freed = 0
    base, level, best, complete = start, None, (slack + 1, 0), None
    for index, event in enumerate(events):
        size, is_birth = abs(event.num_bytes), event.num_bytes > 0
        born_at.setdefault(event.block, index)
        if size in signature:
            counts[size] += is_birth
            for copies in levels:
                if counts[size] <= copies * signature[size]:
                    matched[copies] += event.num_bytes
                else:
                    num_beyond[copies] += 1 if is_birth else -1
            counts[size] -= not is_birth
            total += event.num_bytes
        elif event.block not in kept:
            num_strays += 1 if is_birth else -1
        num_freed += not is_birth and born_at[event.block] > base
        if index < start:
            continue
        nearest = min(levels, key=lambda j: j * copy_bytes + total - 2 * matched[j])
        misfit = nearest * copy_bytes - matched[nearest]
        if num_beyond[nearest] > num_held:
            misfit += total - matched[nearest]
        now = nearest if misfit <= slack and num_strays <= MAX_HELD else None
        if complete is not None and now not in (None, level + 1):
            break
        if now is not None and complete is None and (level is None or num_freed <= MAX_HELD or now == level):
            base, level, num_freed = index, now, 0
        elif now is not None and now == level + 1 and (misfit, -num_beyond[now]) < best:
            best, complete = (misfit, -num_beyond[now]), index
    return None if complete is None else (base, complete, best[0] / copy_bytes)


def _last_copy(events: Sequence[Event], blocks: set[int], signature: Counter) -> list[int]:
    """Indices of the births of one copy among the blocks; of too many of a size, those that were born last.

    Gradients are born after what the forward made and the program still holds.
    """
    left, born = Counter(signature), []
    for index in reversed(range(len(events))):
        event = events[index]
        if event.block in blocks and event.num_bytes > 0 and left[event.num_bytes] > 0:
            left[event.num_bytes] -= 1
            born.append(index)
    return born[::-1]


def _let_go(events: Sequence[Event], gradients: frozenset[int], freed_at: dict[int, int], copy_bytes: int) -> int:
    """The event at which more of the gradients is freed than a wave may miss."""
    left = copy_bytes - int(ENOUGH * copy_bytes)
    for index in sorted(freed_at[block] for block in gradients if block in freed_at):
        left += events[index].num_bytes
        if left < 0:
            return index
    return len(events)


def _first_roles(events: Iterable[Event], copies: set[int], signature: Counter, kept: set[int]) -> dict[int, str]:
    """Of what stands before the first forward, one copy is the weights (what is never freed before the rest)."""
    left, roles = Counter(signature), {}
    born = [event for event in events if event.block in copies and event.num_bytes > 0]
    for event in sorted(born, key=lambda event: event.block not in kept and event.phase == "before"):
        roles[event.block] = "weights" if left[event.num_bytes] > 0 else "optimizer_states"
        left[event.num_bytes] -= 1
    return roles


def _inherit(events: Sequence[Event], wave: Wave, roles: dict, signature: Counter, freed_at: dict) -> None:
    """What the optimizer's phase leaves: where an old copy is freed in it, the new one takes its part."""
    dying: dict[int, list[str]] = {}
    for event in events[wave.complete : wave.freed]:
        if event.num_bytes < 0 and roles.get(event.block) in ("weights", "optimizer_states"):
            dying.setdefault(-event.num_bytes, []).append(roles[event.block])
    for event in events[wave.complete : wave.freed]:
        outlives = freed_at.get(event.block, len(events)) >= wave.freed
        if event.num_bytes > 0 and outlives and event.num_bytes in signature:
            parts = dying.get(event.num_bytes)
            roles[event.block] = parts.pop(0) if parts else "optimizer_states"


def _labelled(events: Sequence[Event], steps: Steps) -> tuple[Event, ...]:
    phases, numbers = ["zero_grad"] * len(events), [1] * len(events)
    for number, wave in enumerate(steps.waves, 1):
        numbers[wave.start + 1 :] = [number] * (len(events) - wave.start - 1)
        spans = (("forward", wave.start + 1, wave.first), ("backward", wave.first, wave.complete))
        for name, first, last in (*spans, ("optimizer", wave.complete, wave.freed)):
            phases[first:last] = [name] * (last - first)
    begin, end = steps.waves[0].start + 1, steps.waves[-1].freed
    phases[:begin] = ["init"] * begin
    phases[end:] = ["zero_grad"] * (len(events) - end)
    freed_at = {event.block: index for index, event in enumerate(events) if event.num_bytes < 0}
    parts: dict[int, str] = {}
    for index, event in enumerate(events):
        if event.num_bytes > 0:
            end = freed_at.get(event.block, -1)
            spans = any(wave.start < index < wave.first < end for wave in steps.waves)
            parts[event.block] = steps.roles.get(event.block, "activations" if spans else "temporary")
    return tuple(
        replace(e, part=parts[e.block], phase=e.phase or phase, step=step)
        for e, phase, step in zip(events, phases, numbers, strict=True)
    )
