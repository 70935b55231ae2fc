"""Every plan for a job: a model and tokens per step in, precision, optimizer, recomputation, batch, ... out.

Whether a plan fits is decided by ``room``, its time is computed from the card's rates, and what it gives up is said in
words. ``PlansFound.chosen`` gives up least, then takes least time, and its very code is traced before it is shown.
``dev/judge_plans.py`` holds the plans against traces of random jobs.

A peak by formula takes milliseconds and a job has thousands of plans, so a plan is played only if what it keeps at
rest and from forward to backward leaves it a chance: ``least_bytes`` is below its peak, and costs next to nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from memkit.cards import CARDS, Card
from memkit.models import ModelConfig
from memkit.setup import TrainingSetup
from memkit.strategies import CORE, FULL, NONE, SAVE_ATTENTION, SAVE_EVERY_SECOND, SAVE_PRODUCTS, every
from memkit.units import Printable, Text, aligned_table, as_one_of, as_whole_number, format_bytes, on_page
from stepscope.fitting.grid import layouts_of, not_tried, ways_of
from stepscope.fitting.plan import TrainingPlan, plan_of
from stepscope.fitting.plan_code import LIBRARIES, why_not
from stepscope.fitting.plan_run import traced
from stepscope.setup import AdapterConfig, Job

NUM_MISSED = 3
NUM_NEIGHBOURS = 3
NUM_SHOWN = 12


@dataclass(frozen=True, kw_only=True)
class PlansFound(Printable):
    """Every plan that was tried for a job. ``kind`` is that of the code that is asked for."""

    plans: tuple[TrainingPlan, ...]
    not_tried: str = ""
    kind: str = "plain"

    @cached_property
    def in_order(self) -> tuple[TrainingPlan, ...]:
        """Those that the code can say: what gives up least first, then what takes least time.

        Of equal times what runs nothing again is first: only products count, and a policy runs the rest again.
        """

        def order(plan: TrainingPlan) -> tuple:
            return plan.sacrifice, plan.seconds, plan.setup.recomputation != NONE, plan.least_bytes

        return tuple(sorted((plan for plan in self.plans if not why_not(plan, self.kind)), key=order))

    @cached_property
    def first(self) -> TrainingPlan | None:
        """The first that fits by formula."""
        return next(self.fitting, None)

    @cached_property
    def chosen(self) -> TrainingPlan | None:
        """The first that fits by the trace of its own code too, or, where no trace follows that, by formula."""
        return next((plan for plan in (traced(plan, self.kind) for plan in self.fitting) if plan.fits), None)

    @property
    def fitting(self) -> Iterator[TrainingPlan]:
        """Those that fit by formula, in order; each is played when it is asked for."""
        return (plan for plan in self.in_order if plan.may_fit and plan.fits)

    @cached_property
    def front(self) -> tuple[TrainingPlan, ...]:
        """The unbeaten: no plan that fits is as fast and gives up nothing dearer. Of a few plans all that fit.

        Memory that stays free is of no use, so that bytes decide only whether a plan fits.
        """
        if len(self.plans) <= NUM_SHOWN:
            return tuple(self.fitting)
        stairs: list[TrainingPlan] = []
        for plan in self.in_order:
            if (not stairs or plan.seconds < stairs[-1].seconds) and plan.may_fit and plan.fits:
                stairs.append(plan)
        return tuple(stairs)

    @property
    def played(self) -> tuple[TrainingPlan, ...]:
        """Those whose peak is known by now."""
        return tuple(plan for plan in self.plans if "peak" in vars(plan))

    @cached_property
    def missed(self) -> tuple[TrainingPlan, ...]:
        """The nearest of those that do not fit and would come before the first that does."""
        before = self.in_order[: self.in_order.index(self.first)] if self.first else self.in_order
        nearest: list[TrainingPlan] = []
        for plan in sorted(before, key=lambda plan: plan.least_bytes):
            if len(nearest) == NUM_MISSED and plan.least_bytes >= nearest[-1].peak_bytes:
                break
            nearest = sorted([*nearest, plan], key=lambda plan: plan.peak_bytes)[:NUM_MISSED]
        return tuple(nearest)

    def neighbours(self, plan: TrainingPlan) -> tuple[TrainingPlan, ...]:
        """Unbeaten plans that are faster than this one, each of which gives up something dearer."""
        faster = [other for other in self.front if other.sacrifice > plan.sacrifice and other.seconds < plan.seconds]
        return tuple(faster[:NUM_NEIGHBOURS])

    def why(self, plan: TrainingPlan) -> str:
        """Why a plan is the one to take: what it gives up, and what its neighbours would."""
        others = self.neighbours(plan)
        faster = "Plans that are faster and fit give up something dearer:" if others else "No plan that fits is faster."
        words = [f"It gives up: {', '.join(plan.gives_up) or 'nothing but time'}. {faster}"]
        for other in others:
            lost = [each for each in other.gives_up if each not in plan.gives_up]
            words.append(
                f"{other.name} would take {other.seconds / plan.seconds:.2f} of its time and "
                f"{format_bytes(other.peak_bytes)}; it gives up: {', '.join(lost)}."
            )
        return "\n".join(words)

    def table(self) -> Text:
        """The front, a plan a line; as text with what each gives up below it, so that a page is wide enough."""
        least = min(plan.seconds for plan in self.front)
        head, rows = ["plan", "peak", "to spare", "time"], []
        for plan in self.front:
            sizes = format_bytes(plan.peak_bytes), format_bytes(plan.fit.expected_bytes)
            rows.append([plan.name, *sizes, f"{plan.seconds / least:.2f}×"])
        given = [", ".join(plan.gives_up) or "nothing but time" for plan in self.front]
        flat = [[*head, "gives up"], *([*row, words] for row, words in zip(rows, given, strict=True))]
        name, rule, *lines = aligned_table([head, *rows]).splitlines()
        pairs = zip(lines, given, strict=True)
        return Text("\n".join([name, rule, *(f"{line}\n  gives up: {words}" for line, words in pairs)]),
                    aligned_table(flat).html)

    def __str__(self) -> str:
        parts = [self.table()] if self.front else []
        if self.missed:
            short = [f"{plan.name}: {too_much(plan)}" for plan in self.missed]
            parts.append("Nearest of those that would come first and do not fit:\n" + "\n".join(short))
        chosen = self.chosen
        return on_page(*parts, self.not_tried, chosen_in_words(chosen), self.why(chosen) if chosen else "")


def chosen_in_words(plan: TrainingPlan | None) -> str:
    """The chosen plan and how it is known."""
    if plan is None:
        return "Nothing fits."
    promised = f"promised {format_bytes(plan.peak_bytes)}"
    how = f"its code traced at {format_bytes(plan.traced_bytes)}" if plan.traced_bytes else "not traced: no torch here"
    host = f" The host holds {format_bytes(plan.host_bytes)}." if plan.host_bytes else ""
    setup, many = plan.setup, "es" if plan.setup.grad_accum_steps > 1 else ""
    step = f"A step is {setup.grad_accum_steps} micro-batch{many} of {setup.micro_batch_size} × {setup.seq_len} tokens"
    return f"Chosen: {plan.name}; {promised}, {how}. {step}{' on each card' if plan.layout else ''}. {plan.fit}{host}"


def too_much(plan: TrainingPlan) -> str:
    """By how much a plan misses the card, or else the host's memory."""
    if not plan.fit.is_expected:
        return f"{format_bytes(-plan.fit.expected_bytes)} too much"
    return f"the host would hold {format_bytes(plan.host_bytes)}, {format_bytes(plan.host_room_bytes)} are there"


def find_plans(
    model: ModelConfig, card: Card, *, tokens_per_step: int, seq_len: int, num_cards: int = 1,
    adapter: AdapterConfig | None = None, host_room_bytes: int | None = None, code: str = "plain",
) -> PlansFound:
    """Every plan for a model on so many equal cards with so many tokens between two optimizer steps, over all cards.

    With an ``adapter`` only plans that train it are tried, with frozen weights as loaded and in 4 bits.
    ``host_room_bytes``: plans that would keep more in the host's memory do not fit. ``code`` is the kind of text that
    is to say the plan; models of transformers write their RMSNorm in Python, which keeps more.

    Raises: ValueError: tokens that are no whole number of sequences for every card, or what ``TrainingSetup`` refuses.

    >>> from memkit import CARDS, models
    >>> plans = find_plans(models.GPT2_XL, CARDS["RTX 4090"], tokens_per_step=32768, seq_len=1024)
    >>> plans.first.name
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
    is_ours = LIBRARIES[as_one_of("code", code, LIBRARIES)] == "book"
    job = Job(model=model, seq_len=seq_len, uses_fused_norm=is_ours)
    if adapter is not None and num_cards > 1:
        raise ValueError(f"adapter={adapter!r} on num_cards={num_cards}: adapters are planned for one card")
    plans = tuple(
        TrainingPlan(setup=way, card=card, layout=spread, host_room_bytes=host_room_bytes)
        for layout in layouts_of(num_cards)
        for way, spread in ways_of(job, layout, tokens // one_pass, card, adapter)
    )
    left_out, refused = not_tried(card, num_cards), dict.fromkeys(filter(None, (why_not(p, code) for p in plans)))
    if refused:
        left_out = "\n- ".join([f"{left_out}\nNot offered as {code}:", *refused])
    return PlansFound(plans=plans, not_tried=left_out, kind=code)


def plan_recomputation(setup: TrainingSetup, card_bytes: int) -> PlansFound:
    """The plans of one setup, which differ in what runs again, on an A100 of so many bytes.

    Raises: ValueError: a card that CUDA's context fills, or a setup without a formula.

    >>> from memkit import GIB, models
    >>> from memkit.recipes import FUSED_ADAMW, PURE_BF16
    >>> setup = TrainingSetup(model=models.LLAMA_32_1B, precision=PURE_BF16, optimizer=FUSED_ADAMW, seq_len=8192)
    >>> plan_recomputation(setup, 24 * GIB).chosen.setup.recomputation.name
    'save attention and products'
    """
    size = as_whole_number("card_bytes", card_bytes, 1)
    card = replace(CARDS["A100 SXM 80 GB"], name=f"card of {format_bytes(size)}", memory_report=f"{size} bytes")
    return PlansFound(plans=tuple(plan_of(setup.under(strategy), card) for strategy in NINE))


NINE = NONE, CORE, SAVE_PRODUCTS, SAVE_EVERY_SECOND, SAVE_ATTENTION, every(4), every(3), every(2), FULL
"""The recomputations of chapter 04."""
