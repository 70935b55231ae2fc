"""By formula: what stands at rest on one of N ranks, what a step sends, and when computing hides that.

At rest, with P parameters in the ZeRO paper's recipe (2 bytes of weight, 2 of gradient, 12 of master copy and
moments)::

    DDP      (2 + 2 + 12) P
    ZeRO-1   (2 + 2 + 12/N) P
    ZeRO-2   (2 + 2/N + 12/N) P
    ZeRO-3   (2/N + 2/N + 12/N) P

Nothing else is shared out: not activations, not what a step gathers, not its buckets.

Sent, with P bytes of parameters: DDP all-reduces P, which moves 2 P, for a ring reduces and then gathers; ZeRO-1 and 2
reduce-scatter P and gather P, as much; ZeRO-3 gathers twice, forward and backward, and reduce-scatters once: 3 P.
``ZeroRedundancyOptimizer`` all-reduces as DDP does and then broadcasts the weights: 3 P too.

Source: Rajbhandari et al. 2020, arXiv:1910.02054, sections 5 and 7 and figure 1; the counted collectives are in
``book.training_ranks``.
"""

from dataclasses import dataclass

from memkit.formats.records import dtype_bits, tensor_bytes
from memkit.formula.parameters import count_parameters
from memkit.setup import TrainingSetup
from memkit.strategies import FULL
from memkit.units import as_whole_number
from stepscope.setup import STAGES, Layout
from stepscope.sharding.step import groups_of

PARTS = {"weights": (2, 3), "gradients": (2, 2), "optimizer_states": (4 + 4 + 4, 1)}
"""Bytes of a parameter in the paper's recipe, and the first stage that shares them out."""


def resting_bytes(num_parameters: int, stage: int, num_ranks: int) -> dict[str, int]:
    """Bytes by part on one of ``num_ranks`` in the paper's recipe, each share rounded up to a whole byte.

    Raises: ValueError: no stage 0 to 3, no whole number of ranks.

    >>> [sum(resting_bytes(7 * 10**9, stage, 8).values()) / 10**9 for stage in range(4)]
    [112.0, 38.5, 26.25, 14.0]
    """
    num_parameters = as_whole_number("num_parameters", num_parameters, 1)
    num_ranks = as_whole_number("num_ranks", num_ranks, 1)
    if as_whole_number("stage", stage) >= len(STAGES):
        raise ValueError(f"stage={stage} is not one of 0 (DDP), 1, 2, 3")
    wholes = {part: each * num_parameters for part, (each, _) in PARTS.items()}
    return {
        part: -(-whole // num_ranks) if stage >= PARTS[part][1] else whole
        for part, whole in wholes.items()
    }


def zero_saving(stage: int, num_ranks: int) -> float:
    """How many times less stands at rest than under DDP; the printed "4×" and "8×" are limits for many ranks.

    >>> [round(zero_saving(stage, 8), 2) for stage in (1, 2, 3)]
    [2.91, 4.27, 8.0]
    >>> [round(zero_saving(stage, 10**6), 2) for stage in (1, 2)]
    [4.0, 8.0]
    """
    alone, shared = (sum(resting_bytes(10**12, each, num_ranks).values()) for each in (0, stage))
    return alone / shared


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Bytes of the largest tensor of each collective in a step, summed by kind, and between how many ranks.

    ``all_reduced`` is between ``all_reduce_ranks``, the rest between ``num_ranks``.
    """

    num_ranks: int
    all_reduce_ranks: int
    all_gathered: int = 0
    reduce_scattered: int = 0
    all_reduced: int = 0
    broadcast: int = 0

    @property
    def moved_bytes(self) -> int:
        """As the ZeRO paper counts: an all-reduce moves its bytes twice, the others once."""
        return self.all_gathered + self.reduce_scattered + 2 * self.all_reduced + self.broadcast

    @property
    def sent_bytes(self) -> int:
        """What one rank sends in a ring: of N ranks' bytes all but its own N-th part, each way."""
        once = self.all_gathered + self.reduce_scattered + self.broadcast
        return (
            once * (self.num_ranks - 1) // self.num_ranks
            + 2 * self.all_reduced * (self.all_reduce_ranks - 1) // self.all_reduce_ranks
        )


def step_traffic(setup: TrainingSetup, layout: Layout, syncs_each: bool = True) -> Traffic:
    """The traffic of a step of ``setup.grad_accum_steps`` micro-batches.

    ``syncs_each``: gradients are sent after every micro-batch, and not after the last alone (DDP's ``no_sync()``,
    FSDP2's ``set_requires_gradient_sync(False)``).

    >>> from memkit import TrainingSetup, models
    >>> setup = TrainingSetup(model=models.LLAMA_2_7B)
    >>> whole = 4 * count_parameters(setup.model)
    >>> [round(step_traffic(setup, Layout(stage=stage)).moved_bytes / whole, 2) for stage in range(4)]
    [2.0, 3.0, 2.0, 2.96]
    """
    num_forwards = setup.grad_accum_steps
    num_reductions = num_forwards if syncs_each else 1
    if not layout.is_fully_sharded:
        whole = tensor_bytes(count_parameters(setup.model), setup.precision.weight_dtype)
        ranks = {"num_ranks": layout.dp_size, "all_reduce_ranks": layout.dp_size}
        broadcast = whole if layout.stage == 1 else 0
        return Traffic(**ranks, all_reduced=num_reductions * whole, broadcast=broadcast)
    root, block = groups_of(setup, layout)
    num_blocks, num_gathers = setup.model.num_layers, 2 if layout.stage == 3 else 1
    sent = {}
    if layout.dp_size > 1:
        blocks = num_gathers * num_blocks * block.whole_bytes(block.param_dtype)
        sent["all_gathered"] = num_forwards * (root.whole_bytes(root.param_dtype) + blocks)
        blocks = num_blocks * block.whole_bytes(block.reduce_dtype)
        sent["reduce_scattered"] = num_reductions * (root.whole_bytes(root.reduce_dtype) + blocks)
    if layout.num_replicas > 1:
        blocks = num_blocks * block.share_bytes(block.reduce_dtype)
        sent["all_reduced"] = num_reductions * (root.share_bytes(root.reduce_dtype) + blocks)
    return Traffic(num_ranks=layout.dp_size, all_reduce_ranks=layout.num_replicas, **sent)


def tokens_to_hide(
    setup: TrainingSetup, layout: Layout, flops_per_s: float, bytes_per_s: float
) -> float:
    """Tokens of a rank's micro-batch from which computing takes at least as long as sending, in forward and backward.

    On paper: each parameter takes 2 FLOPs a token in the forward, 4 in the backward, and 2 more if all blocks run
    again. All its bytes come over ``bytes_per_s``; an all-reduce counts twice. ZeRO-1's broadcast comes after the
    backward and hides behind nothing; it is not in here.

    Source: Austin et al. 2025, jax-ml.github.io/scaling-book/gpus; section 9.4 derives it.

    >>> from memkit import TrainingSetup, models
    >>> layout = Layout(param_dtype="bfloat16", reduce_dtype="float32")
    >>> round(tokens_to_hide(TrainingSetup(model=models.LLAMA_2_7B), layout, 989e12, 8 * 50e9))
    3709
    """
    own = setup.precision.weight_dtype
    weight = dtype_bits(layout.param_dtype or own) // 8
    gradient = dtype_bits(layout.reduce_dtype or layout.param_dtype or own) // 8
    forward, backward = 0, 2 * gradient
    if layout.is_fully_sharded:
        forward, backward = weight, (weight if layout.stage == 3 else 0) + gradient
    flops = 6 if setup.recomputation == FULL else 4
    return max(forward / 2, backward / flops) * flops_per_s / bytes_per_s
