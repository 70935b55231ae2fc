"""The one adviser: what would lower the peak, by how much, and how that is known.

A ``Change`` is a record: its name, why it helps, and what it does to a ``TrainingSetup``, to the events of a run
and to the allocator's options, as far as it can be said. Whoever advises tries changes and shows ``Effect``s, the
most helpful first: the memory explorer, the planner, ``diagnose_memory`` and ``stepscope report``. Nothing is
decided by the text that is shown.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from memkit.formula.estimate import second_step
from memkit.recipes import PURE_BF16
from memkit.setup import TrainingSetup
from memkit.strategies import FULL, NONE
from memkit.timeline import Event, Events, MemoryTimeline
from memkit.units import format_bytes
from stepscope.allocator.caching import AllocatorConfig
from stepscope.allocator.replay import replay_trace
from stepscope.fitting import edits
from stepscope.fitting.optimizers import is_wide_adam
from stepscope.optimizers import MIN_8BIT_VALUES, OPTIMIZERS


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run's events, the blocks alive at its peak, and the allocator's options.

    ``has_failed``: it ran out of memory, so that what would have followed is not among the events.
    ``has_phases``: the program named its phases; those of a recording are inferred, or unknown.
    """

    events: Events
    live: Events
    config: AllocatorConfig
    has_failed: bool = False
    has_phases: bool = True

    def holds(self, part: str, phase: str = "") -> bool:
        """Whether a block of the part (born in the phase) stands at the peak."""
        return any(event.part == part and phase in ("", event.phase) for event in self.live)

    def has_phase(self, phase: str) -> bool:
        """Whether anything happened in the phase."""
        return any(event.phase == phase for event in self.events)


@dataclass(frozen=True, kw_only=True)
class Change:
    """One thing to change. A function gives the changed setup, events or options, or ``None`` where nothing changes.

    Of changes of one ``kind`` only one can be made. ``comes_first``: it mends a fault, so it is named before what
    only saves more. ``program`` names the change of ``stepscope.tool.changed`` that does it to a running program,
    where there is one.
    """

    name: str
    why: str
    to_setup: Callable[[TrainingSetup], TrainingSetup | None] = lambda setup: None
    to_events: Callable[[Run], Sequence[Event] | None] = lambda run: None
    to_config: Callable[[AllocatorConfig], AllocatorConfig | None] = lambda config: None
    kind: str = ""
    comes_first: bool = False
    program: str = ""


@dataclass(frozen=True, kw_only=True)
class Effect:
    """A change that was tried: the peak before and after it, in bytes, and how that is known."""

    change: Change
    before_bytes: int
    after_bytes: int
    how: str  # "formula", "events changed" (and replayed), "replay", "second trace"

    @property
    def name(self) -> str:
        return self.change.name

    @property
    def why(self) -> str:
        return self.change.why

    @property
    def saved_bytes(self) -> int:
        return self.before_bytes - self.after_bytes


def helpful(effects: Iterable[Effect]) -> list[Effect]:
    """Those that lower the peak: what mends a fault first, then what saves most; of equals the first."""
    helps = [effect for effect in effects if effect.saved_bytes > 0]
    return sorted(helps, key=lambda effect: (not effect.change.comes_first, effect.after_bytes))


def best_of_each_kind(effects: Iterable[Effect], num_effects: int) -> list[Effect]:
    """The first ``num_effects`` that could all be made: one of each kind."""
    first: dict[object, Effect] = {}
    for number, effect in enumerate(effects):
        first.setdefault(effect.change.kind or number, effect)
    return list(first.values())[:num_effects]


# --- what a change does to a setup ------------------------------------------------------------------------------


def _with(applies: Callable[[TrainingSetup], bool] | None = None, **fields) -> Callable:
    """The setup with other ``fields``, where that ``applies`` and changes something."""

    def changed(setup: TrainingSetup) -> TrainingSetup | None:
        other = replace(setup, **fields)
        return other if other != setup and (applies is None or applies(setup)) else None

    return changed


def _with_optimizer(applies: Callable[[TrainingSetup], bool] | None = None, **fields) -> Callable:
    """The setup whose optimizer has other ``fields``, where that ``applies``."""
    return lambda setup: _with(applies, optimizer=replace(setup.optimizer, **fields))(setup)


def _half_batch(setup: TrainingSetup) -> TrainingSetup | None:
    size, steps = setup.micro_batch_size, setup.grad_accum_steps
    return None if size % 2 else replace(setup, micro_batch_size=size // 2, grad_accum_steps=2 * steps)


# --- what a change does to the events of a run ------------------------------------------------------------------


def _half_activations(run: Run) -> Sequence[Event] | None:
    can = run.holds("activations") and run.has_phase("backward")
    return edits.scaled(run.events, "activations", 2) if can else None


def _all_activations(run: Run) -> Sequence[Event] | None:
    if not run.holds("activations") or not run.has_phase("backward"):
        return None
    kept = run.events.unfreed()
    return edits.recomputed(run.events, lambda e: e.part == "activations" and _is_made_by_a_step(e, kept))


def _8_bit_states(run: Run) -> Sequence[Event] | None:
    """Adam's moments, two for a weight, where they are float32: as large as the weight or twice a 16-bit one."""
    sizes = {part: Counter(e.num_bytes for e in run.live if e.part == part) for part in ("weights", "optimizer_states")}
    moments = {size: n for size, n in sizes["optimizer_states"].items() if size >= 4 * MIN_8BIT_VALUES}
    if not moments or any(n % 2 or n == sizes["weights"][size] for size, n in moments.items()):
        return None
    return edits.scaled(run.events, "optimizer_states", 4, min(moments))


def _optimizers_scratch(edit: Callable) -> Callable[[Run], Sequence[Event] | None]:
    """An edit of what is the optimizer's scratch, where that stands at the peak."""
    is_scratch = lambda e: e.part == "temporary" and e.phase == "optimizer"
    return lambda run: edit(run.events, is_scratch) if run.holds("temporary", "optimizer") else None


def _no_grad(run: Run) -> Sequence[Event] | None:
    """Offered where the run shows that no backward follows its forwards, never where it only lacks one.

    A run that failed may have died before its first backward. A recording without phases must have let a graph go
    at least twice without a line of autograd's.
    """
    trains = run.has_phase("backward") or run.has_phase("optimizer") or any("backward" in e.where for e in run.events)
    if run.has_failed or trains:
        return None
    graphs = edits.held_for_no_backward(run.events, 1 if run.has_phases else 2)
    return edits.recomputed(run.events, lambda e: e.block in graphs, is_wanted=False) if graphs else None


def _gradients_to_none(run: Run) -> Sequence[Event] | None:
    changed = edits.gradients_set_to_none(run.events)
    return changed if len(changed) != len(run.events) else None


def _is_made_by_a_step(event: Event, kept: set[int]) -> bool:
    return event.block not in kept and event.phase not in edits.BEFORE_THE_STEPS


def _growing_segments(config: AllocatorConfig) -> AllocatorConfig | None:
    return None if config.expandable_segments else AllocatorConfig(expandable_segments=True)


FULL_RECOMPUTATION = Change(
    name="full recomputation, which runs each forward twice", kind="recomputation", to_events=_all_activations,
    to_setup=_with(recomputation=FULL),
    why="a block keeps only its input and is run again; it then holds all of its own, so at least this much stays",
    program="checkpointed",
)
HALF_BATCH = Change(
    name="half the micro-batch, accumulated twice", to_setup=_half_batch, to_events=_half_activations,
    why="every activation is half as large, and scratch is smaller by an unknown share; gradients and states stay",
    program="half_batch",
)
EIGHT_BIT = Change(
    name="8-bit AdamW", program="eight_bit", to_events=_8_bit_states,
    to_setup=_with_optimizer(lambda setup: is_wide_adam(setup.optimizer.record), record=OPTIMIZERS["8-bit AdamW"]),
    why="a quarter of the bytes of 32-bit states, half of those of 16-bit ones",
)
FOR_LOOP = Change(
    name="optimizer step for-loop, one tensor at a time (foreach=False)", program="for_loop",
    kind="optimizer step",
    to_setup=_with_optimizer(implementation="for-loop"), to_events=_optimizers_scratch(edits.recomputed),
    why="the optimizer's scratch for one parameter at a time, not for all at once",
)
FUSED = Change(
    name="optimizer step fused, in one kernel (fused=True)", program="fused",
    kind="optimizer step",
    to_setup=_with_optimizer(implementation="fused"), to_events=_optimizers_scratch(edits.without),
    why="one kernel updates a parameter without any scratch",
)
SET_TO_NONE = Change(
    name="zero_grad(set_to_none=True)", to_events=_gradients_to_none, program="set_to_none",
    to_setup=_with(sets_grads_to_none=True),
    why="gradients go after the optimizer's step instead of standing through the next forward", comes_first=True,
)
NO_GRAD = Change(
    name="torch.no_grad() around the forward", to_events=_no_grad, program="no_grad", comes_first=True,
    why="no backward follows, so nothing of the forward need be kept for one",
)
EXPANDABLE_SEGMENTS = Change(
    name="PYTORCH_ALLOC_CONF=expandable_segments:True", to_config=_growing_segments,
    why="the same requests, but segments that grow leave no holes between them",
)
CHANGES = (
    EXPANDABLE_SEGMENTS,
    SET_TO_NONE,
    NO_GRAD,
    Change(name="flash attention", why="the scores of all heads are never stored",
           to_setup=_with(lambda setup: setup.attention == "stored", attention="flash")),
    FULL_RECOMPUTATION,
    Change(name="selective recomputation", kind="recomputation", why="only the attention core is run again",
           to_setup=_with(lambda setup: setup.recomputation == NONE and setup.attention == "stored",
                          recomputation="selective")),
    HALF_BATCH,
    Change(name="pure bf16, which rounds every update", why="two bytes for each number",
           to_setup=_with(precision=PURE_BF16)),
    EIGHT_BIT,
    FOR_LOOP,
    FUSED,
)
"""Every change the book knows that can be named without seeing a run."""


def changes_of(run: Run) -> tuple[Change, ...]:
    """``CHANGES`` and those that only this run suggests: its leak, and its line with most activations."""
    kept, changes = run.events.unfreed(), []
    # Without phases it may be a forward that died half-way.
    growing = edits.growing_lines(run.events) if run.has_phases else ()
    if growing:
        leak = growing[0]
        changes.append(Change(
            name=f"let go of what {leak.where} leaves behind", comes_first=True,
            why=f"what it makes in each step is never freed; {format_bytes(leak.num_bytes)} stand at the end",
            to_events=lambda run: edits.without(
                run.events, lambda e: e.block in kept and edits.line_of(e) == leak.where
            ),
        ))
    changes += CHANGES
    again = Events(e for e in run.live if e.part == "activations" and e.where and _is_made_by_a_step(e, kept))
    if again and run.has_phase("backward"):
        lines = again.by(lambda event: event.where)
        line = max(lines, key=lambda where: lines[where].num_bytes)
        changes.append(Change(
            name=f"recompute {line}", kind="recomputation",
            why="keep nothing of it; each block is made again just before its last use",
            to_events=lambda run: edits.recomputed(
                run.events, lambda e: e.where == line and e.part == "activations" and _is_made_by_a_step(e, kept)
            ),
        ))
    return tuple(changes)


# --- trying them ------------------------------------------------------------------------------------------------


def effects_on_setup(setup: TrainingSetup) -> list[Effect]:
    """What each change does to the peak by formula, the most helpful first; those that help only."""
    before, effects = second_step(setup).peak_bytes, []
    for change in CHANGES:
        try:
            changed = change.to_setup(setup)
            after = before if changed is None else second_step(changed).peak_bytes
        except ValueError:  # no such implementation, gradients that are freed at once, no formula
            continue
        effects.append(Effect(change=change, before_bytes=before, after_bytes=after, how="formula"))
    return helpful(effects)


def effects_on_run(timeline: MemoryTimeline, run: Run, before_bytes: int, replayed_bytes: int) -> list[Effect]:
    """What each change does to the peak of reserved bytes, the most helpful first.

    The savings are differences to ``replayed_bytes``, the unchanged events played from an empty card; they are
    told from ``before_bytes``, the run's own peak. Changed events are a prediction; a changed option of the
    allocator leaves the events as they are.
    """
    effects = []
    for change in changes_of(run):
        events, config = change.to_events(run), change.to_config(run.config)
        if events is None and config is None:
            continue
        changed = timeline if events is None else replace(timeline, events=tuple(events))
        saved = replayed_bytes - replay_trace(changed, config or run.config).peak_reserved_bytes
        after = before_bytes - saved
        how = "replay" if events is None else "events changed"
        effects.append(Effect(change=change, before_bytes=before_bytes, after_bytes=after, how=how))
    by_peak: dict[int, Effect] = {}
    for effect in helpful(effects):  # two changes that come to the same are one piece of advice: what mends a fault
        by_peak.setdefault(effect.after_bytes, effect)
    return list(by_peak.values())


# --- in words ---------------------------------------------------------------------------------------------------


def advice_in_words(setup: TrainingSetup) -> tuple[str, str]:
    """What would lower the peak most, and what one sequence more would add to it."""
    helps = [
        f"{effect.name} → {format_bytes(effect.after_bytes)} (−{effect.saved_bytes / effect.before_bytes:.0%})"
        for effect in best_of_each_kind(effects_on_setup(setup), 3)
    ]
    larger = replace(setup, micro_batch_size=setup.micro_batch_size + 1)
    added = second_step(larger).peak_bytes - second_step(setup).peak_bytes
    return (
        f"What would help most: {'; '.join(helps)}." if helps else "No change offered here lowers the peak.",
        f"One more sequence in the micro-batch would add {format_bytes(added)}.",
    )
