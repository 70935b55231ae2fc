"""What the planner tries for a job, and what it does not, each time with the reason.

The grid is every precision, optimizer, recomputation, cut of the batch and layout that could be the best for somebody.
``ways_of`` walks through it. What it leaves out, ``not_tried`` names.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import product

from memkit.cards import Card
from memkit.recipes import (
    AUTOCAST_BF16,
    AUTOCAST_FP16,
    BF16_MASTER,
    FP32,
    FUSED_ADAMW,
    KAHAN_BF16,
    MEGATRON,
    PURE_BF16,
    OptimizerConfig,
    Precision,
)
from memkit.setup import MAX_GRAD_ACCUM_STEPS
from memkit.strategies import (
    FULL,
    NONE,
    SAVE_ATTENTION,
    SAVE_EVERY_SECOND,
    SAVE_PRODUCTS,
    Strategy,
    groups,
)
from stepscope.optimizers import OPTIMIZERS
from stepscope.planner.plan import FirstGroups, first_groups, seconds_of
from stepscope.setup import AdapterConfig, Job, Layout, Place, linear_layers

PURE_FP16 = Precision(
    name="pure fp16",
    weight_dtype="float16",
    gradient_dtype="float16",
    compute_dtype="float16",
    source="model.to(torch.float16); a GradScaler refuses 16-bit gradients, so for frozen weights alone",
)
FP16_MASTER = replace(PURE_FP16, name="fp16 + fp32 master", master_dtype="float32")
PRECISIONS = {
    "bfloat16": (AUTOCAST_BF16, FP32, PURE_BF16, BF16_MASTER, MEGATRON, KAHAN_BF16),
    "float16": (AUTOCAST_FP16, FP32, FP16_MASTER),
}
"""What is tried where the tensor cores multiply the dtype; a GradScaler refuses gradients in float16 on the card."""
MASTER_ON_HOST = BF16_MASTER, FP16_MASTER
"""Of copies that an optimizer on the host keeps there: weights and gradients in 16 bits on the card."""
BESIDE_ADAPTERS = {"bfloat16": PURE_BF16, "float16": PURE_FP16}
"""Of the frozen weights; the adapters are float32."""

Stepper = tuple[OptimizerConfig, Place]
"""An optimizer, and where it steps."""

FUSED = FUSED_ADAMW, Place.AFTER_BACKWARD

PLACES = {
    "AdamW": tuple(Place),
    "torchao 8-bit AdamW": (Place.AFTER_BACKWARD, Place.IN_BACKWARD),
    "torchao 4-bit AdamW": (Place.AFTER_BACKWARD, Place.IN_BACKWARD),
    "paged AdamW": (Place.AFTER_BACKWARD, Place.IN_BACKWARD),
}
"""Where each optimizer that is tried may step, by its name."""

NO_OPTIMIZER = {
    "train differently": ("SGD", "SGD momentum", "Adafactor", "Lion", "Muon"),
    "keep states as large as torchao's 8-bit ones": (
        "8-bit AdamW",
        "torchao FP8 AdamW",
        "paged 8-bit AdamW",
    ),
}
"""The optimizers that are not tried, by what they do for which they are not."""

TRIED: tuple[Stepper, ...] = tuple(
    (OptimizerConfig(record=OPTIMIZERS[name], implementation="fused"), place)
    for name, places in PLACES.items()
    for place in places
)
"""The optimizers that are tried, each where it may step."""

GROUPS = (2, 3, 4)
RANK = 16
PIECES = 8
"""Of the loss, where it is computed in pieces (lesson 09, section 4)."""


@lru_cache(maxsize=64)
def strategies_of(num_layers: int) -> tuple[Strategy, ...]:
    """The recomputations that are tried: policies over all blocks, and every number of blocks or small groups.

    These are the first ones, for others of the same number cost as many FLOPs and keep no less.
    """
    sizes = [(size, n) for size in (1, *GROUPS) for n in range(1, -(-num_layers // size))]
    partly = (first_groups(size, n) for size, n in sizes)
    whole = (groups(size) for size in GROUPS if size <= num_layers)
    return NONE, SAVE_PRODUCTS, SAVE_EVERY_SECOND, SAVE_ATTENTION, *partly, FULL, *whole


def layouts_of(num_cards: int) -> tuple[Layout | None, ...]:
    """How a run is spread over the cards."""
    if num_cards == 1:
        return (None,)
    stages = [Layout(stage=stage, dp_size=num_cards) for stage in range(4)]
    views = [replace(layout, gradient_as_bucket_view=True) for layout in stages[:2]]
    return (*views, *stages, *(replace(layout, offloads=True) for layout in stages[2:]))


def trained_by(
    job: Job, layout: Layout | None, adapter: AdapterConfig | None, card: Card
) -> Iterator[Job]:
    """The job by what is trained, in which precision, and by which optimizer that steps where.

    Adapters are stepped by AdamW after the backward.
    """
    half = "bfloat16" if "bfloat16" in card.dtypes else "float16"
    steppers = TRIED if layout is None else (FUSED,)
    for stepper, precision in product(steppers if adapter is None else (), PRECISIONS[half]):
        if can_step(precision, stepper, layout):
            optimizer, place = stepper
            yield replace(job, precision=precision, optimizer=optimizer, place=place)
    if layout is None:
        lora = adapter or AdapterConfig(rank=RANK, targets=linear_layers(job.model))
        frozen = replace(job, precision=BESIDE_ADAPTERS[half], optimizer=FUSED_ADAMW)
        for base in ("as loaded", "nf4"):
            yield replace(frozen, adapter=replace(lora, base=base))


def can_step(precision: Precision, stepper: Stepper, layout: Layout | None) -> bool:
    """Whether the optimizer can step weights and gradients of this precision there.

    Copies beside 16-bit weights are kept by AdamW after the backward, or by AdamW on the host. A GradScaler lets
    nothing step before all gradients are there, and takes none in float16 but as float32 on the host.
    """
    place, has_copies = stepper[1], bool(precision.master_dtype or precision.remainder_dtype)
    if place.is_on_host:
        return precision in MASTER_ON_HOST or not (has_copies or precision == PURE_BF16)
    if has_copies:
        return stepper == FUSED and layout is None and precision != FP16_MASTER
    return place == Place.AFTER_BACKWARD or precision != AUTOCAST_FP16


def ways_of(
    job: Job,
    layout: Layout | None,
    num_sequences: int,
    card: Card,
    adapter: AdapterConfig | None = None,
) -> Iterator[tuple[Job, Layout | None]]:
    """The combinations for a window of so many sequences; with an adapter those that train it alone."""
    sharded = layout is not None and layout.is_fully_sharded
    # FSDP has a formula for blocks that are all treated alike
    ways = strategies_of(job.model.num_layers)
    strategies = [
        way
        for way in ways
        if not sharded or (way.group_size == 1 and not isinstance(way, FirstGroups))
    ]
    for bare in trained_by(job, layout, adapter, card):
        spreads = [layout]
        if sharded:
            inside, cast = bare.precision.compute_dtype, layout
            if bare.precision.uses_autocast:  # FSDP2 casts what it gathers
                bare, cast = replace(bare, precision=FP32), replace(layout, param_dtype=inside)
            reduced = (None,) if inside == "float32" else (None, "float32")
            spreads = [replace(cast, reduce_dtype=dtype) for dtype in reduced]
        for spread in spreads:
            pieces = (1, PIECES) if spread is None and job.seq_len % PIECES == 0 else (1,)
            cuts = worthy_cuts(bare, spread, num_sequences, card)
            for cut, strategy, num_pieces in product(cuts, strategies, pieces):
                yield replace(cut, recomputation=strategy, loss_pieces=num_pieces), spread


def cuts_of(num_sequences: int) -> list[tuple[int, int]]:
    """Every way to see so many sequences between two steps: (sequences in a micro-batch, micro-batches).

    >>> cuts_of(4)
    [(1, 4), (2, 2), (4, 1)]
    """
    counts = range(min(num_sequences, MAX_GRAD_ACCUM_STEPS), 0, -1)
    return [(num_sequences // count, count) for count in counts if num_sequences % count == 0]


def worthy_cuts(job: Job, layout: Layout | None, num_sequences: int, card: Card) -> Iterator[Job]:
    """The job with each micro-batch that takes less time than every smaller one, with accumulation and without it.

    A larger one takes more bytes. No term of a step's time grows with the micro-batch, whatever runs again.
    """
    quickest = {}
    for size, steps in cuts_of(num_sequences):
        if steps > 1 and job.place.frees_gradients:
            continue
        cut = replace(job, micro_batch_size=size, grad_accum_steps=steps)
        seconds = round(seconds_of(cut, card, layout), 9)  # a sum of floats has no more digits
        if seconds < quickest.get(steps > 1, math.inf):
            quickest[steps > 1] = seconds
            yield cut


LEFT_OUT = {
    "take more bytes and no less time": "foreach and for-loop AdamW, stored scores, float32 logits or frozen weights, "
    "zeroed gradients, two float32 copies, checkpoints that never stop early, blocks run again that are not the first",
    "are stepped by no library": "paged states on the host, moments in a dtype of their own, gradients in one without "
    "a float32 copy of the weights, copies but by AdamW after the backward or on the host",
    "save the host's memory, or next to nothing": "states in 16 bits or fewer on the host, optimizers beside adapters "
    "but AdamW after the backward",
    "train another model": "adapters of another rank or beside fewer layers",
    "have no formula": "saved activations on the host",
    "may be faster": "policies for other operations or for some blocks, larger groups of blocks, a loss in fewer "
    "pieces",
}
LEFT_OUT_ON_MANY = LEFT_OUT | {
    "are planned for one card": "adapters, optimizers but AdamW after the backward, copies beside 16-bit weights, a "
    "loss in pieces",
    "keep more on each card": "sharded groups of fewer cards than all",
    "have no formula": f"{LEFT_OUT['have no formula']}, gradients sent after the last micro-batch alone (no_sync), "
    "blocks under FSDP that run again in part or in groups",
}
"""What is left out beside optimizers, by what these ways do for which they are."""


def not_tried(card: Card, num_cards: int) -> str:
    """What is left out for a job, a reason a line."""
    left_out = {reason: ", ".join(names) for reason, names in NO_OPTIMIZER.items()}
    left_out |= LEFT_OUT if num_cards == 1 else LEFT_OUT_ON_MANY
    lines = ["Not tried, because they"]
    lines += [f"- {reason}: {what}" for reason, what in left_out.items()]
    if "bfloat16" not in card.dtypes:
        lines.append(
            f"The tensor cores of {card.name} do not multiply bfloat16: its plans are in float16, with a GradScaler, "
            "or in float32. With a GradScaler they have float32 gradients, and step on the card once all of them are "
            "there: only then is it known whether one overflowed."
        )
    return "\n".join(lines)
