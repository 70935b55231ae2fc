"""What one step sends: bytes of each kind of collective, by formula, and when computing hides them.

With P bytes of parameters: DDP all-reduces P, which moves 2 P, for a ring reduces and then gathers; ZeRO-1 and 2
reduce-scatter P and gather P, as much; ZeRO-3 gathers twice, forward and backward, and reduce-scatters once: 3 P.
``ZeroRedundancyOptimizer`` all-reduces as DDP does and then broadcasts the weights: 3 P too.

Source: Rajbhandari et al. 2020, arXiv:1910.02054, section 7; the counted collectives are in
``book.training_ranks``.
"""

from dataclasses import dataclass

from memkit.formats.records import dtype_bits, tensor_bytes
from memkit.formula.parameters import count_parameters
from memkit.setup import TrainingSetup
from memkit.strategies import FULL
from stepscope.setup import Layout
from stepscope.sharding.step import groups_of


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
    forwards = setup.grad_accum_steps
    reductions = forwards if syncs_each else 1
    if not layout.is_fully_sharded:
        whole = tensor_bytes(count_parameters(setup.model), setup.precision.weight_dtype)
        ranks = {"num_ranks": layout.dp_size, "all_reduce_ranks": layout.dp_size}
        return Traffic(
            **ranks, all_reduced=reductions * whole, broadcast=whole if layout.stage == 1 else 0
        )
    root, block = groups_of(setup, layout)
    num_blocks, gathers = setup.model.num_layers, 2 if layout.stage == 3 else 1
    is_alone = layout.dp_size == 1
    gathered = root.whole_bytes(root.param_dtype) + gathers * num_blocks * block.whole_bytes(
        block.param_dtype
    )
    unreduced = root.whole_bytes(root.reduce_dtype) + num_blocks * block.whole_bytes(
        block.reduce_dtype
    )
    reduced = root.share_bytes(root.reduce_dtype) + num_blocks * block.share_bytes(
        block.reduce_dtype
    )
    return Traffic(
        num_ranks=layout.dp_size,
        all_reduce_ranks=layout.num_replicas,
        all_gathered=0 if is_alone else forwards * gathered,
        reduce_scattered=0 if is_alone else reductions * unreduced,
        all_reduced=reductions * reduced if layout.num_replicas > 1 else 0,
    )


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
    gathered_again = weight if layout.stage == 3 else 0
    forward = weight if layout.is_fully_sharded else 0
    backward = gathered_again + gradient if layout.is_fully_sharded else 2 * gradient
    flops = 6 if setup.recomputation == FULL else 4
    return max(forward / 2, backward / flops) * flops_per_s / bytes_per_s
