"""The tensors that ``fully_shard`` gathers and reduces together, and the bytes of each buffer that this takes.

A group is what one call of ``fully_shard`` wraps and no call before it has: each block, and at the root what is left,
which is the embedding, the last norm and the head. Each tensor is padded to a whole number of rows per rank.

Source: torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py, torch 2.13.
"""

from dataclasses import dataclass

from memkit.formats.dtypes import tensor_bytes
from memkit.formula.parameters import Parameter, block_parameters, embedding_parameters, output_parameters
from memkit.formula.shares import shard
from memkit.setup.layouts import Layout
from memkit.setup.training import TrainingSetup


@dataclass(frozen=True, kw_only=True)
class Group:
    """Parameters gathered together by ``num_ranks`` ranks, and the dtypes of the weights, on the way and reduced."""

    parameters: tuple[Parameter, ...]
    num_ranks: int
    weight_dtype: str
    param_dtype: str
    reduce_dtype: str

    @property
    def shard_counts(self) -> list[int]:
        """Values of each tensor on one rank, padding included."""
        return [shard(parameter, self.num_ranks).count for parameter in self.parameters]

    @property
    def padded_counts(self) -> list[int]:
        """Values of each tensor when gathered."""
        return [count * self.num_ranks for count in self.shard_counts]

    @property
    def gathered_bytes(self) -> int:
        """The buffer that an all-gather fills."""
        return tensor_bytes(sum(self.padded_counts), self.param_dtype)

    @property
    def unsharded_bytes(self) -> list[int]:
        """The whole tensors that are copied out of it."""
        return [tensor_bytes(count, self.param_dtype) for count in self.padded_counts]

    @property
    def copied_in_bytes(self) -> int:
        """The shards, cast or brought to the device, before they are gathered."""
        return tensor_bytes(sum(self.shard_counts), self.param_dtype)

    @property
    def unreduced_bytes(self) -> int:
        """The buffer that a reduce-scatter reads: the whole gradient."""
        return tensor_bytes(sum(self.padded_counts), self.reduce_dtype)

    @property
    def reduced_bytes(self) -> int:
        """The buffer that it fills: a share of the gradient."""
        return tensor_bytes(sum(self.shard_counts), self.reduce_dtype)

    @property
    def gradient_bytes(self) -> int:
        """That share in the dtype of the weights."""
        return tensor_bytes(sum(self.shard_counts), self.weight_dtype)


def groups_of(setup: TrainingSetup, layout: Layout) -> tuple[Group, Group]:
    """The root's group and that of a block."""
    own = setup.precision.weight_dtype
    param_dtype = layout.param_dtype or own
    dtypes = {"weight_dtype": own, "param_dtype": param_dtype, "reduce_dtype": layout.reduce_dtype or param_dtype}
    root = embedding_parameters(setup.model) + output_parameters(setup.model)
    return tuple(
        Group(parameters=parameters, num_ranks=layout.dp_size, **dtypes)
        for parameters in (root, block_parameters(setup.model))
    )
