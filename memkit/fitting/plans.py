"""Every plan that fits a card: a model and tokens per step in, precision, optimizer, recomputation, batch, ... out.

A plan is a ``TrainingSetup``. Its peak is the formula's, whether it fits is decided by ``room``, its time is computed
from the card's rates, and what it gives up is said in words, for memory can be bought with three coins: time,
precision, and how much of the model is trained. ``PlansFound.chosen`` gives up least, then takes least time, and is
traced before it is shown. ``scripts/judge_plans.py`` holds it against traces of random jobs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product

from memkit.fitting.batch_plan import least_seconds, peak_of
from memkit.fitting.room import Fit, fit_on
from memkit.hardware.cards import Card
from memkit.recomputation.costs import step_flops
from memkit.setup.models import ModelConfig
from memkit.setup.recipes import AUTOCAST_BF16, PURE_BF16, OptimizerConfig
from memkit.setup.strategies import FULL, NONE, SAVE_ATTENTION
from memkit.setup.training import MAX_GRAD_ACCUM_STEPS, TrainingSetup
from memkit.units import aligned_table, as_kind, as_whole_number, format_bytes

SMALL_STATES, ROUNDED = "states in 8 bits", "updates rounded to bf16"
GIVES_UP = (SMALL_STATES, ROUNDED)
"""What a plan may give up besides time, the dearest last."""

PRECISIONS = (AUTOCAST_BF16, PURE_BF16)
OPTIMIZERS = (OptimizerConfig(implementation="fused"), OptimizerConfig(name="8-bit AdamW", implementation="fused"))
STRATEGIES = (NONE, SAVE_ATTENTION, FULL)
NUM_MISSED = 3


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """A way to train: its highest bytes by formula and, where it was traced, by the trace; its seconds on paper."""

    setup: TrainingSetup
    card: Card
    peak_bytes: int
    seconds: float
    traced_bytes: int | None = None

    @property
    def fit(self) -> Fit:
        """Whether it fits the card: by the higher of its two peaks."""
        return fit_on(self.card, max(self.peak_bytes, self.traced_bytes or 0))

    @property
    def fits(self) -> bool:
        """Whether it fits by what is expected beside the tensors."""
        return self.fit.expected_bytes >= 0

    @property
    def gives_up(self) -> tuple[str, ...]:
        """Which of ``GIVES_UP``."""
        setup = self.setup
        given = {SMALL_STATES: "8-bit" in setup.optimizer.name, ROUNDED: setup.precision == PURE_BF16}
        return tuple(words for words in GIVES_UP if given[words])

    @property
    def sacrifice(self) -> int:
        """Orders plans: one dear thing is dearer than all cheaper ones."""
        return sum(2 ** GIVES_UP.index(words) for words in self.gives_up)

    @property
    def name(self) -> str:
        """What is chosen, in one line."""
        setup = self.setup
        again = {NONE: "", FULL: ", full recomputation"}.get(setup.recomputation, f", {setup.recomputation.name}")
        batch = f"{setup.micro_batch_size} × {setup.grad_accum_steps}"
        return f"{setup.precision.name}, {setup.optimizer.name}{again}, {batch}"

    def is_beaten_by(self, other: "TrainingPlan") -> bool:
        """Whether the other is no worse in bytes, in time and in what it gives up, and better in one."""
        mine, theirs = (
            (p.peak_bytes, round(p.seconds, 9), set(p.gives_up)) for p in (self, other)
        )  # fmt: skip
        return theirs != mine and all(theirs[i] <= mine[i] for i in range(3))


@dataclass(frozen=True, kw_only=True)
class PlansFound:
    """Every plan that was tried for a job."""

    plans: tuple[TrainingPlan, ...]

    @cached_property
    def fitting(self) -> tuple[TrainingPlan, ...]:
        """Those that fit by formula: what gives up least first, then what takes least time, then bytes."""
        fitting = (plan for plan in self.plans if plan.fits)
        return tuple(sorted(fitting, key=lambda plan: (plan.sacrifice, plan.seconds, plan.peak_bytes)))

    @cached_property
    def front(self) -> tuple[TrainingPlan, ...]:
        """The Pareto front of those that fit: none of the others is as good in bytes, time and what it gives up."""
        return tuple(plan for plan in self.fitting if not any(plan.is_beaten_by(other) for other in self.fitting))

    @cached_property
    def missed(self) -> tuple[TrainingPlan, ...]:
        """Those that do not fit, the nearest first."""
        return tuple(sorted((p for p in self.plans if not p.fits), key=lambda plan: plan.peak_bytes))

    @cached_property
    def chosen(self) -> TrainingPlan | None:
        """The first of ``fitting`` that fits by its trace too, or, where plain torch cannot run it, by formula."""
        verified = (traced(plan) for plan in self.fitting)
        return next((plan for plan in verified if plan.fits), None)

    def __str__(self) -> str:
        head = ["plan", "peak", "to spare", "time", "gives up"]
        least = min((plan.seconds for plan in self.fitting), default=1)
        rows = [
            [p.name, format_bytes(p.peak_bytes), format_bytes(p.fit.expected_bytes), f"{p.seconds / least:.2f}×",
             ", ".join(p.gives_up) or "–"] for p in self.front
        ]  # fmt: skip
        parts = [aligned_table([head, *rows])] if rows else []
        if self.missed:
            short = [f"{p.name}: {format_bytes(-p.fit.expected_bytes)} too much" for p in self.missed[:NUM_MISSED]]
            parts.append(f"{len(self.missed)} of {len(self.plans)} do not fit; the nearest:\n" + "\n".join(short))
        return "\n\n".join([*parts, chosen_in_words(self.chosen)])


def chosen_in_words(plan: TrainingPlan | None) -> str:
    """The chosen plan and how it is known."""
    if plan is None:
        return "Nothing fits."
    how = f"traced at {format_bytes(plan.traced_bytes)}" if plan.traced_bytes else "by formula alone"
    return f"Chosen: {plan.name}; {how}. {plan.fit}"


def find_plans(model: ModelConfig, card: Card, *, tokens_per_step: int, seq_len: int) -> PlansFound:
    """Every plan for a model on a card with so many tokens between two optimizer steps.

    Raises: ValueError: tokens that are no whole number of sequences, or what ``TrainingSetup`` refuses.

    >>> from memkit import CARDS, models
    >>> found = find_plans(models.GPT2_XL, CARDS["RTX 4090"], tokens_per_step=32768, seq_len=1024)
    >>> found.fitting[0].name
    'pure bf16, 8-bit AdamW, 4 × 8'
    """
    as_kind("model", model, ModelConfig)
    as_kind("card", card, Card)
    tokens, seq_len = as_whole_number("tokens_per_step", tokens_per_step, 1), as_whole_number("seq_len", seq_len, 1)
    if tokens % seq_len:
        below, above = tokens // seq_len * seq_len, -(-tokens // seq_len) * seq_len
        raise ValueError(f"tokens_per_step={tokens} is no whole number of {seq_len} tokens: {below} or {above} are")
    setups = setups_of(TrainingSetup(model=model, seq_len=seq_len), tokens // seq_len)
    return PlansFound(plans=tuple(plan_of(setup, card) for setup in setups))


def setups_of(setup: TrainingSetup, num_sequences: int) -> Iterator[TrainingSetup]:
    """The combinations that are tried, for a window of so many sequences."""
    sizes = [2**power for power in range(num_sequences.bit_length()) if num_sequences % 2**power == 0]
    cuts = [(size, num_sequences // size) for size in sizes if num_sequences // size <= MAX_GRAD_ACCUM_STEPS]
    for precision, optimizer, strategy, (size, steps) in product(PRECISIONS, OPTIMIZERS, STRATEGIES, cuts):
        yield replace(
            setup, precision=precision, optimizer=optimizer, recomputation=strategy, micro_batch_size=size,
            grad_accum_steps=steps,
        )  # fmt: skip


def plan_of(setup: TrainingSetup, card: Card) -> TrainingPlan:
    """A plan with its peak by formula and its time on paper."""
    return TrainingPlan(setup=setup, card=card, peak_bytes=peak_of(setup).total_bytes, seconds=seconds_of(setup, card))


def seconds_of(setup: TrainingSetup, card: Card) -> float:
    """Seconds of a step on paper: the least of its passes, what runs again, and what an optimizer's step reads."""
    return least_seconds(setup, card) * (1 + step_flops(setup).overhead)


def traced(plan: TrainingPlan) -> TrainingPlan:
    """The plan with its traced peak; unchanged where plain torch has no such step. Loads torch."""
    setup = plan.setup
    few = replace(setup, grad_accum_steps=min(setup.grad_accum_steps, 2))  # a third micro-batch is as high as a second
    return replace(plan, traced_bytes=traced_bytes(few))


@lru_cache(maxsize=64)
def traced_bytes(setup: TrainingSetup) -> int | None:
    """The highest bytes of a traced second step, or ``None`` where torch has no such step."""
    from memkit.program.transformer import training_build
    from memkit.tracing.trace import trace_memory

    try:
        build = training_build(setup)
    except ValueError:
        return None
    return trace_memory(build).for_step(2).peak_bytes
