"""Every plan for a job: a model and tokens per step in, precision, optimizer, recomputation, batch, ... out.

Whether a plan fits is decided by ``memkit.fit``, its time is computed from the card's rates, and what it gives
up is said in words. ``RULE`` is the order of plans; the code of the chosen one is traced before it is shown.
``dev/judge_plans.py`` holds the plans against traces of random jobs.

A peak by formula takes milliseconds and a job has thousands of plans, so a plan is played only if what it keeps at
rest and from forward to backward leaves it a chance: ``least_bytes`` is below its peak, and costs next to nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from memkit.cards import Card
from memkit.models import ModelConfig
from memkit.strategies import NONE
from memkit.units import (
    Printable,
    Text,
    aligned_table,
    as_one_of,
    as_whole_number,
    format_bytes,
    on_page,
)
from stepscope.planner.code import MODELS, why_not
from stepscope.planner.plan import FACTORS, HOST_SHARE, TrainingPlan
from stepscope.planner.run_code import traced
from stepscope.planner.ways import layouts_of, not_tried, ways_of
from stepscope.setup import AdapterConfig, Job

NUM_MISSED = 3
NUM_NEIGHBOURS = 3
NUM_SHOWN = 12

RULE = (
    "Of the plans that fit even at worst (if none does, of the tight that probably fit) the first has the least price: "
    "the time of its step, times the factor of each thing that it gives up."
)


@dataclass(frozen=True, kw_only=True)
class PlansFound(Printable):
    """Every plan that was tried for a job. ``kind`` is whose model the code is for."""

    plans: tuple[TrainingPlan, ...]
    not_tried: str = ""
    kind: str = "plain"

    @cached_property
    def in_order(self) -> tuple[TrainingPlan, ...]:
        """Those that the code can say, by their price.

        Of equal prices what runs nothing again is first: only products count, and a policy runs the rest again.
        """
        said = (plan for plan in self.plans if not why_not(plan, self.kind))
        return tuple(sorted(said, key=lambda plan: (plan.price, *among_equals(plan))))

    @property
    def fitting(self) -> Iterator[TrainingPlan]:
        """Those that fit even at worst, or if none does the tight that probably do, by price; played when asked for."""
        at_worst = (plan for plan in self.in_order if plan.fits_at_worst)
        if (first := next(at_worst, None)) is not None:
            return chain([first], at_worst)
        return (plan for plan in self.in_order if plan.fits)

    @cached_property
    def first(self) -> TrainingPlan | None:
        """The first that fits by formula."""
        return next(self.fitting, None)

    @cached_property
    def chosen(self) -> TrainingPlan | None:
        """The first that fits as surely by the trace of its own code, or, where no trace follows that, by formula."""
        for plan in self.fitting:
            run = traced(plan, self.kind)
            if run.fits_at_worst or (run.fits and not plan.fits_at_worst):
                return run
        return None

    @cached_property
    def front(self) -> tuple[TrainingPlan, ...]:
        """The unbeaten, by price: no plan that fits as surely is as fast by as small a factor.

        Memory that stays free is of no use, so that bytes decide only whether a plan fits. Of a few plans all that fit.
        """
        if len(self.plans) <= NUM_SHOWN:
            return tuple(self.fitting)
        at_worst, stairs = self.first is not None and self.first.fits_at_worst, []
        order = sorted(self.in_order, key=lambda p: (p.factor, p.seconds, *among_equals(p)))
        for plan in order:
            is_faster = not stairs or plan.seconds < stairs[-1].seconds
            if is_faster and (plan.fits_at_worst if at_worst else plan.fits):
                stairs.append(plan)
        return tuple(sorted(stairs, key=lambda plan: plan.price))

    @property
    def played(self) -> tuple[TrainingPlan, ...]:
        """Those whose peak is known by now."""
        return tuple(plan for plan in self.plans if "peak" in vars(plan))

    @cached_property
    def missed(self) -> tuple[TrainingPlan, ...]:
        """The nearest of those that do not fit, or not as surely, and would come before the first that does."""
        before = self.in_order[: self.in_order.index(self.first)] if self.first else self.in_order
        nearest: list[TrainingPlan] = []
        for plan in sorted(before, key=lambda plan: plan.least_bytes):
            if len(nearest) == NUM_MISSED and plan.least_bytes >= nearest[-1].peak_bytes:
                break
            nearest = sorted([*nearest, plan], key=lambda plan: plan.peak_bytes)[:NUM_MISSED]
        return tuple(nearest)

    def why(self, plan: TrainingPlan) -> str:
        """Why a plan is the one to take: what it gives up, and what the unbeaten ones next in price would."""
        words = [f"It gives up: {given_up(plan)}."]
        dearer = [other for other in self.front if other.price > plan.price]
        for other in dearer[:NUM_NEIGHBOURS]:
            words.append(
                f"{other.name} would take {other.seconds / plan.seconds:.2f} of its time and "
                f"{format_bytes(other.peak_bytes)} and give up {given_up(other)}: "
                f"{other.price / plan.price:.2f} of its price."
            )
        return "\n".join(words)

    def table(self) -> Text:
        """The front; as text a line of numbers for each plan, and below it its name and what it gives up."""
        first = min(plan.price for plan in self.front)
        least = min(plan.seconds for plan in self.front)
        head, rows = ["peak", "at worst", "time", "price"], []
        for plan in self.front:
            spare = f"{format_bytes(plan.fit.least_bytes)} left".replace("-", "−")
            ratios = f"{plan.seconds / least:.2f}×", f"{plan.price / first:.2f}×"
            rows.append([format_bytes(plan.peak_bytes), spare, *ratios])
        flat = [["plan", *head, "gives up"]]
        flat += [[p.name, *row, given_up(p)] for p, row in zip(self.front, rows, strict=True)]
        name, rule, *lines = aligned_table([head, *rows]).splitlines()
        pairs = zip(lines, self.front, strict=True)
        below = (f"{line}\n  {p.name}\n  gives up: {given_up(p)}" for line, p in pairs)
        return Text("\n".join([name, rule, *below]), aligned_table(flat).html)

    def __str__(self) -> str:
        parts, chosen = [self.table()] if self.front else [], self.chosen
        if self.missed:
            short = [f"{plan.name}: {too_much(plan)}" for plan in self.missed]
            head = "Nearest of those that have a lower price and do not fit as surely:"
            parts.append("\n".join([head, *short]))
        words = chosen_in_words(chosen), self.why(chosen) if chosen else ""
        return on_page(*parts, rule_in_words(), self.not_tried, *words)


def among_equals(plan: TrainingPlan) -> tuple[bool, int]:
    """Orders plans of one price: first what runs nothing again, then what may take less."""
    return plan.setup.recomputation != NONE, plan.least_bytes


def given_up(plan: TrainingPlan) -> str:
    """What it gives up besides time."""
    return ", ".join(plan.gives_up) or "nothing but time"


def rule_in_words() -> str:
    """``RULE``, and the factors."""
    factors = ", ".join(f"{words} {factor:g}" for words, factor in FACTORS.items())
    host = f"The host is taken to have {HOST_SHARE} times the cards' memory, unless you say it."
    return f"{RULE} The factors, a judgement: {factors}. {host}"


def chosen_in_words(plan: TrainingPlan | None) -> str:
    """The chosen plan and how it is known."""
    if plan is None:
        return "Nothing fits."
    promised, how = f"promised {format_bytes(plan.peak_bytes)}", "not traced: no torch here"
    if plan.traced_bytes:
        how = f"its code traced at {format_bytes(plan.traced_bytes)}"
    host = f" The host holds {format_bytes(plan.host_bytes)}." if plan.host_bytes else ""
    setup, many = plan.setup, "es" if plan.setup.grad_accum_steps > 1 else ""
    step = f"A step is {setup.grad_accum_steps} micro-batch{many} of {setup.micro_batch_size} × {setup.seq_len} tokens"
    return f"Chosen: {plan.name}; {promised}, {how}. {step}{' on each card' if plan.layout else ''}. {plan.fit}{host}"


def too_much(plan: TrainingPlan) -> str:
    """By how much a plan misses the card, or else the host's memory."""
    if not plan.fit.is_expected:
        return f"{format_bytes(-plan.fit.expected_bytes)} too much"
    if plan.has_host_room:
        return f"tight, at worst {format_bytes(-plan.fit.least_bytes)} too much"
    return f"the host would hold {format_bytes(plan.host_bytes)}, {format_bytes(plan.host_room_bytes)} are there"


def find_plans(
    model: ModelConfig,
    card: Card,
    *,
    tokens_per_step: int,
    seq_len: int,
    num_cards: int = 1,
    adapter: AdapterConfig | None = None,
    host_room_bytes: int | None = None,
    code: str = "plain",
) -> PlansFound:
    """Every plan for a model on so many equal cards with so many tokens between two optimizer steps, over all cards.

    With an ``adapter`` only plans that train it are tried, with frozen weights as loaded and in 4 bits.
    ``host_room_bytes``: plans that would keep more in the host's memory do not fit; left out, ``HOST_SHARE`` times the
    cards' memory. ``code`` is the kind of text that is to say the plan; models of transformers write their RMSNorm in
    Python, which keeps more.

    Raises: ValueError: tokens that are no whole number of sequences for every card, or what ``TrainingSetup`` refuses.

    >>> from memkit import CARDS, models
    >>> plans = find_plans(models.GPT2_XL, CARDS["RTX 4090"], tokens_per_step=32768, seq_len=1024)
    >>> plans.first.name
    'autocast bf16, torchao 8-bit AdamW, save attention and products, 1 × 32'
    """
    sizes = {"tokens_per_step": tokens_per_step, "seq_len": seq_len, "num_cards": num_cards}
    tokens, seq_len, num_cards = (as_whole_number(name, value, 1) for name, value in sizes.items())
    if tokens % (one_pass := seq_len * num_cards):
        near = [count * one_pass for count in (tokens // one_pass, tokens // one_pass + 1) if count]
        raise ValueError(
            f"tokens_per_step={tokens} is no whole number of {seq_len} × {num_cards} tokens; "
            f"{' or '.join(map(str, near))} would be"
        )
    is_ours = as_one_of("code", code, MODELS) == "plain"
    job = Job(model=model, seq_len=seq_len, uses_fused_norm=is_ours)
    if adapter is not None and num_cards > 1:
        raise ValueError(
            f"adapter={adapter!r} on num_cards={num_cards}: adapters are planned for one card"
        )
    if host_room_bytes is None:
        host_room_bytes = HOST_SHARE * num_cards * card.memory_bytes
    plans = tuple(
        TrainingPlan(setup=way, card=card, layout=spread, host_room_bytes=host_room_bytes)
        for layout in layouts_of(num_cards)
        for way, spread in ways_of(job, layout, tokens // one_pass, card, adapter)
    )
    left_out = not_tried(card, num_cards)
    refused = dict.fromkeys(filter(None, (why_not(p, code) for p in plans)))
    if refused:
        left_out = "\n- ".join([f"{left_out}\nNot offered as {code}:", *refused])
    return PlansFound(plans=plans, not_tried=left_out, kind=code)
