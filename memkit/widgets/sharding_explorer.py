"""The sharding explorer: a model, a stage, 1 to 512 ranks → the peak of each rank, what it sends, a card's line."""

from dataclasses import replace
from typing import ClassVar

from memkit.fitting.batch_plan import peak_of
from memkit.fitting.room import fit_on
from memkit.formula.parameters import count_parameters
from memkit.hardware.cards import CARDS, Card
from memkit.pictures.peaks import choices_figure
from memkit.pictures.timeline import short
from memkit.setup.layouts import STAGES, Layout
from memkit.setup.models import PUBLISHED_MODELS
from memkit.setup.recipes import AUTOCAST_BF16, OptimizerConfig
from memkit.setup.training import TrainingSetup
from memkit.sharding.traffic import step_traffic
from memkit.timeline import Instant
from memkit.units import format_bytes, format_count
from memkit.widgets.explorer import Choice, Explorer, Number, Switch, View

RANKS = (1, 2, 4, 8, 16, 64, 512)
LENGTHS = (512, 1024, 2048, 4096, 8192)
PRECISIONS = ("fp32", "bf16 on fp32 weights")
FOOT = "ranks; above the bars: the peak of a rank, and ↑ what it sends in a step"


class ShardingExplorer(Explorer):
    """Model, stage, ranks, precision, offload, shape of a step, card → bytes a rank and traffic, for 1 to 512 ranks."""

    controls: ClassVar = {
        "model": Choice(
            "Model", [n for n, m in PUBLISHED_MODELS.items() if m.max_seq_len > 1024], "Llama-2-7B"
        ),
        "stage": Choice("Stage", [(name, number) for number, name in enumerate(STAGES)], 3),
        "dp_size": Choice("Ranks", list(RANKS), 8),
        "precision": Choice("Precision", list(PRECISIONS), PRECISIONS[1]),
        "seq_len": Choice("Sequence", list(LENGTHS), 2048),
        "micro_batch_size": Number("Micro-batch", 4, low=1, high=32),
        "recomputes": Switch("Recompute each block", False),
        "offloads": Switch("Offload states to the CPU", False),
        "card": Choice("Card", list(CARDS), "H100 SXM"),
    }

    def offered(self, state: dict) -> dict[str, tuple]:
        """Only sequences that the model takes."""
        return {"seq_len": tuple(n for n in LENGTHS if n <= PUBLISHED_MODELS[state["model"]].max_seq_len)}

    def view(
        self,
        model: str,
        stage: int,
        dp_size: int,
        precision: str,
        seq_len: int,
        micro_batch_size: int,
        recomputes: bool,
        offloads: bool,
        card: str,
    ) -> View:
        """The chosen number of ranks among the others."""
        config, capacity = PUBLISHED_MODELS[model], fit_on(CARDS[card], 0).room_bytes
        setup = TrainingSetup(
            model=config,
            seq_len=seq_len,
            micro_batch_size=micro_batch_size,
            recomputation="full" if recomputes else "none",
            optimizer=OptimizerConfig(implementation="fused"),
        )
        ways = [way_of(setup, stage, ranks, precision, offloads) for ranks in RANKS]
        peaks = [peak_of(*way) for way in ways]
        sent = [step_traffic(*way).sent_bytes for way in ways]
        title = f"{model}, {STAGES[stage]}: the peak of one rank"
        subtitle = f"{micro_batch_size} × {seq_len} tokens a rank, {precision}; dashed: {card}"
        above, bars = [f"↑ {short(bytes_)}" for bytes_ in sent], dict(zip(map(str, RANKS), peaks, strict=True))
        chart = choices_figure(bars, title, subtitle, capacity, RANKS.index(dp_size), above, FOOT)
        rows = [
            (str(ranks), format_bytes(peak.total_bytes), peak.name, format_bytes(bytes_))
            for ranks, peak, bytes_ in zip(RANKS, peaks, sent, strict=True)
        ]
        words = verdict(setup, ways[RANKS.index(dp_size)][1], peaks, sent, CARDS[card])
        table = (("ranks", "peak", "at", "sent a step"), *rows)
        return View(chart=chart, words=words, table=table)

    def pick(self, mark: str) -> None:
        """Choose the number of ranks whose bar was clicked."""
        self.set(dp_size=RANKS[int(mark)])


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


def verdict(
    setup: TrainingSetup, layout: Layout, peaks: list[Instant], sent: list[int], card: Card
) -> tuple[str, ...]:
    """Whether it fits, what more ranks could still take away, and what a step sends."""
    chosen = RANKS.index(layout.dp_size)
    fits = [fit_on(card, peak.total_bytes) for peak in peaks]
    own, least = peaks[chosen].total_bytes, peaks[-1].total_bytes
    first = next((ranks for ranks, fit in zip(RANKS, fits, strict=True) if fit.is_expected), None)
    if first is None:
        needs = "none of these numbers of ranks fits"
    elif first == 1:
        needs = f"one rank {fits[0].verdict}"
    else:
        needs = f"{first} ranks are the first that {fits[RANKS.index(first)].verdict}"
    peak = (
        f"{layout.name}, {format_count(count_parameters(setup.model))} parameters: {format_bytes(own)} a rank at the "
        f"{peaks[chosen].name}. {fits[chosen]} On this card {needs}."
    )
    rest = (
        f"512 ranks would leave {format_bytes(least)}, or {round(100 * least / own)} % of it: activations, gathered "
        "blocks and buffers are not shared out."
    )
    return peak, rest, f"A rank sends {format_bytes(sent[chosen])} a step."
