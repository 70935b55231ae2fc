"""The sharding explorer: a model, a stage, 1 to 512 ranks → the peak of each rank, what it sends, a card's line."""

from dataclasses import replace

from memkit.fitting.plans import TrainingPlan, plan_of
from memkit.fitting.room import fit_on
from memkit.formula.parameters import count_parameters
from memkit.hardware.cards import CARDS
from memkit.pictures.bars import short
from memkit.pictures.timeline import choices_figure
from memkit.setup.layouts import STAGES, Layout
from memkit.setup.models import PUBLISHED_MODELS
from memkit.setup.recipes import AUTOCAST_BF16, FUSED_ADAMW
from memkit.setup.training import TrainingSetup
from memkit.sharding.traffic import step_traffic
from memkit.units import format_bytes, format_count
from memkit.widgets.explorer import Choice, Explorer, Number, Switch, View, model_takes

RANKS = (1, 2, 4, 8, 16, 64, 512)
LENGTHS = (512, 1024, 2048, 4096, 8192)
PRECISIONS = ("fp32", "bf16 on fp32 weights")
FOOT = "ranks; above the bars: the peak of a rank, and ↑ what it sends in a step"


class ShardingExplorer(Explorer):
    """Model, stage, ranks, precision, offload, shape of a step, card → bytes a rank and traffic, for 1 to 512 ranks."""

    def view(
        self,
        model=Choice("Model", [n for n, m in PUBLISHED_MODELS.items() if m.max_seq_len > 1024], "Llama-2-7B"),
        stage=Choice("Stage", [(name, number) for number, name in enumerate(STAGES)], 3),
        dp_size=Choice("Ranks", RANKS, 8),
        precision=Choice("Precision", PRECISIONS, PRECISIONS[1]),
        seq_len=Choice("Sequence", LENGTHS, 2048, model_takes),
        micro_batch_size=Number("Micro-batch", 4, low=1, high=32),
        recomputes=Switch("Recompute each block", False),
        offloads=Switch("Offload states to the CPU", False),
        card=Choice("Card", CARDS, "H100 SXM"),
    ) -> View:
        """The chosen number of ranks among the others."""
        setup = TrainingSetup(
            model=PUBLISHED_MODELS[model], recomputation="full" if recomputes else "none",
            micro_batch_size=micro_batch_size, seq_len=seq_len, optimizer=FUSED_ADAMW,
        )
        ways = {ranks: way_of(setup, stage, ranks, precision, offloads) for ranks in RANKS}
        plans = {ranks: plan_of(way, CARDS[card], layout) for ranks, (way, layout) in ways.items()}
        sent = {ranks: step_traffic(*way).sent_bytes for ranks, way in ways.items()}
        room, above = fit_on(CARDS[card], 0).room_bytes, [f"↑ {short(size)}" for size in sent.values()]
        chart = choices_figure(
            {str(ranks): plan.peak for ranks, plan in plans.items()},
            f"{model}, {STAGES[stage]}: the peak of one rank",
            f"{micro_batch_size} × {seq_len} tokens a rank, {precision}; dashed: room on {card}",
            room, RANKS.index(dp_size), above, FOOT,
        )
        table = [("ranks", "peak", "at", "sent a step")]
        for ranks, plan in plans.items():
            table.append((str(ranks), format_bytes(plan.peak_bytes), plan.peak.name, format_bytes(sent[ranks])))
        words = (*verdict(plans, dp_size), f"A rank sends {format_bytes(sent[dp_size])} a step.")
        return View(chart=chart, words=words, table=table, picks={"dp_size": RANKS})


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


def verdict(plans: dict[int, TrainingPlan], dp_size: int) -> tuple[str, str]:
    """Whether it fits, and what more ranks could still take away."""
    own, least = plans[dp_size], plans[RANKS[-1]].peak_bytes
    first = next((ranks for ranks, plan in plans.items() if plan.fits), None)
    if first is None:
        needs = "none of these numbers of ranks fits"
    elif first == 1:
        needs = f"one rank {plans[1].fit.verdict}"
    else:
        needs = f"{first} ranks are the first that {plans[first].fit.verdict}"
    peak = (
        f"{own.layout.name}, {format_count(count_parameters(own.setup.model))} parameters: "
        f"{format_bytes(own.peak_bytes)} a rank at the {own.peak.name}. {own.fit} On this card {needs}."
    )
    rest = (
        f"512 ranks would leave {format_bytes(least)}, or {round(100 * least / own.peak_bytes)} % of it: activations, "
        "gathered blocks and buffers are not shared out."
    )
    return peak, rest
