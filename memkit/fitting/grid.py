"""What the planner tries for a job, and what it does not, each time with the reason.

The grid is every precision, optimizer, recomputation, cut of the batch and layout that could be the best for somebody.
``ways_of`` walks through it. What it leaves out, ``not_tried`` names.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from memkit.fitting.batch_plan import cuts_of
from memkit.hardware.cards import Card
from memkit.setup.adapters import AdapterConfig, linear_layers
from memkit.setup.layouts import Layout
from memkit.setup.optimizers import OPTIMIZERS as RECORDS
from memkit.setup.optimizers import Place
from memkit.setup.recipes import (
    AUTOCAST_BF16,
    AUTOCAST_FP16,
    BF16_MASTER,
    FP32,
    FUSED_ADAMW,
    KAHAN_BF16,
    MEGATRON,
    PURE_BF16,
    PURE_FP16,
    OptimizerConfig,
    Precision,
)
from memkit.setup.strategies import (
    FULL,
    NONE,
    SAVE_ATTENTION,
    SAVE_EVERY_SECOND,
    SAVE_PRODUCTS,
    Strategy,
    every,
    groups,
    sequential,
)
from memkit.setup.training import TrainingSetup

PRECISIONS = {
    "bfloat16": (AUTOCAST_BF16, FP32, PURE_BF16, BF16_MASTER, MEGATRON, KAHAN_BF16),
    "float16": (AUTOCAST_FP16, FP32),
}
"""What is tried where the tensor cores multiply the dtype; a GradScaler refuses gradients in float16."""
BESIDE_ADAPTERS = {"bfloat16": PURE_BF16, "float16": PURE_FP16}
"""Of the frozen weights; the adapters are float32."""

OPTIMIZERS = tuple(
    replace(FUSED_ADAMW, name=record.name, implementation=implementation, place=place)
    for record in RECORDS.values()
    for implementation, place in record.planned
)
"""What the optimizers' records say is to be tried."""

GROUPS = (2, 3, 4)
RANK = 16


def strategies_of(num_layers: int) -> tuple[Strategy, ...]:
    """The recomputations that are tried: a period for each number of blocks that run again, and small groups.

    ``sequential`` spares the last group, which the backward wants first.
    """
    counts = {-(-num_layers // period): period for period in range(num_layers, 1, -1)}
    segments = {max(num_layers // size, 1) for size in (1, *GROUPS)}
    return (
        NONE, SAVE_PRODUCTS, SAVE_EVERY_SECOND, SAVE_ATTENTION, *map(every, counts.values()),
        *(sequential(number) for number in sorted(segments, reverse=True) if number > 1), FULL,
        *(groups(size) for size in GROUPS if size <= num_layers),
    )


def layouts_of(num_cards: int) -> tuple[Layout | None, ...]:
    """How a run is spread over the cards."""
    if num_cards == 1:
        return (None,)
    stages = [Layout(stage=stage, dp_size=num_cards) for stage in range(4)]
    views = [replace(layout, gradient_as_bucket_view=True) for layout in stages[:2]]
    return (*views, *stages, *(replace(layout, offloads=True) for layout in stages[2:]))


def trained_by(
    setup: TrainingSetup, layout: Layout | None, adapter: AdapterConfig | None, half: str
) -> Iterator[tuple[Precision, OptimizerConfig, AdapterConfig | None]]:
    """What is trained, in which precision and by which optimizer.

    Only AdamW after the backward keeps copies beside 16-bit weights. A GradScaler lets nothing step before all
    gradients are there.
    """
    optimizers = OPTIMIZERS if layout is None else (FUSED_ADAMW,)
    for optimizer, precision in product(optimizers if adapter is None else (), PRECISIONS[half]):
        keeps_copies = precision.master_dtype or precision.remainder_dtype
        may_copy = optimizer == FUSED_ADAMW and layout is None
        may_scale = optimizer.place == Place.AFTER_BACKWARD
        if (may_copy or not keeps_copies) and (may_scale or precision != AUTOCAST_FP16):
            yield precision, optimizer, None
    if layout is None:
        lora = adapter or AdapterConfig(rank=RANK, targets=linear_layers(setup.model))
        for optimizer, base in product(optimizers, ("as loaded", "nf4")):
            if half == "bfloat16" or optimizer.place == Place.AFTER_BACKWARD:
                yield BESIDE_ADAPTERS[half], optimizer, replace(lora, base=base)


def ways_of(
    setup: TrainingSetup, layout: Layout | None, num_sequences: int, adapter: AdapterConfig | None = None,
    half: str = "bfloat16",
) -> Iterator[tuple[TrainingSetup, Layout | None]]:
    """The combinations for a window of so many sequences; with an adapter those that train it alone.

    ``half``: the 16-bit dtype that is computed in.
    """
    sharded = layout is not None and layout.is_fully_sharded
    cuts = cuts_of(num_sequences)
    for precision, optimizer, added in trained_by(setup, layout, adapter, half):
        spreads = [layout]
        if sharded:
            param_dtype = precision.compute_dtype if precision.uses_autocast else None  # FSDP2 casts what it gathers
            precision = FP32 if param_dtype else precision
            wide = () if precision.compute_dtype == "float32" and not param_dtype else ("float32",)
            spreads = [replace(layout, param_dtype=param_dtype, reduce_dtype=dtype) for dtype in (None, *wide)]
        for strategy, (size, steps) in product(strategies_of(setup.model.num_layers), cuts):
            if optimizer.frees_gradients and steps > 1:
                continue
            if sharded and (strategy.period, strategy.group_size, strategy.num_segments) != (1, 1, 0):  # no formula
                continue
            way = replace(
                setup, precision=precision, optimizer=optimizer, adapter=added, recomputation=strategy,
                micro_batch_size=size, grad_accum_steps=steps,
            )
            for spread in spreads:
                yield way, spread


def in_words(names: list[str]) -> str:
    """Names as a sentence has them."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def not_tried(card: Card, num_cards: int) -> str:
    """What is left out for a job, each time with the reason."""
    by_reason: dict[str, list[str]] = {}
    for record in RECORDS.values():
        if record.not_planned:
            by_reason.setdefault(record.not_planned, []).append(record.name)
    left_out = [f"{in_words(names)}, {reason}" for reason, names in by_reason.items()]
    left_out += [
        "foreach and for-loop steps of AdamW, stored scores, float32 logits, gradients zeroed in place: more bytes",
        "float32 master and gradients both copied, which keeps 2 B a parameter more than Megatron's recipe",
        "copies beside 16-bit weights under other optimizers than AdamW after the backward, which no library steps",
        "moments in another dtype than the optimizer's class makes, which no argument asks for",
        "gradients in another dtype than their weights' but for Megatron's, which torch's steps refuse",
        "frozen weights in 32 bits, which only take more",
        "adapters of another rank or beside fewer layers, which train another model",
        "larger groups of blocks, whose inner activations outweigh the inputs that they save",
        "other policies and other numbers of segments, of which one may be faster where little memory is missing",
        "paged, Adafactor's and 4-bit states in the backward or on the host, and 8-bit ones on the host: may fit too",
        "a checkpoint that is reentrant or does not stop early, which runs more and keeps no less",
        "saved activations on the host and a loss in pieces, which have no formula here",
    ]
    if num_cards > 1:
        left_out += [
            "on several cards other optimizers than AdamW after the backward, adapters, and 16-bit weights with copies",
            "under FSDP blocks of which only some run again, or several as one, which have no formula",
            "sharded groups of fewer cards than all, which keep more on each",
            "gradients sent after the last micro-batch alone (no_sync), of which there is no formula here",
        ]
    words = [f"Not tried: {'; '.join(left_out)}."]
    if "bfloat16" not in card.dtypes:
        words.append(
            f"The tensor cores of {card.name} do not multiply bfloat16: its plans are in float16, with a GradScaler, "
            "or in float32. With a GradScaler they have float32 gradients, and step on the card once all of them are "
            "there: only then is it known whether one overflowed."
        )
    return " ".join(words)
