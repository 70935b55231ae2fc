"""The adapter explorer (chapter 08): LoRA's rank and targets → six ways to fine-tune."""

from dataclasses import replace

from memkit.cards import CARDS
from memkit.formula.activations import block_ledger
from memkit.formula.parameters import count_parameters
from memkit.recipes import FUSED_ADAMW, PURE_BF16
from memkit.units import format_bytes, format_count
from memkit.widgets.explorer import Choice, Explorer, Number, View
from stepscope.experts import PUBLISHED_MODELS
from stepscope.formula import count_adapter_parameters, job_state_bytes
from stepscope.planner.plan import plan_of
from stepscope.setup import AdapterConfig, Job, linear_layers
from stepscope.widgets.plan_explorer import plans_view

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
MODELS = [name for name, model in PUBLISHED_MODELS.items() if "gate" in linear_layers(model)]


class AdapterExplorer(Explorer, verdict=(126,), status=(100, 210)):
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
        full = Job(
            model=PUBLISHED_MODELS[model], precision=PURE_BF16, optimizer=FUSED_ADAMW, **shape
        )
        adapter = AdapterConfig(rank=rank, targets=TARGETS[targets], dtype=dtype)
        plans = {
            name: plan_of(in_this_way(full, adapter, *way), CARDS[card])
            for name, way in WAYS.items()
        }
        count = format_count(count_adapter_parameters(full.model, adapter))
        title = f"{model}, LoRA of rank {rank} beside {targets}: {count} trained parameters"
        subtitle = f"{micro_batch_size} × {seq_len} tokens, weights and arithmetic in bfloat16"
        columns = {
            part: [format_bytes(getattr(plan.peak, part)) for plan in plans.values()]
            for part in ("weights", "activations")
        }
        return plans_view(plans, title, subtitle, trained_and_kept(full, adapter), columns=columns)


def in_this_way(full: Job, adapter: AdapterConfig, base: str | None, recomputation: str) -> Job:
    """The setup with the adapter on such a base, or with all weights trained."""
    chosen = None if base is None else replace(adapter, base=base)
    return replace(full, adapter=chosen, recomputation=recomputation)


def trained_and_kept(full: Job, adapter: AdapterConfig) -> tuple[str, str]:
    """What the adapters' gradients and states take, and what a block keeps for its backward."""
    count, whole = count_adapter_parameters(full.model, adapter), count_parameters(full.model)
    states = job_state_bytes(replace(full, adapter=adapter))
    trained = states["gradients"] + states["optimizer_states"]
    kept = block_ledger(replace(full, adapter=adapter)).per_sbh
    all_kept = block_ledger(full).per_sbh
    casts = "adapters in bfloat16 keep no cast of their input"
    if adapter.dtype == "float32":
        casts = "each adapter in float32 keeps a cast of its input"
    trains = (
        f"{count:,} parameters are trained, {count / whole:.2%} of {format_count(whole)}: their gradients and "
        f"states take {format_bytes(trained)}."
    )
    keeps = (
        f"A block keeps {kept:.1f} bytes per token and hidden unit, {all_kept:.1f} with all weights trained: "
        f"a frozen weight needs no stored input, but the gradient passes through it; {casts}."
    )
    return trains, keeps
