"""The training step on one rank of many: ``estimate_memory``'s own step, with what a layout does around each block.

``fully_shard`` gathers a block's weights before its forward and frees them after it (``reshard_after_forward``), then
again before its backward, while the buffer of the block before that one is already being filled (prefetch). After the
backward the whole gradient is copied into one buffer, reduced to this rank's share, and freed. Three things stay longer
than one would think: the buffer of an all-gather until the next block has copied its own, that of a reduce-scatter
until the next block's is made, and the whole gradient of a group's last parameter until the share is there. The root's
group stays whole from the forward's start to the backward's end.

Source: _fsdp_param_group.py and _fsdp_collectives.py of torch/distributed/fsdp/_fully_shard, and
torch/nn/parallel/distributed.py, torch 2.13.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from memkit.formats.dtypes import tensor_bytes
from memkit.formula.estimate import estimate_run
from memkit.formula.forward import Run
from memkit.formula.optimizer import write_states, write_update, write_weights
from memkit.formula.paper import Paper, Storage
from memkit.formula.parameters import (
    Parameter,
    block_parameters,
    embedding_parameters,
    output_parameters,
    parameter_ledger,
)
from memkit.setup.training import TrainingSetup
from memkit.timeline import MemoryTimeline
from stepscope.setup.job import Job
from stepscope.setup.layouts import Layout
from stepscope.setup.places import Place


def shard(parameter: Parameter, num_ranks: int) -> Parameter:
    """A rank's chunk of a tensor: its rows divided by the ranks, rounded up.

    >>> shard(Parameter(name="head", shape=(50257, 768), kind="head"), 8).shape
    (6283, 768)
    """
    rows, *others = parameter.shape
    return replace(parameter, shape=(-(-rows // num_ranks), *others))


def whole_tensors(parameters: Iterable[Parameter], num_ranks: int) -> tuple[Parameter, ...]:
    """The tensors that rank 0 updates where each belongs to one rank."""
    loads, mine = [0] * num_ranks, []
    for parameter in sorted(parameters, key=lambda parameter: parameter.count, reverse=True):
        rank = loads.index(min(loads))
        loads[rank] += parameter.count
        if rank == 0:
            mine.append(parameter)
    return tuple(mine)


@dataclass(frozen=True, kw_only=True)
class Group:
    """What one call of ``fully_shard`` wraps and no call before it has: parameters that are gathered and reduced
    together by ``num_ranks`` ranks, and the dtypes of the weights, on the way and reduced.

    Each tensor is padded to a whole number of rows per rank.
    """

    parameters: tuple[Parameter, ...]
    num_ranks: int
    weight_dtype: str
    param_dtype: str
    reduce_dtype: str

    @property
    def shard_counts(self) -> list[int]:
        """Values of each tensor on one rank, padding included."""
        return [shard(parameter, self.num_ranks).count for parameter in self.parameters]

    def share_bytes(self, dtype: str) -> int:
        """One rank's share of all tensors in one buffer."""
        return tensor_bytes(sum(self.shard_counts), dtype)

    def whole_bytes(self, dtype: str) -> int:
        """All of all tensors in one buffer."""
        return tensor_bytes(self.num_ranks * sum(self.shard_counts), dtype)


def groups_of(setup: TrainingSetup, layout: Layout) -> tuple[Group, Group]:
    """The root's group, which is the embedding, the last norm and the head, and that of a block, if they are alike."""
    if len(setup.model.blocks_by_kind) > 1:
        raise ValueError(f"{setup.model.name} has blocks with and without experts, groups of two sizes; trace it")
    own = setup.precision.weight_dtype
    param_dtype = layout.param_dtype or own
    dtypes = {"weight_dtype": own, "param_dtype": param_dtype, "reduce_dtype": layout.reduce_dtype or param_dtype}
    root = embedding_parameters(setup.model) + output_parameters(setup.model)
    return tuple(
        Group(parameters=parameters, num_ranks=layout.dp_size, **dtypes)
        for parameters in (root, block_parameters(setup.model, setup.model.mlp_of(0)))
    )


def estimate_sharded(setup: TrainingSetup, layout: Layout, steps: int = 2) -> MemoryTimeline:
    """Bytes at every instant of ``steps`` training steps on rank 0 of a layout, by formula.

    ``setup`` is what one rank runs: its micro-batch, not the global one.

    Raises: ValueError: no ``TrainingSetup``, no ``Layout``, or a strategy that runs several blocks as one.

    >>> from memkit import TrainingSetup, models
    >>> setup = TrainingSetup(model=models.LLAMA_2_7B, seq_len=512)
    >>> peaks = [estimate_sharded(setup, Layout(stage=3, dp_size=size)).peak_bytes for size in (8, 64)]
    >>> [round(peak / 2**30, 2) for peak in peaks]
    [18.43, 10.11]
    """
    return estimate_run(FullySharded(setup, layout) if layout.is_fully_sharded else Replicated(layout), setup, steps)


class Rank(Run):
    """Rank 0 of many: which share of weights and states it keeps, and which it steps."""

    is_repeated = False  # some layouts share out whole tensors, of any block

    def check(self, setup: TrainingSetup) -> None:
        how = isinstance(setup, Job) and (setup.adapter or (setup.place != Place.AFTER_BACKWARD and setup.place))
        if how:
            raise ValueError(f"a layout with {how} has no formula; trace it")

    def __init__(self, layout: Layout):
        self.layout = layout

    def kept(self, setup: TrainingSetup) -> tuple[Parameter, ...]:
        """The weights that stand on the rank between steps."""
        parameters, layout = parameter_ledger(setup.model), self.layout
        return tuple(shard(p, layout.dp_size) for p in parameters) if layout.is_fully_sharded else parameters

    def stepped(self, setup: TrainingSetup) -> tuple[Parameter, ...]:
        """What its optimizer updates, and keeps states for."""
        whole = parameter_ledger(setup.model)
        return whole_tensors(whole, self.layout.dp_size) if self.layout.stage == 1 else self.kept(setup)

    def write_weights(self, setup: TrainingSetup, paper: Paper) -> None:
        write_weights(setup, paper, setup.precision, self.kept(setup))

    def write_states(self, setup: TrainingSetup, paper: Paper) -> None:
        write_states(setup, paper, setup.precision, self.stepped(setup))

    def write_step(self, setup: TrainingSetup, paper: Paper) -> None:
        paper.where = "optimizer"
        write_update(setup, paper, setup.precision, self.stepped(setup))


class Replicated(Rank):
    """A rank of DDP: all is whole, and buckets for the gradients stand from the start."""

    def write_weights(self, setup: TrainingSetup, paper: Paper) -> None:
        super().write_weights(setup, paper)
        paper.where, paper.op = "DistributedDataParallel", "buckets"
        num_values = sum(parameter.count for parameter in self.kept(setup))
        paper.place(tensor_bytes(num_values, setup.precision.weight_dtype), "gradients")

    def adds_gradients(self, accumulates: bool) -> bool:
        """As views of the buckets, gradients have their room from the start."""
        return accumulates or self.layout.gradient_as_bucket_view


class FullySharded(Rank):
    """A rank of ``fully_shard``: each block a group, the rest another."""

    def __init__(self, setup: TrainingSetup, layout: Layout):
        strategy = setup.recomputation
        cut = strategy.group_size, strategy.period, strategy.num_segments, strategy.num_again
        if strategy.scope == "blocks" and cut != (1, 1, 0, 0):
            raise ValueError(f"strategy {strategy.name!r} runs several blocks as one, each gathered alone; trace it")
        super().__init__(layout)
        self.root, self.block = groups_of(setup, layout)
        self.is_on_host = layout.offloads and setup.device == "cuda"

    def write_weights(self, setup: TrainingSetup, paper: Paper) -> None:
        if not self.is_on_host:  # else all of it is in the host's memory
            super().write_weights(setup, paper)

    def write_states(self, setup: TrainingSetup, paper: Paper) -> None:
        if not self.is_on_host:
            super().write_states(setup, paper)

    def write_step(self, setup: TrainingSetup, paper: Paper) -> None:
        if not self.is_on_host:
            super().write_step(setup, paper)

    def computes(self, setup: TrainingSetup) -> TrainingSetup:
        """Forward and backward run in ``param_dtype``, with weights and gradients in it."""
        dtype = self.block.param_dtype
        if dtype == setup.precision.weight_dtype:
            return setup
        precision = replace(
            setup.precision, weight_dtype=dtype, gradient_dtype=dtype, compute_dtype=dtype, master_dtype=None,
            main_gradient_dtype=None,
        )
        return replace(setup, precision=precision)

    def adds_gradients(self, accumulates: bool) -> bool:
        """A whole gradient is new each time; what accumulates is its share."""
        return False

    def start(self, paper: Paper) -> None:
        """Nothing is gathered yet."""
        self.paper, self.whole = paper, {}
        self.gathering = self.gathered = self.unreduced = None
        self.until_the_end: list[tuple[Storage, int]] = []

    def enter(self, block: int | None) -> None:
        """The root's group becomes whole, or a block's; where a block stays so it counts as weights."""
        group = self.root if block is None else self.block
        self._gather(group)
        stays = block is None or self.layout.stage == 2
        self._copy_out(block, group, "weights" if stays else "temporary", is_forward=True)

    def leave(self, block: int | None) -> None:
        """``reshard_after_forward``; at the end the buffer of the last all-gather goes."""
        if block is None:
            self.gathered = None
        elif self.layout.stage == 3:
            del self.whole[block]

    def enter_backward(self, block: int | None, accumulates: bool) -> None:
        """The block becomes whole again, and the block before it is gathered ahead, at first the last one."""
        self.accumulates = accumulates
        if self.layout.stage == 3:
            if block is not None:
                self._copy_out(block, self.block, "temporary")
            if block != 0:
                self._gather(self.block)

    def leave_backward(self, block: int | None, gradients: list[Storage], times: int = 1) -> list[Storage]:
        """Its gradients are reduced, the root's last; then all buffers go."""
        if block is not None:
            return self._reduce(block, self.block, gradients, times)
        shares = self._reduce(None, self.root, gradients, 1)
        self.unreduced = None
        for storage, num_alike in self.until_the_end:
            self.paper.events += [(storage.block, -1)] * (num_alike - 1)  # of the blocks that this one stands for
        self.until_the_end = []
        return shares

    def _gather(self, group: Group) -> None:
        """Start an all-gather: the shards are cast or brought to the device, then the buffer is made."""
        paper = self.paper
        paper.where, paper.op = "fully_shard", "all_gather"
        if group.num_ranks == 1:
            return
        casts = group.param_dtype != group.weight_dtype
        copies = []
        if self.is_on_host:
            for count in group.shard_counts:
                brought = paper.allocate(tensor_bytes(count, group.weight_dtype))
                copies.append(paper.allocate(tensor_bytes(count, group.param_dtype)) if casts else brought)
                del brought  # cast: the copy in the weight's dtype was in no list
        elif casts:
            copies.append(paper.allocate(group.share_bytes(group.param_dtype)))
        self.gathering = paper.allocate(group.whole_bytes(group.param_dtype))

    def _copy_out(self, key: int | None, group: Group, part: str, is_forward: bool = False) -> None:
        """Wait for it: whole tensors are made; in a forward the buffer stays until the next group has its own."""
        self.paper.where, self.paper.op = "fully_shard", "copy_out"
        whole = (tensor_bytes(count * group.num_ranks, group.param_dtype) for count in group.shard_counts)
        self.whole[key] = [self.paper.allocate(num_bytes) for num_bytes in whole]
        for storage in self.whole[key]:
            storage.block.part = part
        if is_forward:
            self.gathered = self.gathering
        self.gathering = None

    def _reduce(self, key: int | None, group: Group, gradients: list[Storage], times: int) -> list[Storage]:
        """Whole gradients go into one buffer, a share comes out; the buffer stays until the next one is made."""
        paper = self.paper
        paper.where, paper.op = "fully_shard", "reduce_scatter"
        del self.whole[key]
        self.unreduced = None
        self.unreduced = paper.allocate(group.whole_bytes(group.reduce_dtype))
        last = group.parameters[-1].name if group.num_ranks > 1 else ""
        for gradient in gradients:
            gradient.block.part = "temporary"
        gradient = None
        gradients[:] = [gradient for gradient in gradients if gradient.block.name == last]  # a loop's name holds it
        share = reduced = paper.allocate(group.share_bytes(group.reduce_dtype))
        if group.reduce_dtype != group.weight_dtype:
            share = paper.allocate(group.share_bytes(group.weight_dtype))
            if self.layout.num_replicas > 1:  # what was all-reduced over the replicas too stays until the end
                self.until_the_end.append((reduced, times))
        elif self.layout.num_replicas > 1 and (self.is_on_host or self.accumulates):
            self.until_the_end.append((reduced, times))
        del reduced  # ``reduce_output`` names the share by now
        gradients.clear()
        if self.is_on_host or self.accumulates:
            return []
        share.block.part = "gradients"
        return [share]
