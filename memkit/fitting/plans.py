"""Every plan that fits a card: a model and tokens per step in, precision, optimizer, recomputation, batch, ... out.

A plan is a ``TrainingSetup`` and, on several cards, a ``Layout``. Its peak is the formula's, whether it fits is
decided by ``room``, its time is computed from the card's rates, and what it gives up is said in words, for memory can
be bought with three coins: time, precision, and how much of the model is trained. ``PlansFound.chosen`` gives up
least, then takes least time, and is traced before it is shown. ``scripts/judge_plans.py`` holds it against traces of
random jobs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import islice, product

from memkit.fitting.batch_plan import cuts_of
from memkit.fitting.room import Fit, fit_on
from memkit.fitting.step import as_high, paged_bytes, peak_of, seconds_of
from memkit.formula.offload import host_bytes
from memkit.formula.states import state_bytes
from memkit.hardware.cards import CARDS, Card
from memkit.recomputation.frontier import beats, pareto_front
from memkit.setup.adapters import AdapterConfig, linear_layers
from memkit.setup.layouts import Layout
from memkit.setup.models import ModelConfig
from memkit.setup.optimizers import GIVEN_UP, Place
from memkit.setup.optimizers import OPTIMIZERS as RECORDS
from memkit.setup.recipes import AUTOCAST_BF16, AUTOCAST_FP16, FP32, FUSED_ADAMW, PURE_BF16, PURE_FP16
from memkit.setup.strategies import CORE, FULL, NONE, SAVE_ATTENTION, SAVE_EVERY_SECOND, SAVE_PRODUCTS, every
from memkit.setup.training import TrainingSetup
from memkit.timeline import Instant
from memkit.units import Printable, Text, aligned_table, as_whole_number, format_bytes, on_page

ROUNDED, ADAPTERS_ONLY, FOUR_BITS = "updates rounded to bf16", "only adapters are trained", "frozen weights in 4 bits"
GIVES_UP = (*GIVEN_UP, ROUNDED, ADAPTERS_ONLY, FOUR_BITS)
"""What a plan may give up besides time, the dearest last."""

PRECISIONS = {"bfloat16": (AUTOCAST_BF16, PURE_BF16), "float16": (AUTOCAST_FP16,)}
"""What is tried where the tensor cores multiply the dtype; a GradScaler refuses gradients in float16."""
BESIDE_ADAPTERS = {"bfloat16": PURE_BF16, "float16": PURE_FP16}
"""Of the frozen weights; the adapters are float32."""

OPTIMIZERS = tuple(
    replace(FUSED_ADAMW, name=record.name, implementation=implementation, place=place)
    for record in RECORDS.values()
    for implementation, place in record.planned
)
"""What the optimizers' records say is to be tried."""

STRATEGIES = (NONE, SAVE_PRODUCTS, SAVE_EVERY_SECOND, SAVE_ATTENTION, every(3), every(2), FULL)
"""The others are left out since one of these costs no more and keeps no more."""


def optimizers_not_tried() -> str:
    """The optimizers that the planner leaves out, those with the same reason together, each time with the reason."""
    by_reason: dict[str, list[str]] = {}
    for record in RECORDS.values():
        if record.not_planned:
            by_reason.setdefault(record.not_planned, []).append(record.name)
    clauses = []
    for reason, (*most, last) in by_reason.items():
        clauses.append(f"{', '.join(most)} and {last}, {reason}" if most else f"{last}, {reason}")
    return "; ".join(clauses)


NOT_TRIED = (
    f"Not tried: {optimizers_not_tried()}; on several cards, other optimizers than AdamW, adapters, blocks of which "
    "only some run again, and sharded groups of fewer cards than all; saved activations on the host; a loss in pieces."
)
RANK = 16
NUM_MISSED = 3


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """A way to train on a card, or on each of several: its highest bytes by formula and, where traced, by the trace."""

    setup: TrainingSetup
    card: Card
    layout: Layout | None = None
    traced_bytes: int | None = None
    host_room_bytes: int | None = None

    @cached_property
    def peak(self) -> Instant:
        """The highest moment of its second step by formula, on each card."""
        return peak_of(self.setup, self.layout)

    @property
    def peak_bytes(self) -> int:
        """Its highest bytes by formula."""
        return self.peak.total_bytes

    @cached_property
    def seconds(self) -> float:
        """Seconds of a step on paper."""
        return seconds_of(self.setup, self.card, self.layout)

    @property
    def fit(self) -> Fit:
        """Whether it fits the card: by the higher of its two peaks."""
        return fit_on(self.card, max(self.peak_bytes, self.traced_bytes or 0))

    @property
    def fits(self) -> bool:
        """Whether it fits by what is expected beside the tensors, and the host's memory, where that is known."""
        return self.fit.is_expected and (self.host_room_bytes is None or self.host_bytes <= self.host_room_bytes)

    @cached_property
    def host_bytes(self) -> int:
        """Bytes of the host's memory that offloading takes, for all ranks together."""
        moved = sum(host_bytes(self.setup).values()) + paged_bytes(self.setup)
        if self.layout is None or not self.layout.offloads:
            return moved
        return sum(state_bytes(self.setup.model, self.setup.precision, self.setup.optimizer).values())

    @property
    def scales_loss(self) -> bool:
        """Whether gradients are float16 on their way, so that small ones are lost without a GradScaler."""
        return "float16" in (self.setup.precision.compute_dtype, self.layout and self.layout.param_dtype)

    @property
    def gives_up(self) -> tuple[str, ...]:
        """Which of ``GIVES_UP``, in that order."""
        setup, adapter = self.setup, self.setup.adapter
        given = {setup.optimizer.record.gives_up}
        if setup.precision == PURE_BF16 and adapter is None:
            given.add(ROUNDED)
        if adapter is not None:
            given |= {ADAPTERS_ONLY, FOUR_BITS} if adapter.base == "nf4" else {ADAPTERS_ONLY}
        return tuple(words for words in GIVES_UP if words in given)

    @property
    def sacrifice(self) -> int:
        """Orders plans: one dear thing is dearer than all cheaper ones."""
        return sum(2 ** GIVES_UP.index(words) for words in self.gives_up)

    @property
    def name(self) -> str:
        """What is chosen, in one line."""
        return f"{self.kept}, {self.cut}"

    @property
    def cut(self) -> str:
        """What runs again, how the batch is cut, and how the run is spread."""
        setup = self.setup
        again = {NONE: "", FULL: "full recomputation, "}.get(setup.recomputation, f"{setup.recomputation.name}, ")
        spread = f", {self.layout.name}" if self.layout else ""
        return f"{again}{setup.micro_batch_size} × {setup.grad_accum_steps}{spread}"

    @property
    def kept(self) -> str:
        """The precision or adapter, and the optimizer and its place."""
        setup = self.setup
        inside = f"fp32 shards, {'fp16' if self.scales_loss else 'bf16'} inside"
        kept = inside if self.layout and self.layout.param_dtype else setup.precision.name
        place = "" if setup.optimizer.place == Place.AFTER_BACKWARD else f" {setup.optimizer.place}"
        if setup.adapter:
            kept = f"{'QLoRA' if setup.adapter.base == 'nf4' else 'LoRA'} of rank {setup.adapter.rank}"
        return f"{kept}, {setup.optimizer.name}{place}"

    @cached_property
    def worth(self) -> tuple[float, ...]:
        """What plans are compared by, less is better: bytes, seconds to the nanosecond, each thing given up or not.

        No number can add these up, so that a plan is beaten only by one that is no worse in each.
        """
        return self.peak_bytes, round(self.seconds, 9), *(words in self.gives_up for words in GIVES_UP)

    def is_beaten_by(self, other: "TrainingPlan") -> bool:
        """Whether the other is no worse in bytes, in time and in what it gives up, and better in one."""
        return beats(other.worth, self.worth)


@dataclass(frozen=True, kw_only=True)
class PlansFound(Printable):
    """Every plan that was tried for a job."""

    plans: tuple[TrainingPlan, ...]
    not_tried: str = ""

    @cached_property
    def fitting(self) -> tuple[TrainingPlan, ...]:
        """Those that fit by formula: what gives up least first, then what takes least time, then bytes.

        Of equal times what runs nothing again is first: only products count, and a policy runs the rest again.
        """
        fitting = (plan for plan in self.plans if plan.fits)

        def order(plan: TrainingPlan) -> tuple:
            return plan.sacrifice, plan.seconds, plan.setup.recomputation != NONE, plan.peak_bytes

        return tuple(sorted(fitting, key=order))

    @cached_property
    def front(self) -> tuple[TrainingPlan, ...]:
        """The Pareto front of those that fit."""
        return pareto_front(self.fitting)

    @cached_property
    def missed(self) -> tuple[TrainingPlan, ...]:
        """Those that do not fit, the nearest first."""
        return tuple(sorted((p for p in self.plans if not p.fits), key=lambda plan: plan.peak_bytes))

    @cached_property
    def chosen(self) -> TrainingPlan | None:
        """The first of ``fitting`` that fits by its trace too, or, where plain torch cannot run it, by formula."""
        verified = (traced(plan) for plan in self.fitting)
        return next((plan for plan in verified if plan.fits), None)

    def table(self) -> Text:
        """The front, a plan a line; as text under what its plans keep and give up, so that a page is wide enough."""
        head, groups = ["plan", "peak", "to spare", "time"], {}
        for plan in self.front:
            groups.setdefault((plan.kept, plan.gives_up), []).append(plan)
        least = min(plan.seconds for plan in self.fitting)
        rows, flat = [], [[*head, "gives up"]]
        for plan in (plan for own in groups.values() for plan in own):
            row = [format_bytes(plan.peak_bytes), format_bytes(plan.fit.expected_bytes), f"{plan.seconds / least:.2f}×"]
            rows.append([f"  {plan.cut}", *row])
            flat.append([plan.name, *row, ", ".join(plan.gives_up) or "–"])
        lines = iter(aligned_table([head, *rows]).splitlines())
        text = [*islice(lines, 2)]
        for (kept, given), own in groups.items():
            words = f"gives up: {', '.join(given)}" if given else "gives up nothing but time"
            text += [f"{kept}; {words}", *islice(lines, len(own))]
        return Text("\n".join(text), aligned_table(flat).html)

    def __str__(self) -> str:
        parts = [self.table()] if self.front else []
        if self.missed:
            short = [f"{p.name}: {too_much(p)}" for p in self.missed[:NUM_MISSED]]
            parts.append(f"{len(self.missed)} of {len(self.plans)} do not fit; the nearest:\n" + "\n".join(short))
        return on_page(*parts, self.not_tried, chosen_in_words(self.chosen))


def chosen_in_words(plan: TrainingPlan | None) -> str:
    """The chosen plan and how it is known."""
    if plan is None:
        return "Nothing fits."
    how = f"traced at {format_bytes(plan.traced_bytes)}" if plan.traced_bytes else "by formula alone"
    host = f" The host holds {format_bytes(plan.host_bytes)}." if plan.host_bytes else ""
    return f"Chosen: {plan.name}; {how}. {plan.fit}{host}"


def too_much(plan: TrainingPlan) -> str:
    """By how much a plan misses the card, or else the host's memory."""
    if not plan.fit.is_expected:
        return f"{format_bytes(-plan.fit.expected_bytes)} too much"
    return f"the host would hold {format_bytes(plan.host_bytes)}, {format_bytes(plan.host_room_bytes)} are there"


def find_plans(
    model: ModelConfig, card: Card, *, tokens_per_step: int, seq_len: int, num_cards: int = 1,
    adapter: AdapterConfig | None = None, host_room_bytes: int | None = None,
) -> PlansFound:
    """Every plan for a model on so many equal cards with so many tokens between two optimizer steps, over all cards.

    With an ``adapter`` only plans that train it are tried, with frozen weights as loaded and in 4 bits.
    ``host_room_bytes``: plans that would keep more in the host's memory do not fit.

    Raises: ValueError: tokens that are no whole number of sequences for every card, or what ``TrainingSetup`` refuses.

    >>> from memkit import CARDS, models
    >>> plans = find_plans(models.GPT2_XL, CARDS["RTX 4090"], tokens_per_step=32768, seq_len=1024)
    >>> plans.fitting[0].name
    'autocast bf16, paged AdamW, 1 × 32'
    """
    sizes = {"tokens_per_step": tokens_per_step, "seq_len": seq_len, "num_cards": num_cards}
    tokens, seq_len, num_cards = (as_whole_number(name, value, 1) for name, value in sizes.items())
    if tokens % (one_pass := seq_len * num_cards):
        near = [count * one_pass for count in (tokens // one_pass, tokens // one_pass + 1) if count]
        raise ValueError(
            f"tokens_per_step={tokens} is no whole number of {seq_len} × {num_cards} tokens; "
            f"{' or '.join(map(str, near))} would be"
        )
    setup = TrainingSetup(model=model, seq_len=seq_len)
    if adapter is not None and num_cards > 1:
        raise ValueError(f"adapter={adapter!r} on num_cards={num_cards}: adapters are planned for one card")
    half = "bfloat16" if "bfloat16" in card.dtypes else "float16"
    layouts = layouts_of(num_cards)
    ways = [way for layout in layouts for way in ways_of(setup, layout, tokens // one_pass, adapter, half)]
    plans = (TrainingPlan(setup=way, card=card, layout=on, host_room_bytes=host_room_bytes) for way, on in ways)
    return PlansFound(plans=tuple(plans), not_tried=" ".join(filter(None, (NOT_TRIED, without_bfloat16(card)))))


def without_bfloat16(card: Card) -> str:
    """What is planned for a card whose tensor cores do not multiply bfloat16; nothing on a newer one.

    >>> from memkit import CARDS
    >>> without_bfloat16(CARDS["A100 SXM 80 GB"])
    ''
    """
    if "bfloat16" in card.dtypes:
        return ""
    return (
        f"The tensor cores of {card.name} do not multiply bfloat16: its plans are in float16, with a GradScaler. They "
        "have float32 gradients, and step on the card once all of them are there: only then is it known whether one "
        "overflowed."
    )


def plan_recomputation(setup: TrainingSetup, card_bytes: int) -> PlansFound:
    """The plans of one setup, which differ in what runs again, on an A100 of so many bytes.

    Raises: ValueError: a card that CUDA's context fills, or a setup without a formula.

    >>> from memkit import GIB, models
    >>> setup = TrainingSetup(model=models.LLAMA_32_1B, precision=PURE_BF16, optimizer=FUSED_ADAMW, seq_len=8192)
    >>> plan_recomputation(setup, 24 * GIB).chosen.setup.recomputation.name
    'save attention and products'
    """
    size = as_whole_number("card_bytes", card_bytes, 1)
    card = replace(CARDS["A100 SXM 80 GB"], name=f"card of {format_bytes(size)}", memory_report=f"{size} bytes")
    return PlansFound(plans=tuple(plan_of(setup.under(strategy), card) for strategy in (*STRATEGIES, CORE, every(4))))


def layouts_of(num_cards: int) -> tuple[Layout | None, ...]:
    """How a run is spread over the cards."""
    if num_cards == 1:
        return (None,)
    stages = tuple(Layout(stage=stage, dp_size=num_cards) for stage in range(4))
    return (*stages, replace(stages[3], offloads=True))


def ways_of(
    setup: TrainingSetup, layout: Layout | None, num_sequences: int, adapter: AdapterConfig | None = None,
    half: str = "bfloat16",
) -> Iterator[tuple[TrainingSetup, Layout | None]]:
    """The combinations that are tried for a window of so many sequences; with an adapter those that train it alone.

    ``half``: the 16-bit dtype that is computed in.
    """
    optimizers = [one for one in OPTIMIZERS if half == "bfloat16" or one.place == Place.AFTER_BACKWARD]
    trained = [] if adapter else product(PRECISIONS[half], optimizers if layout is None else [FUSED_ADAMW], (None,))
    lora = adapter or AdapterConfig(rank=RANK, targets=linear_layers(setup.model))
    bases = (replace(lora, base="as loaded"), replace(lora, base="nf4"))
    adapters = product((BESIDE_ADAPTERS[half],), (FUSED_ADAMW,), bases if layout is None else ())
    for (precision, optimizer, added), strategy, (size, steps) in product(
        (*trained, *adapters), STRATEGIES, cuts_of(num_sequences)
    ):
        if optimizer.frees_gradients and steps > 1:
            continue
        if layout and layout.is_fully_sharded and strategy.period > 1:  # no formula
            continue
        spread = layout
        if layout and layout.is_fully_sharded and precision.uses_autocast:  # FSDP2 casts what it gathers
            precision, spread = FP32, replace(layout, param_dtype=precision.compute_dtype)
        yield replace(
            setup, precision=precision, optimizer=optimizer, adapter=added, recomputation=strategy,
            micro_batch_size=size, grad_accum_steps=steps,
        ), spread


def plan_of(setup: TrainingSetup, card: Card, layout: Layout | None = None) -> TrainingPlan:
    """The plan of a setup on a card, or on each of a layout's."""
    return TrainingPlan(setup=setup, card=card, layout=layout)


def runs_without_a_card(setup: TrainingSetup) -> bool:
    """Whether the optimizer can be traced: torchao's on the host and bitsandbytes' paged ones ask CUDA for memory."""
    return not setup.optimizer.is_on_host and not setup.optimizer.record.is_paged


def traced(plan: TrainingPlan) -> TrainingPlan:
    """The plan with its traced peak; unchanged where plain torch has no such step. Loads torch."""
    return replace(plan, traced_bytes=traced_bytes(as_high(plan.setup), plan.layout))


@lru_cache(maxsize=64)
def traced_bytes(setup: TrainingSetup, layout: Layout | None) -> int | None:
    """The highest bytes of a traced second step on one rank, or ``None`` where torch has no such step."""
    if not runs_without_a_card(setup):
        return None
    try:  # an ImportError: torch is not installed, and the formula is the answer
        from memkit.program.optimizers import class_of
        from memkit.program.sharded import one_rank_of, sharded_build
        from memkit.program.transformer import training_build
        from memkit.tracing.trace import trace_memory

        class_of(setup.optimizer.record)  # its library is imported before the trace pretends that there is a card
        if layout is None:
            return trace_memory(training_build(setup)).for_step(2).peak_bytes
        with one_rank_of(layout.world_size):
            return trace_memory(sharded_build(setup, layout)).for_step(2).peak_bytes
    except (ValueError, ImportError):
        return None
