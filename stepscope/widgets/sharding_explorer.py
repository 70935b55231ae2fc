"""The sharding explorer (chapter 09): a stage on 1 to 512 ranks → a rank's peak and traffic."""

from dataclasses import replace

from memkit.cards import CARDS, Card
from memkit.pictures.bars import short
from memkit.recipes import AUTOCAST_BF16, FUSED_ADAMW
from memkit.setup import TrainingSetup
from memkit.units import format_bytes
from memkit.widgets.explorer import Choice, Explorer, Number, Switch, View, takes_length
from stepscope.experts import PUBLISHED_MODELS
from stepscope.planner.plan import plan_of
from stepscope.setup import STAGES, Layout
from stepscope.sharding import step_traffic, tokens_to_hide
from stepscope.widgets.plan_explorer import plans_view

RANKS = (1, 2, 4, 8, 16, 64, 512)
LENGTHS = (512, 1024, 2048, 4096, 8192)
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
        seq_len=Choice("Sequence", LENGTHS, 2048, takes_length(PUBLISHED_MODELS)),
        micro_batch_size=Number("Micro-batch", 4, low=1, high=32),
        recomputes=Switch("Recompute each block", False),
        offloads=Switch("Offload states to the CPU", False),
        card=Choice("Card", CARDS, "H100 SXM"),
    ) -> View:
        """The chosen number of ranks among the others."""
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
        own, least = plans[str(dp_size)], plans[str(RANKS[-1])].peak_bytes
        sends = f"{own.layout.name}: a rank sends {format_bytes(sent[str(dp_size)])} a step."
        hides = hiding(ways[str(dp_size)], CARDS[card], nics)
        rest = (
            f"{RANKS[-1]} ranks would leave {format_bytes(least)} of the peak, {least / own.peak_bytes:.0%}: "
            "activations, gathered blocks and buffers are not shared out."
        )
        return plans_view(
            plans,
            f"{model}, {STAGES[stage]}: the peak of one rank",
            f"{micro_batch_size} × {seq_len} tokens a rank, {precision}",
            (sends, hides, rest),
            chosen=str(dp_size),
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


def hiding(way: tuple[TrainingSetup, Layout], card: Card, nics: int) -> str:
    """From how many tokens a rank on computing hides the sending, and how many the step has."""
    setup, layout = way
    dtype = layout.param_dtype or setup.precision.compute_dtype
    if layout.dp_size == 1:
        return "One rank sends nothing."
    bytes_per_s = nics * NIC_BYTES_PER_S or card.bytes_per_s_among(layout.dp_size)
    flops_per_s = 1e12 * card.peak_tflops.get(dtype, card.peak_tflops["float32"])
    least = tokens_to_hide(setup, layout, flops_per_s, bytes_per_s)
    tokens = setup.micro_batch_size * setup.seq_len
    return (
        f"On paper this {'hides' if tokens >= least else 'does not hide'} behind the computing: at "
        f"{bytes_per_s / 1e9:.0f} GB/s it takes about {float(f'{least:.2g}'):,.0f} tokens a rank, "
        f"and there are {tokens:,}."
    )
