"""The adapter explorer: rank and targets of LoRA → parameters, bytes, kept activations, and the peak beside others."""

from dataclasses import replace
from functools import lru_cache

from memkit.fitting.plans import TrainingPlan, plan_of
from memkit.formula.activations import block_ledger
from memkit.formula.parameters import count_adapter_parameters, count_parameters
from memkit.formula.states import state_bytes
from memkit.hardware.cards import CARDS, Card
from memkit.pictures.timeline import choices_figure
from memkit.setup.adapters import AdapterConfig
from memkit.setup.models import PUBLISHED_MODELS
from memkit.setup.recipes import FUSED_ADAMW, PURE_BF16
from memkit.setup.training import TrainingSetup
from memkit.units import format_bytes, format_count
from memkit.widgets.explorer import Choice, Explorer, Number, View

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
MODELS = [name for name, model in PUBLISHED_MODELS.items() if not model.fuses_qkv]


class AdapterExplorer(Explorer):
    """Model, rank, targets, the adapters' dtype, batch, sequence and card → six ways to fine-tune."""

    def view(
        self,
        model=Choice("Model", MODELS, "Llama-2-7B"),
        targets=Choice("Beside", TARGETS, "attention"),
        rank=Number("Rank", 16, low=1, high=256),
        dtype=Choice("Adapters in", ["float32", "bfloat16"], "float32"),
        micro_batch_size=Number("Micro-batch", 4, low=1, high=32),
        seq_len=Choice("Sequence", [512, 1024, 2048, 4096], 2048),
        card=Choice("Card", CARDS, "RTX 4090"),
    ) -> View:
        """The peak of each way as a bar; the words are about the adapters and what they leave to be kept."""
        shape = {"micro_batch_size": micro_batch_size, "seq_len": seq_len}
        full = TrainingSetup(model=PUBLISHED_MODELS[model], precision=PURE_BF16, optimizer=FUSED_ADAMW, **shape)
        adapter = AdapterConfig(rank=rank, targets=TARGETS[targets], dtype=dtype)
        plans = {name: plan_of(in_this_way(full, adapter, *way), CARDS[card]) for name, way in WAYS.items()}
        count = format_count(count_adapter_parameters(full.model, adapter))
        chart = choices_figure(
            {name: plan.peak for name, plan in plans.items()},
            f"{model}, LoRA of rank {rank} beside {targets}: {count} trained parameters",
            f"{micro_batch_size} × {seq_len} tokens, weights and arithmetic in bfloat16; dashed: {card}",
            CARDS[card].memory_bytes,
        )
        words = (*trained_and_kept(full, adapter), ways_that_fit(plans, CARDS[card]))
        sizes = {name: (plan.peak_bytes, plan.peak.weights, plan.peak.activations) for name, plan in plans.items()}
        rows = [(name, *map(format_bytes, each)) for name, each in sizes.items()]
        return View(chart=chart, words=words, table=[("way", "peak", "weights", "activations"), *rows])


def in_this_way(full: TrainingSetup, adapter: AdapterConfig, base: str | None, recomputation: str) -> TrainingSetup:
    """The setup with the adapter on such a base, or with all weights trained."""
    chosen = None if base is None else replace(adapter, base=base)
    return replace(full, adapter=chosen, recomputation=recomputation)


@lru_cache(maxsize=256)
def kept(setup: TrainingSetup, adapter: AdapterConfig | None = None) -> float:
    """Bytes per token and hidden unit that a block keeps."""
    return block_ledger(replace(setup, adapter=adapter)).per_sbh


def trained_and_kept(full: TrainingSetup, adapter: AdapterConfig) -> tuple[str, str]:
    """What the adapters' gradients and states take, and what a block keeps for its backward."""
    count, whole = count_adapter_parameters(full.model, adapter), count_parameters(full.model)
    states = state_bytes(full.model, full.precision, full.optimizer, adapter)
    trained = states["gradients"] + states["optimizer_states"]
    trains = (
        f"{count:,} parameters are trained, {count / whole:.2%} of {format_count(whole)}: their gradients "
        f"and states take {format_bytes(trained)}."
    )
    keeps = (
        f"A block keeps {kept(full, adapter):.1f} bytes per token and hidden unit, {kept(full):.1f} with all weights "
        "trained: a frozen weight needs no stored input, but the gradient passes through it"
    )
    casts = ", and each adapter in float32 keeps a cast of its input."
    keeps += casts if adapter.dtype == "float32" else "; adapters in bfloat16 keep no cast of their input."
    return trains, keeps


def ways_that_fit(plans: dict[str, TrainingPlan], card: Card) -> str:
    """Which ways should fit the card."""
    fitting = [name for name, plan in plans.items() if plan.fits]
    if not fitting:
        return f"None of the six fits one {card.name} ({format_bytes(card.memory_bytes)})."
    return f"On one {card.name}, context, workspaces and fragments as expected, fit: {'; '.join(fitting)}."
