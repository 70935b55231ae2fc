"""One rank of many on paper: what DDP, ZeRO's stages and FSDP2 keep, gather and send, in a step and at rest.

Lesson 11. The step is ``estimate_memory``'s own walk, whose events a layout rewrites around each block.

``fully_shard`` gathers a block's weights before its forward and frees them after it (``reshard_after_forward``), then
again before its backward, while the buffer of the block before that one is already being filled (prefetch). After the
backward the whole gradient is copied into one buffer, reduced to this rank's share, and freed. Three things stay
longer than one would think: the buffer of an all-gather until the next block has copied its own, that of a
reduce-scatter until the next block's is made, and the whole gradient of a group's last parameter until the share is
there. The root's group stays whole from the forward's start to the backward's end. The walk's segments are its units
of blocks, so what a rank does before and after a block is put around a segment.

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

Source: _fsdp_param_group.py and _fsdp_collectives.py of torch/distributed/fsdp/_fully_shard, and
torch/nn/parallel/distributed.py, torch 2.13; Rajbhandari et al. 2020, arXiv:1910.02054, sections 5 and 7 and figure 1;
the counted collectives are in ``book.training_ranks``.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from memkit.cards import Card
from memkit.formats.records import dtype_bits, tensor_bytes
from memkit.formula.estimate import estimate_run
from memkit.formula.liveness import FREED, Allocation, Allocations, Segment, Walk
from memkit.formula.parameters import (
    Parameter,
    block_parameters,
    count_parameters,
    embedding_parameters,
    output_parameters,
    parameter_ledger,
)
from memkit.formula.run import Run, keep_gradients, write_states, write_update, write_weights
from memkit.setup import TrainingSetup
from memkit.strategies import FULL
from memkit.timeline import MemoryTimeline
from memkit.units import as_whole_number
from stepscope.setup import STAGES, Job, Layout, Place


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
        raise ValueError(
            f"{setup.model.name} has blocks with and without experts, groups of two sizes; trace it"
        )
    own = setup.precision.weight_dtype
    param_dtype = layout.param_dtype or own
    how = {"num_ranks": layout.dp_size, "weight_dtype": own, "param_dtype": param_dtype}
    how["reduce_dtype"] = layout.reduce_dtype or param_dtype
    root = embedding_parameters(setup.model) + output_parameters(setup.model)
    block = block_parameters(setup.model, setup.model.mlp_of(0))
    return Group(parameters=root, **how), Group(parameters=block, **how)


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
    return estimate_run(
        FullySharded(setup, layout) if layout.is_fully_sharded else Replicated(layout), setup, steps
    )


class Rank(Run):
    """Rank 0 of many: which share of weights and states it keeps, and which it steps."""

    is_repeated = False  # some layouts share out whole tensors, of any block

    def __init__(self, layout: Layout):
        self.layout = layout

    def check(self, setup: TrainingSetup) -> None:
        how = isinstance(setup, Job) and (
            setup.adapter or (setup.place != Place.AFTER_BACKWARD and setup.place)
        )
        if how:
            raise ValueError(f"a layout with {how} has no formula; trace it")

    def kept(self, setup: TrainingSetup) -> tuple[Parameter, ...]:
        """The weights that stand on the rank between steps."""
        return parameter_ledger(setup.model)

    def stepped(self, setup: TrainingSetup) -> tuple[Parameter, ...]:
        """What its optimizer updates, and keeps states for."""
        return self.kept(setup)

    def write_weights(self, setup: TrainingSetup, record: Allocations) -> None:
        write_weights(setup, record, setup.precision, self.kept(setup))

    def write_states(self, setup: TrainingSetup, record: Allocations) -> None:
        write_states(setup, record, setup.precision, self.stepped(setup))

    def write_step(self, setup: TrainingSetup, record: Allocations) -> None:
        if stepped := self.stepped(setup):
            write_update(setup, record, setup.precision, stepped, "optimizer")


class Replicated(Rank):
    """A rank of DDP: all is whole, and buckets for the gradients stand from the start."""

    def stepped(self, setup: TrainingSetup) -> tuple[Parameter, ...]:
        kept = self.kept(setup)
        return whole_tensors(kept, self.layout.dp_size) if self.layout.stage == 1 else kept

    def write_weights(self, setup: TrainingSetup, record: Allocations) -> None:
        super().write_weights(setup, record)
        num_values = sum(parameter.count for parameter in self.kept(setup))
        num_bytes = tensor_bytes(num_values, setup.precision.weight_dtype)
        record.new(num_bytes, "buckets", "DistributedDataParallel", "gradients")

    def backward(
        self, setup: TrainingSetup, walk: Walk, *, accumulates: bool, makes_states: bool
    ) -> list[Segment]:
        """As views of the buckets, gradients have their room from the start."""
        is_added = accumulates or self.layout.gradient_as_bucket_view
        return super().backward(setup, walk, accumulates=is_added, makes_states=makes_states)


class FullySharded(Rank):
    """A rank of ``fully_shard``: each block a group, the rest another."""

    def __init__(self, setup: TrainingSetup, layout: Layout):
        strategy = setup.recomputation
        cut = strategy.regions(setup.model.num_layers) if strategy.scope == "blocks" else ()
        if any(len(blocks) > 1 or not is_again for blocks, is_again in cut):
            raise ValueError(
                f"strategy {strategy.name!r} runs several blocks as one, each gathered alone; trace it"
            )
        super().__init__(layout)
        self.root, self.block = groups_of(setup, layout)
        self.is_on_host = layout.offloads and setup.device == "cuda"

    def kept(self, setup: TrainingSetup) -> tuple[Parameter, ...]:
        if self.is_on_host:  # all of it is in the host's memory
            return ()
        return tuple(shard(p, self.layout.dp_size) for p in super().kept(setup))

    def computes(self, setup: TrainingSetup) -> TrainingSetup:
        """Forward and backward run in ``param_dtype``, with weights and gradients in it."""
        dtype = self.block.param_dtype
        if dtype == setup.precision.weight_dtype:
            return setup
        inside = dict.fromkeys(("weight_dtype", "gradient_dtype", "compute_dtype"), dtype)
        without_copies = {"master_dtype": None, "main_gradient_dtype": None}
        return replace(setup, precision=replace(setup.precision, **inside, **without_copies))

    def forward(self, walk: Walk) -> list[Segment]:
        """Each group is gathered before its segment, the root's after the batch; stage 3 frees a block's behind it."""
        self.ranks = Ranks(walk.block_bytes, self.layout, self.is_on_host)
        ranks, out, last = self.ranks, [], walk.backward[0].unit
        is_freed = self.layout.stage == 3
        for number, segment in enumerate(walk.forward):
            is_block, events = 0 < number < last, segment.events
            if number == 0:
                ranks.events += events[:2]  # token ids and targets
                ranks.enter(0, self.root, "weights")
                events = events[2:]
            elif is_block:
                ranks.enter(number, self.block, "temporary" if is_freed else "weights")
            ranks.events += events
            if is_block and is_freed:
                ranks.drop_all(ranks.whole.pop(number))
            if number == last:
                ranks.bind("gathered", None)
            out.append(ranks.cut(segment))
        return out

    def backward(
        self, setup: TrainingSetup, walk: Walk, *, accumulates: bool, makes_states: bool
    ) -> list[Segment]:
        """Each block is gathered again, the one before it ahead; its gradients are reduced to a share."""
        ranks, out, outside = self.ranks.copy(), [], []
        last, is_freed = walk.backward[0].unit, self.layout.stage == 3
        for segment in keep_gradients(walk.backward, walk.block_bytes, self.gradient_dtypes(setup)):
            unit, is_block = segment.unit, 0 < segment.unit < last
            if is_freed and is_block:
                ranks.copy_out(unit, self.block, "temporary")
            if is_freed and (unit == last or unit > 1):  # a block before this one is left
                ranks.gather(self.block)
            ranks.events += segment.events
            born = [block for block, sign in segment.events if sign > 0]
            whole = [block for block in born if block.part == "gradients"]
            if is_block:
                ranks.reduce(unit, self.block, whole, segment.times, accumulates)
            else:
                outside += whole
            if unit == 0:
                ranks.reduce(0, self.root, outside, 1, accumulates)
                ranks.finish()
            out.append(ranks.cut(segment))
        return out


class Ranks(Allocations):
    """Buffers of collectives, by the names that PyTorch's code has for them, and a group's whole weights."""

    def __init__(self, block_bytes: int, layout: Layout, is_on_host: bool):
        super().__init__(block_bytes)
        self.layout, self.is_on_host = layout, is_on_host
        self.whole: dict[int, list[Allocation]] = {}
        self.buffers: dict[str, Allocation] = {}
        self.until_the_end: list[tuple[Allocation, int]] = []

    def copy(self) -> "Ranks":
        """As things stand after a forward, for each of the backwards that may follow it."""
        other = Ranks(self.block_bytes, self.layout, self.is_on_host)
        other.whole = dict(self.whole)
        return other

    def cut(self, segment: Segment) -> Segment:
        """What was written since the last cut, as this segment."""
        events, self.events = self.events, []
        return Segment(segment.times, segment.unit, events)

    def made(self, num_bytes: int, op: str, part: str = "temporary") -> Allocation:
        return self.new(num_bytes, op, "fully_shard", part)

    def bind(self, name: str, block: Allocation | None) -> None:
        """A buffer's name is bound anew: what it held goes."""
        before = self.buffers.pop(name, None)
        if block is not None:
            self.buffers[name] = block
        if before is not None:
            self.drop(before)

    def drop_all(self, blocks: list[Allocation]) -> None:
        """These go, whoever held them."""
        self.events += [(block, FREED) for block in blocks]

    def enter(self, unit: int, group: Group, part: str) -> None:
        """A group becomes whole for the forward; the buffer stays until the next group has its own."""
        self.gather(group)
        buffer = self.buffers.pop("gathering", None)
        self.copy_out(unit, group, part)
        self.bind("gathered", buffer)

    def gather(self, group: Group) -> None:
        """Start an all-gather: the shards are cast or brought to the device, then the buffer is made."""
        if group.num_ranks == 1:
            return
        casts = group.param_dtype != group.weight_dtype
        copies = []
        if self.is_on_host:
            for count in group.shard_counts:
                brought = self.made(tensor_bytes(count, group.weight_dtype), "all_gather")
                copies.append(brought)
                if casts:  # the copy in the weight's dtype is in no list
                    copies[-1] = self.made(tensor_bytes(count, group.param_dtype), "all_gather")
                    self.drop(brought)
        elif casts:
            copies.append(self.made(group.share_bytes(group.param_dtype), "all_gather"))
        self.bind("gathering", self.made(group.whole_bytes(group.param_dtype), "all_gather"))
        self.drop_all(copies)

    def copy_out(self, unit: int, group: Group, part: str) -> None:
        """Wait for it: whole tensors are made, and in a backward the buffer goes."""
        counts = (count * group.num_ranks for count in group.shard_counts)
        sizes = [tensor_bytes(count, group.param_dtype) for count in counts]
        self.whole[unit] = [self.made(num_bytes, "copy_out", part) for num_bytes in sizes]
        self.bind("gathering", None)

    def reduce(
        self, unit: int, group: Group, whole: list[Allocation], times: int, accumulates: bool
    ) -> None:
        """Whole gradients go into one buffer, a share comes out; the buffer stays until the next one is made."""
        self.drop_all(self.whole.pop(unit))
        self.bind("unreduced", None)
        self.bind("unreduced", self.made(group.whole_bytes(group.reduce_dtype), "reduce_scatter"))
        name = group.parameters[-1].name if group.num_ranks > 1 else ""
        # a loop's name holds it
        last = [block for block in whole if block.gradient_of.parameter.name == name]
        for block in whole:
            block.part = "temporary"
        self.drop_all([block for block in whole if block not in last])
        share = reduced = self.made(group.share_bytes(group.reduce_dtype), "reduce_scatter")
        if group.reduce_dtype != group.weight_dtype:
            share = self.made(group.share_bytes(group.weight_dtype), "reduce_scatter")
        stays = not (self.is_on_host or accumulates)
        # Over replicas, what was all-reduced stays until the end, unless it is the share itself.
        if self.layout.num_replicas > 1 and (reduced is not share or not stays):
            self.until_the_end.append((reduced, times))
        elif reduced is not share:
            self.drop(reduced)
        if stays:
            share.part = "gradients"
        elif share is not reduced or self.layout.num_replicas == 1:
            self.drop_all([share])
        self.drop_all(last)

    def finish(self) -> None:
        """At the backward's end all buffers go."""
        self.bind("unreduced", None)
        for block, times in self.until_the_end:
            self.drop_all([block] * times)


# --- at rest, and what is sent ----------------------------------------------------------------------------------------

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
    shares = {}
    for part, (each, first_stage) in PARTS.items():
        whole = each * num_parameters
        shares[part] = -(-whole // num_ranks) if stage >= first_stage else whole
    return shares


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
        twice, ranks = 2 * self.all_reduced, self.all_reduce_ranks
        return once * (self.num_ranks - 1) // self.num_ranks + twice * (ranks - 1) // ranks


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

    Source: Austin et al. 2025, jax-ml.github.io/scaling-book/gpus; section 11.5 derives it.

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


LINKS_REACH, PCIE_REACHES = 0.8, 0.5
"""What NCCL's collectives reach of a rate on paper: over the links 370 of 450 GB/s (NVIDIA's engineer, nccl-tests#212)
and 233 of 300 (nccl-tests#175); through the host 28 to 35 of 63 (nccl#1639) and 20 of 31.5 (nccl-tests#178)."""


def bytes_per_s_among(card: Card, num_cards: int) -> int:
    """Bytes per second that each of so many cards of a machine sends in one direction, as collectives reach them:
    over the links where these join all of the cards, else over PCIe.

    >>> from memkit.cards import CARDS
    >>> [bytes_per_s_among(CARDS["H100 PCIe"], num_cards) // 10**9 for num_cards in (2, 8)]
    [240, 31]
    """
    if num_cards <= (card.num_linked_cards or 0):
        return round(LINKS_REACH * card.link_bytes_per_s)
    return round(PCIE_REACHES * card.pcie_bytes_per_s)
