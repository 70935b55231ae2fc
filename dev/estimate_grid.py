"""The formula's peak against the trace's, over models from 7 M to 70 B parameters.

``python dev/estimate_grid.py`` (``--small``: only those below 500 M, half a minute). The formula runs no PyTorch;
the trace runs the same setup's real PyTorch step on tensors without bytes, by CUDA's rules. Prints one row a setup, the
median and the worst error, and what differs in the worst row.
"""

import argparse
import statistics
import time
import warnings
from dataclasses import dataclass, replace

from memkit.formula.estimate import estimate_memory
from memkit.formula.parameters import count_parameters
from memkit.models import (
    GPT2_LARGE,
    GPT2_MEDIUM,
    GPT2_SMALL,
    GPT2_XL,
    LLAMA_2_7B,
    LLAMA_2_13B,
    LLAMA_2_70B,
    LLAMA_3_8B,
    LLAMA_3_70B,
    LLAMA_32_1B,
    MISTRAL_7B,
    QWEN_2_05B,
    TINY_GPT2,
    TINY_LLAMA,
    ModelConfig,
)
from memkit.program.transformer import training_build
from memkit.recipes import AUTOCAST_BF16, AUTOCAST_FP16, FP32, PURE_BF16, OptimizerConfig
from memkit.setup import TrainingSetup
from memkit.timeline import PARTS, Instant, MemoryTimeline
from memkit.tracing.trace import trace_memory
from memkit.units import aligned_table, format_bytes, format_count
from stepscope.columns import format_ratio
from stepscope.optimizers import OPTIMIZERS

LLAMA_100M = replace(
    TINY_LLAMA,
    name="Llama 100 M",
    num_layers=12,
    hidden_size=768,
    num_heads=12,
    head_dim=64,
    num_kv_heads=4,
    intermediate_size=2048,
    vocab_size=32000,
)


def setup(model: ModelConfig, precision, size: str, attention: str, **choices) -> TrainingSetup:
    """``size`` is micro-batch and sequence, such as "4x1024"."""
    micro_batch_size, seq_len = map(int, size.split("x"))
    return TrainingSetup(
        model=model,
        precision=precision,
        micro_batch_size=micro_batch_size,
        seq_len=seq_len,
        attention=attention,
        **choices,
    )


def optimizer(name: str, implementation: str = "foreach") -> dict:
    return {"optimizer": OptimizerConfig(record=OPTIMIZERS[name], implementation=implementation)}


SMALL = (
    setup(TINY_LLAMA, FP32, "8x512", "stored"),
    setup(TINY_LLAMA, FP32, "8x512", "efficient", recomputation="full"),
    setup(TINY_LLAMA, AUTOCAST_BF16, "4x1024", "flash", dropout=0.1),
    setup(TINY_LLAMA, PURE_BF16, "1x64", "flash"),
    setup(TINY_LLAMA, PURE_BF16, "16x1024", "stored", recomputation="selective"),
    setup(TINY_GPT2, AUTOCAST_BF16, "8x512", "stored", dropout=0.1),
    setup(TINY_GPT2, FP32, "2x128", "flash", **optimizer("SGD")),
    setup(
        LLAMA_100M, AUTOCAST_BF16, "4x2048", "efficient", recomputation="full", grad_accum_steps=2
    ),
    setup(LLAMA_100M, FP32, "2x1024", "stored", uses_fused_norm=False),
    setup(GPT2_SMALL, FP32, "1x128", "flash", **optimizer("AdamW", "for-loop")),
    setup(GPT2_SMALL, FP32, "8x1024", "stored", dropout=0.1),
    setup(GPT2_SMALL, AUTOCAST_BF16, "8x1024", "flash", grad_accum_steps=4),
    setup(GPT2_SMALL, AUTOCAST_FP16, "4x1024", "stored", recomputation="selective"),
    setup(GPT2_SMALL, PURE_BF16, "16x1024", "flash", recomputation="full", upcasts_logits=True),
    setup(
        QWEN_2_05B,
        AUTOCAST_BF16,
        "2x2048",
        "efficient",
        recomputation="selective",
        **optimizer("SGD momentum"),
    ),
    setup(
        QWEN_2_05B,
        PURE_BF16,
        "1x4096",
        "flash",
        upcasts_logits=True,
        grad_accum_steps=2,
        **optimizer("Adafactor", "for-loop"),
    ),
    setup(GPT2_MEDIUM, AUTOCAST_BF16, "4x1024", "efficient", dropout=0.1),
)
LARGE = (
    setup(GPT2_LARGE, FP32, "2x1024", "efficient", recomputation="full", sets_grads_to_none=False),
    setup(GPT2_LARGE, AUTOCAST_BF16, "8x1024", "flash"),
    setup(GPT2_LARGE, AUTOCAST_BF16, "8x1024", "stored", recomputation="selective", dropout=0.1),
    setup(GPT2_XL, PURE_BF16, "1x1024", "stored"),
    setup(LLAMA_32_1B, AUTOCAST_BF16, "1x8192", "flash", recomputation="full"),
    setup(
        LLAMA_32_1B,
        PURE_BF16,
        "4x2048",
        "efficient",
        recomputation="selective",
        upcasts_logits=True,
    ),
    setup(LLAMA_2_7B, FP32, "1x2048", "efficient", recomputation="full"),
    setup(LLAMA_2_7B, AUTOCAST_BF16, "1x4096", "flash"),
    setup(LLAMA_2_7B, PURE_BF16, "1x4096", "stored", **optimizer("AdamW", "for-loop")),
    setup(
        LLAMA_2_7B,
        PURE_BF16,
        "8x4096",
        "flash",
        recomputation="full",
        **optimizer("AdamW", "fused"),
    ),
    setup(MISTRAL_7B, AUTOCAST_BF16, "2x4096", "flash", uses_fused_norm=False, grad_accum_steps=2),
    setup(LLAMA_3_8B, AUTOCAST_BF16, "1x8192", "efficient", recomputation="selective"),
    setup(LLAMA_3_8B, PURE_BF16, "4x8192", "flash", **optimizer("Adafactor", "for-loop")),
    setup(LLAMA_2_13B, AUTOCAST_BF16, "1x4096", "flash", recomputation="full", grad_accum_steps=4),
    setup(
        LLAMA_2_13B,
        PURE_BF16,
        "2x2048",
        "stored",
        recomputation="selective",
        **optimizer("SGD momentum"),
    ),
    setup(LLAMA_2_70B, PURE_BF16, "1x4096", "flash"),
    setup(LLAMA_2_70B, FP32, "1x1024", "stored", recomputation="full", **optimizer("SGD")),
    setup(
        LLAMA_3_70B,
        AUTOCAST_BF16,
        "2x8192",
        "flash",
        recomputation="full",
        **optimizer("AdamW", "fused"),
    ),
    setup(
        LLAMA_3_70B,
        PURE_BF16,
        "4x8192",
        "efficient",
        recomputation="full",
        **optimizer("Adafactor", "for-loop"),
    ),
)
GRID = SMALL + LARGE


@dataclass(frozen=True)
class Row:
    """A setup with both of its timelines and the seconds that each took."""

    setup: TrainingSetup
    formula: MemoryTimeline
    traced: MemoryTimeline
    formula_seconds: float
    trace_seconds: float

    @property
    def ratio(self) -> float:
        """Formula ÷ trace, peak bytes."""
        return self.formula.peak_bytes / self.traced.peak_bytes


def measure(setup: TrainingSetup) -> Row:
    """Both timelines of a setup."""
    start = time.perf_counter()
    formula = estimate_memory(setup)
    middle = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an Adafactor asks for a norm; a trace has no values
        traced = trace_memory(training_build(setup), device=setup.device)
    return Row(setup, formula, traced, middle - start, time.perf_counter() - middle)


def describe(setup: TrainingSetup) -> list[str]:
    """The choices of a setup as the cells of a row."""
    choices = [
        f"{setup.micro_batch_size}×{setup.seq_len}",
        setup.attention,
        setup.recomputation.name,
    ]
    extras = [f"{setup.optimizer.name}, {setup.optimizer.implementation}"]
    extras += [f"{setup.grad_accum_steps} micro-batches"] * (setup.grad_accum_steps > 1)
    extras += [f"dropout {setup.dropout}"] * bool(setup.dropout)
    extras += ["norm in steps"] * (not setup.uses_fused_norm)
    extras += ["logits upcast"] * setup.upcasts_logits + ["gradients kept"] * (
        not setup.sets_grads_to_none
    )
    size = format_count(count_parameters(setup.model))
    return [setup.model.name, size, setup.precision.name, *choices, "; ".join(extras)]


def label(instant: Instant) -> str:
    return f"{instant.name}, step {instant.step}"


def table(rows: list[Row]) -> str:
    """One line a setup."""
    header = [
        "model",
        "parameters",
        "precision",
        "batch",
        "attention",
        "recompute",
        "else",
        "formula",
        "traced",
        "ratio",
        "peak at",
        "formula s",
        "trace s",
    ]
    lines = [
        [
            *describe(row.setup),
            format_bytes(row.formula.peak_bytes),
            format_bytes(row.traced.peak_bytes),
            f"{row.ratio:.5f}",
            label(row.traced.peak),
            f"{row.formula_seconds:.3f}",
            f"{row.trace_seconds:.1f}",
        ]
        for row in rows
    ]
    return aligned_table([header, *lines])


def explanation(row: Row) -> str:
    """Where the worst row's two timelines differ at the trace's peak, part by part."""
    traced = row.traced.peak
    formula = row.formula.at(traced.name, traced.step)
    parts = [
        f"{part} {formula.parts[part] - traced.parts[part]:+,} B"
        for part in PARTS
        if formula.parts[part] != traced.parts[part]
    ]
    where = f"at {label(traced)}: {', '.join(parts) or 'every part equal'}"
    ratio = format_ratio(formula.total_bytes, traced.total_bytes)
    return f"worst row: {', '.join(describe(row.setup))}; {ratio} {where}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--small", action="store_true", help="only the models below 500 M parameters"
    )
    rows = []
    for setup in SMALL if parser.parse_args().small else GRID:
        rows.append(measure(setup))
    errors = [abs(row.ratio - 1) for row in rows]
    print(table(rows))
    print(
        f"{len(rows)} setups: median error {statistics.median(errors):.3%}, worst {max(errors):.3%}"
    )
    print(explanation(max(rows, key=lambda row: abs(row.ratio - 1))))


if __name__ == "__main__":
    main()
