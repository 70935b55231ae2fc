"""Explorers of plans: adapters (lesson 10), ranks (lesson 11), and every plan that fits a job (lesson 09).

The first two are the kit's bars, rows and verdicts, one a plan.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from memkit.cards import CARDS, Card
from memkit.fit import fit_on, peak_in_words
from memkit.formula.activations import block_ledger
from memkit.formula.parameters import count_parameters
from memkit.pictures.bars import short
from memkit.recipes import AUTOCAST_BF16, FUSED_ADAMW, PURE_BF16
from memkit.setup import TrainingSetup
from memkit.timeline import Instant, where
from memkit.units import format_bytes, format_count
from memkit.widgets.explorer import (
    Choice,
    Explorer,
    Number,
    Switch,
    View,
    rows_of,
    takes_length,
)
from stepscope.experts import PUBLISHED_MODELS
from stepscope.formula import count_adapter_parameters, job_state_bytes
from stepscope.pictures import choices_figure, plans_figure
from stepscope.planner.plan import GIVES_UP, TrainingPlan, plan_of
from stepscope.planner.search import PlansFound, find_plans
from stepscope.setup import STAGES, AdapterConfig, Job, Layout, linear_layers
from stepscope.sharding import bytes_per_s_among, step_traffic, tokens_to_hide

LENGTHS = (512, 1024, 2048, 4096)


def choices_view(
    peaks: Mapping[str, Instant],
    card: Card,
    title: str,
    subtitle: str,
    words: Sequence[str] = (),
    *,
    chosen: str = "",
    fitting: Collection[str] | None = None,
    columns: Mapping[str, Sequence[str]] | None = None,
    above: Sequence[str] = (),
    foot: str = "",
    picks: Mapping[str, Sequence] | None = None,
) -> View:
    """A bar for each peak, the ``chosen`` one marked; dashed is the room for tensors on the card.

    A line break in a name breaks its label. ``fitting`` are the names of those that fit, if more than the card decides.
    ``columns`` of the table are headers with a text for each peak; ``above`` and ``foot`` are ``choices_figure``'s.
    """
    fits = {name: fit_on(card, peak.total_bytes) for name, peak in peaks.items()}
    if fitting is None:
        fitting = [name for name, fit in fits.items() if fit.is_expected]
    place, room = list(peaks).index(chosen) if chosen else -1, next(iter(fits.values())).room_bytes
    subtitle = f"{subtitle}; dashed: room on {card.name}"
    chart = choices_figure(peaks, title, subtitle, room, place, above, foot)
    those = f"None of the {len(peaks)} fits one {card.name} ({format_bytes(card.memory_bytes)})."
    if fitting:
        names = "; ".join(fitting).replace("\n", " ")
        those = f"Of the {len(peaks)} fit one {card.name}, as expected: {names}."
    own, answer = (), {}
    if chosen:
        own, fit = (peak_in_words(peaks[chosen], card.name),), fits[chosen]
        is_held_back = fit.is_expected and chosen not in fitting  # by more than the card
        answer = {"headline": fit.headline, "verdict": "" if is_held_back else fit.verdict}
    words, table = (*own, those, *words), rows_of(columns_of(peaks, card) | dict(columns or {}))
    return View(chart=chart, words=words, table=table, picks=picks or {}, **answer)


def columns_of(peaks: Mapping[str, Instant], card: Card) -> dict[str, Sequence[str]]:
    """For each name its peak, where that is, and whether it fits."""
    return {
        "plan": [name.replace("\n", " ") for name in peaks],
        "peak": [format_bytes(peak.total_bytes) for peak in peaks.values()],
        "at": [where(peak) for peak in peaks.values()],
        "on the card": [fit_on(card, peak.total_bytes).verdict for peak in peaks.values()],
    }


def plans_view(plans: Mapping[str, TrainingPlan], *said: object, **choice: object) -> View:
    """``choices_view`` of plans for one card; the host's memory counts too."""
    card = next(iter(plans.values())).card
    peaks = {name: plan.peak for name, plan in plans.items()}
    fitting = [name for name, plan in plans.items() if plan.fits]
    return choices_view(peaks, card, *said, fitting=fitting, **choice)


TARGETS = {
    "query, value": ("query", "value"),
    "attention": ("query", "key", "value", "output"),
    "all linear layers": ("query", "key", "value", "output", "gate", "up", "down"),
}
WAYS = {
    "all weights": (None, "none"),
    "LoRA": ("as loaded", "none"),
    "QLoRA": ("nf4", "none"),
    "all, recomputed": (None, "full"),
    "LoRA, recomputed": ("as loaded", "full"),
    "QLoRA, recomputed": ("nf4", "full"),
}
"""What the bars show: how the frozen weights are kept (None: nothing is frozen), and the recomputation."""


def in_this_way(full: Job, adapter: AdapterConfig, base: str | None, recomputation: str) -> Job:
    """The setup with the adapter on such a base, or with all weights trained."""
    chosen = None if base is None else replace(adapter, base=base)
    return replace(full, adapter=chosen, recomputation=recomputation)


class AdapterExplorer(Explorer, verdict=(126,), status=(100, 210)):
    """Model, rank, targets, the adapters' dtype, batch, sequence and card → six ways to fine-tune."""

    def view(
        self,
        model=Choice(
            "Model",
            [n for n, m in PUBLISHED_MODELS.items() if "gate" in linear_layers(m)],
            "Llama-2-7B",
        ),
        targets=Choice("Beside", TARGETS, "attention"),
        rank=Number("Rank", 16, low=1, high=256),
        dtype=Choice("Adapters in", ["float32", "bfloat16"], "float32"),
        micro_batch_size=Number("Micro-batch", 4, low=1, high=32),
        seq_len=Choice("Sequence", LENGTHS, 2048),
        card=Choice("Card", CARDS, "RTX 4090"),
    ) -> View:
        """The peak of each way as a bar; the words are about the adapters and what they leave to be kept."""
        full = Job(
            model=PUBLISHED_MODELS[model],
            precision=PURE_BF16,
            optimizer=FUSED_ADAMW,
            micro_batch_size=micro_batch_size,
            seq_len=seq_len,
        )
        adapter = AdapterConfig(rank=rank, targets=TARGETS[targets], dtype=dtype)
        ways = {name: in_this_way(full, adapter, *way) for name, way in WAYS.items()}
        plans = {name: plan_of(way, CARDS[card]) for name, way in ways.items()}
        count = count_adapter_parameters(full.model, adapter)
        beside = f"LoRA of rank {rank} beside {targets}: {format_count(count)} trained parameters"
        whole, lora = count_parameters(full.model), ways["LoRA"]
        states, of_whole = job_state_bytes(lora), f"{count / whole:.2%} of {format_count(whole)}"
        trained = format_bytes(states["gradients"] + states["optimizer_states"])
        kept, all_kept = (block_ledger(each).per_sbh for each in (lora, full))
        casts = "adapters in bfloat16 keep no cast of their input"
        if dtype == "float32":
            casts = "each adapter in float32 keeps a cast of its input"
        trains = f"{count:,} parameters are trained, {of_whole}"
        keeps = f"A block keeps {kept:.1f} bytes per token and hidden unit, {all_kept:.1f} with"
        frozen = "a frozen weight needs no stored input, but the gradient passes through it"
        words = (
            f"{trains}: their gradients and states take {trained}.",
            f"{keeps} all weights trained: {frozen}; {casts}.",
        )
        columns = {
            part: [format_bytes(getattr(plan.peak, part)) for plan in plans.values()]
            for part in ("weights", "activations")
        }
        subtitle = f"{micro_batch_size} × {seq_len} tokens, weights and arithmetic in bfloat16"
        return plans_view(plans, f"{model}, {beside}", subtitle, words, columns=columns)


RANKS = (1, 2, 4, 8, 16, 64, 512)
PRECISIONS = ("fp32", "bf16 on fp32 weights")
FOOT = "ranks; above the bars: the peak of a rank, and ↑ what it sends in a step"
LINKS = (("inside a node", 0), ("1 NIC a node", 1), ("8 NICs a node", 8))
NIC_BYTES_PER_S = 50 * 10**9  # 400 Gb/s


def goes_with_ranks(nics: int, state: dict) -> bool:
    """Whether so many NICs a node (0: all ranks are in one node) go with the ranks: a node has eight cards."""
    return nics > 0 or state["dp_size"] <= 8


class ShardingExplorer(Explorer, status=(230, 70, 56, 120, 112)):
    """Model, stage, ranks, link, precision, shape of a step, card → bytes a rank and traffic, for 1 to 512 ranks."""

    def view(
        self,
        model=Choice(
            "Model", [n for n, m in PUBLISHED_MODELS.items() if m.max_seq_len > 1024], "Llama-2-7B"
        ),
        stage=Choice("Stage", [(name, number) for number, name in enumerate(STAGES)], 3),
        dp_size=Choice("Ranks", RANKS, 8),
        nics=Choice("Link", LINKS, 0, goes_with_ranks),
        precision=Choice("Precision", PRECISIONS, PRECISIONS[1]),
        seq_len=Choice("Sequence", (*LENGTHS, 8192), 2048, takes_length(PUBLISHED_MODELS)),
        micro_batch_size=Number("Micro-batch", 4, low=1, high=32),
        recomputes=Switch("Recompute each block", False),
        offloads=Switch("Offload states to the CPU", False),
        mfu=Number("MFU, %", 40, low=10, high=100, step=5),
        card=Choice("Card", CARDS, "H100 SXM"),
    ) -> View:
        """The chosen number of ranks among the others; ``mfu``: what is reached of the card's arithmetic."""
        setup = TrainingSetup(
            model=PUBLISHED_MODELS[model],
            recomputation="full" if recomputes else "none",
            micro_batch_size=micro_batch_size,
            seq_len=seq_len,
            optimizer=FUSED_ADAMW,
        )
        ways = {str(ranks): way_of(setup, stage, ranks, precision, offloads) for ranks in RANKS}
        plans = {ranks: plan_of(way, CARDS[card], layout) for ranks, (way, layout) in ways.items()}
        sent = {ranks: step_traffic(*way).sent_bytes for ranks, way in ways.items()}
        own, most = str(dp_size), str(RANKS[-1])
        sends = f"{plans[own].layout.name}: a rank sends {format_bytes(sent[own])} a step."
        least, share = plans[most].peak_bytes, plans[most].peak_bytes / plans[own].peak_bytes
        rest = (
            f"{most} ranks would leave {format_bytes(least)} of the peak, {share:.0%}: "
            "activations, gathered blocks and buffers are not shared out."
        )
        return plans_view(
            plans,
            f"{model}, {STAGES[stage]}: the peak of one rank",
            f"{micro_batch_size} × {seq_len} tokens a rank, {precision}",
            (sends, hiding(*ways[own], CARDS[card], nics, mfu), rest),
            chosen=own,
            columns={"sent a step": [format_bytes(size) for size in sent.values()]},
            above=[f"↑ {short(size)}" for size in sent.values()],
            foot=FOOT,
            picks={"dp_size": RANKS},
        )


def way_of(
    setup: TrainingSetup, stage: int, ranks: int, precision: str, offloads: bool
) -> tuple[TrainingSetup, Layout]:
    """The setup and the layout: in bf16 autocast's casts under DDP, a policy under FSDP2.

    Raises: ValueError: offload without FSDP2.
    """
    layout = Layout(stage=stage, dp_size=ranks, offloads=offloads)
    if precision == PRECISIONS[0]:
        return setup, layout
    if layout.is_fully_sharded:
        return setup, replace(layout, param_dtype="bfloat16", reduce_dtype="float32")
    return replace(setup, precision=AUTOCAST_BF16), layout


def hiding(setup: TrainingSetup, layout: Layout, card: Card, nics: int, mfu: int) -> str:
    """From how many tokens a rank on computing hides the sending, and how many the step has."""
    if layout.dp_size == 1:
        return "One rank sends nothing."
    dtype = layout.param_dtype or setup.precision.compute_dtype
    bytes_per_s = nics * NIC_BYTES_PER_S or bytes_per_s_among(card, layout.dp_size)
    flops_per_s = 1e10 * mfu * card.peak_tflops.get(dtype, card.peak_tflops["float32"])
    least = tokens_to_hide(setup, layout, flops_per_s, bytes_per_s)
    tokens = setup.micro_batch_size * setup.seq_len
    return (
        f"This {'hides' if tokens >= least else 'does not hide'} behind the computing: at {mfu} % of the card's FLOPs "
        f"and {bytes_per_s / 1e9:.0f} GB/s it takes about {float(f'{least:.2g}'):,.0f} tokens a rank, "
        f"and there are {tokens:,}."
    )


NUM_CARDS, MAX_ROWS = (1, 2, 4, 8), 12
ANYTHING, NOTHING = "anything", "nothing but time"
MAY_GIVE_UP = [NOTHING, *GIVES_UP, ANYTHING]


@lru_cache(maxsize=32)
def plans_for(model: str, card: str, tokens: int, seq_len: int, num_cards: int) -> PlansFound:
    """The plans of a job, remembered: finding them takes a second, walking through them must not."""
    sizes = {"tokens_per_step": tokens, "seq_len": seq_len, "num_cards": num_cards}
    return find_plans(PUBLISHED_MODELS[model], CARDS[card], **sizes)


class PlanExplorer(Explorer, verdict=(130,), status=(225, 76, 175, 105)):
    """Model, card, tokens a step, what may be given up → the unbeaten plans, and the command that traces the code.

    ``plan`` counts the unbeaten plans, the one of the least price first.
    """

    job: tuple = ()

    def followed(self, changes: dict) -> dict:
        """Another job starts at its first plan."""
        return changes if "plan" in changes else {**changes, "plan": 1}

    def view(
        self,
        model=Choice("Model", PUBLISHED_MODELS, "Llama-3.2-1B"),
        card=Choice("Card", CARDS, "RTX 5090"),
        tokens_per_step=Number("Tokens a step", 2**14, low=2**12, high=2**17, step=2**12),
        seq_len=Choice("Sequence", LENGTHS, 2048, takes_length(PUBLISHED_MODELS)),
        num_cards=Choice("Cards", NUM_CARDS, 1),
        gives_up=Choice("May give up", MAY_GIVE_UP, ANYTHING),
        plan=Number("Plan", 1, low=1, high=40),
    ) -> View:
        """The staircase, the chosen plan framed; it in words."""
        job = model, card, tokens_per_step, seq_len, num_cards
        found = plans_for(*job)
        # hundreds of points are drawn once a job; each plan frames another of them
        if job != self.job:
            title = f"{model} on {num_cards} × {card}, {tokens_per_step:,} tokens a step"
            self.job, self.chart = job, plans_figure(found, title)
        # the unbeaten plans that give up nothing dearer than what is allowed, by price
        allowed = set(GIVES_UP[: MAY_GIVE_UP.index(gives_up)])
        unbeaten = tuple(each for each in found.front if set(each.gives_up) <= allowed)
        if plan > max(len(unbeaten), 1):
            raise ValueError(f"plan={plan} is past the last of {len(unbeaten)} unbeaten ones")
        times = {
            each.name: f"{each.seconds / min(other.seconds for other in found.front):.2f}"
            for each in unbeaten
        }
        if unbeaten:
            chosen = unbeaten[plan - 1]
            self.chart.marked = found.plans.index(chosen)
            gives = f"it gives up {' and '.join(chosen.gives_up) or NOTHING}"
            price = f"{chosen.price / found.first.price:.2f} × the least price"
            words = [
                f"Plan {plan} of {len(unbeaten)} unbeaten: {chosen.name}.",
                peak_in_words(chosen.peak, card),
                f"A step takes {times[chosen.name]} × the least time; {gives}: {price}.",
                *found.why(chosen).splitlines()[1:2],
            ]
            if chosen is found.first:
                sizes = f"--tokens {tokens_per_step} --seq-len {seq_len} --cards {num_cards}"
                command = f"stepscope fit '{model}' --card '{card}' {sizes}"
                words.append(f"Its code, traced: {command}")
        else:
            self.chart.marked = None
            more = "No plan of another kind fits either: fewer tokens in a sequence, or more cards."
            if first := found.first:
                more = (
                    f"{first.name} would fit; it gives up {' and '.join(first.gives_up) or 'time'}."
                )
            words = [f"No plan fits that gives up {gives_up}.", more]
        rows = {each.name: each for each in unbeaten[:MAX_ROWS]}
        columns = {
            "time ÷ least": [times[name] for name in rows],
            "gives up": [", ".join(each.gives_up) or "nothing" for each in rows.values()],
        }
        peaks = {name: each.peak for name, each in rows.items()}
        return View(
            chart=self.chart,
            words=words,
            table=rows_of(columns_of(peaks, CARDS[card]) | columns),
            kept=(found, unbeaten),
            ends={"plan": max(len(unbeaten), 1)},
        )

    def pick(self, mark: str) -> None:
        """Choose the plan whose point was clicked, if it fits."""
        found, unbeaten = self.shown.kept
        if found.plans[int(mark)] in unbeaten:
            self.set(plan=unbeaten.index(found.plans[int(mark)]) + 1)
