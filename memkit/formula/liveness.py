"""Walks a list of operations forward and back, and writes down when every byte comes and goes.

In the forward a tensor stays until its last use in the list, and longer if an operation keeps it. In the backward each
operation in turn makes the gradients of its inputs while the gradient of its output and the tensors it kept are still
there, and only then lets both go. That overlap is the transient of every backward. Two more rules shape it:

- a second gradient of one tensor is added into the first, in place where nothing else holds the first;
- the first operation of a checkpointed region that needs a kept tensor has the whole region run again.

Source: torch/csrc/autograd/engine.cpp (``evaluate_function``), input_buffer.cpp (``accumulate``) and
torch/utils/checkpoint.py, torch 2.13.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from operator import attrgetter

from memkit.formula.operations import SAME, Operation, Region, Summed, Tensor
from memkit.units import round_up

BORN, FREED, FINISHED = 1, -1, 0
"""What an event says of a block. ``FINISHED``: it is the whole gradient of a parameter, and the backward is done with
it. A ``Run`` says what follows: it is kept, or freed at once."""


SENDS_VIEWS = {"mm", "addmm"}
"""Operations that hand their gradients on through a view: a linear layer flattens its input to a matrix. Others may be
added to this table and to the next."""

GRADIENT_OPS = {"mm": "mm", "addmm": "mm", "bmm": "bmm"}
"""The backward of a matrix product is two of them."""


@dataclass(slots=True, eq=False)
class Allocation:
    """One allocation. ``num_bytes`` is what the allocator takes; ``holders`` counts the names, the operations that keep
    it and the tensors whose gradient it is.

    ``is_viewed``: a gradient that was handed on through a view, into which nothing can be added. ``times``: it stands
    for so many that are alike.
    """

    num_bytes: int
    asked_bytes: int
    op: str
    where: str
    part: str = "temporary"
    holders: int = 1
    is_cast: bool = False
    is_viewed: bool = False
    times: int = 1
    gradient_of: Tensor | None = None  # the parameter, when it is finished
    finished_by: tuple[str, str] = ("", "")  # the operation and its place in the model


@dataclass(slots=True)
class Segment:
    """Events of one unit, which comes ``times`` times: 0 is before the blocks, theirs are from 1, one more follows."""

    times: int
    unit: int
    events: list[tuple[Allocation, int]]


class Allocations:
    """Makes and frees blocks, and writes down each event."""

    def __init__(self, block_bytes: int):
        self.block_bytes = block_bytes
        self.events: list[tuple[Allocation, int]] = []

    def new(self, num_bytes: int, op: str, where: str, part: str = "temporary") -> Allocation:
        """A block of so many bytes, which the allocator rounds up."""
        block = Allocation(round_up(num_bytes, self.block_bytes), num_bytes, op, where, part)
        self.events.append((block, BORN))
        return block

    def drop(self, *blocks: Allocation) -> None:
        """Each has one holder less; the last one frees it."""
        for block in blocks:
            block.holders -= 1
            if not block.holders:
                self.events.append((block, FREED))


class Walk(Allocations):
    """One forward and backward of a model's list: ``forward`` and ``backward`` are segments of events.

    Names of the training loop hold ``loss_gradient``, the gradient of the loss, until the backward returns, and what
    goes ``with_loss`` until that name is bound anew. ``last_first``: gradients of one operation are handed on from the
    last to the first. ``flops_again``: those of what is run again, by unit.
    """

    def __init__(self, model, last_first: bool = False):
        super().__init__(model.block_bytes)
        self.graph, self.last_first = model.graph, last_first
        self.times = model.times
        self.block_of: dict[Tensor, Allocation] = {}
        self.gradient_of: dict[Tensor, Allocation] = {}
        self.kept: defaultdict[Operation, list[Allocation]] = defaultdict(list)
        self.saved: defaultdict[Region, list[Allocation]] = defaultdict(list)
        # autocast's cache, by unit
        self.cast_in: defaultdict[int, list[Allocation]] = defaultdict(list)
        self.was_run_again: set[Region] = set()
        self.flops_again: Counter[int] = Counter()
        self.graph.find_last_uses()
        self.forward = self.run_forward(model.loss)
        self.backward = self.run_backward(model.loss)

    def cut(self, unit: int = 0) -> Segment:
        """The events since the last cut."""
        events, self.events = self.events, []
        return Segment(self.times[unit], unit, events)

    # Forward

    def run_forward(self, loss: Tensor) -> list[Segment]:
        """Every operation in turn; then autocast and the program's names let go, and the backward's first gradient."""
        segments = []
        for unit, operations in groupby(self.graph.operations, attrgetter("unit")):
            for op in operations:
                self.cast_in[unit] += self.make(op)
                if op.keeps and op.region is None:
                    self.keep(op)
                for x in op.last_uses:
                    self.drop(self.block_of[x])
            segments.append(self.cut(unit))
        for unit in range(1, len(self.times) - 1):
            self.drop(*self.cast_in.pop(unit))
            segments.append(self.cut(unit))
        self.with_loss = [self.block_of[loss]]
        named = [self.block_of[x] for x in self.graph.named if x is not loss]
        self.drop(*chain.from_iterable(self.cast_in.values()), *named)
        self.loss_gradient = self.new(self.with_loss[0].asked_bytes, "ones_like", "")
        segments.append(self.cut())
        for segment in segments:
            name_activations(segment.events)
        return segments

    def make(self, op: Operation, is_again: bool = False) -> Sequence[Allocation]:
        """What ``op`` makes; what a policy saved is there in the second run. Returns what autocast remembers."""
        if op.is_view:
            return ()
        saved = self.saved[op.region] if op.is_saved else []
        for x in op.makes:
            if saved and is_again:
                self.block_of[x] = saved.pop(0)
                continue
            block = self.block_of[x] = self.new(x.num_bytes, op.kind, op.where)
            block.is_cast = op.is_cast
            if op.is_saved:
                block.holders += 1
                saved.append(block)
        if not op.is_remembered:
            return ()
        block.holders += 1
        return (block,)

    def keep(self, op: Operation) -> None:
        """Hold what its backward needs; parameters stand anyway."""
        for x in op.keeps:
            if x.base.parameter is None:
                block = self.block_of[x.base]
                block.holders += 1
                self.kept[op].append(block)

    # Backward

    def run_backward(self, loss: Tensor) -> list[Segment]:
        """From the last operation to the first."""
        self.uses = Counter(
            x for op in self.graph.operations for x in op.reads if x.parameter is not None
        )
        self.gradient_of[loss] = self.loss_gradient
        self.loss_gradient.holders += 1  # ``loss.backward()`` holds it until it returns
        segments = []
        for unit, operations in groupby(reversed(self.graph.operations), attrgetter("unit")):
            for op in operations:
                if op.needs_grad:
                    self.run_backward_of(op)
            segments.append(self.cut(unit))
        return segments

    def run_backward_of(self, op: Operation) -> None:
        """Make the gradients of what ``op`` read, let go of what it kept, hand the gradients on."""
        self.op, self.where = GRADIENT_OPS.get(op.kind, f"{op.kind}_backward"), op.where
        region = op.region if op.keeps else None
        if region is not None:
            region.restore(self, op)
        arrived = [self.gradient_of.pop(x) for x in op.makes if x in self.gradient_of]
        sent, sums, dtype = [], [], op.makes[0].dtype
        for x, way in zip(op.reads, op.ways, strict=True):
            # a fused attention's kernel makes the gradients of all its inputs, wanted or not
            if not x.needs_grad and op.kind != "attention":
                continue
            if isinstance(way, Summed):
                sums.append((x, way, [self.gradient(op.makes[0])] if way.is_product else []))
            elif way == SAME and x.dtype == dtype:
                arrived[0].holders += 1
                sent.append((x, arrived[0]))
            else:
                sent.append((x, self.gradient(x)))
                sent[-1][1].is_viewed = op.kind in SENDS_VIEWS
        self.allocate_scratch(op.scratch_bytes)
        if region is not None:  # the kernel's own code holds what is restored, and no node does
            self.drop(*self.kept.pop(op, ()))
        for x, way, product in sums:
            sent.append((x, self.gradient(x)))
            self.allocate_scratch(way.scratch_bytes)
            self.drop(*product)
        self.drop(*arrived, *self.kept.pop(op, ()))
        if region is not None:
            region.leave(self, op)
        for x, gradient in reversed(sent) if self.last_first else sent:
            self.accumulate(x, gradient)

    def gradient(self, x: Tensor) -> Allocation:
        """A new gradient, as large as ``x``."""
        return self.new(x.num_bytes, self.op, self.where)

    def allocate_scratch(self, num_bytes: int) -> None:
        """What a kernel of the backward takes and gives back at once."""
        if num_bytes:
            self.drop(self.new(num_bytes, self.op, self.where))

    def accumulate(self, x: Tensor, gradient: Allocation) -> None:
        """A gradient arrives: the first of a tensor is taken over, each further one added to it."""
        if not x.needs_grad:
            return self.drop(gradient)
        if x not in self.gradient_of:
            self.gradient_of[x] = gradient
        else:
            first = self.gradient_of[x]
            # PyTorch adds in place unless somebody else holds the first, too: ``use_count() > 1``.
            if first.holders > 1 or first.is_viewed:
                self.gradient_of[x] = self.gradient(x)
                self.drop(first)
            self.drop(gradient)
        if x.parameter is not None:
            self.uses[x] -= 1
            if not self.uses[x]:
                block = self.gradient_of.pop(x)
                block.gradient_of, block.finished_by = x, (self.op, self.where)
                self.events.append((block, FINISHED))

    def run_again(self, region: Region, *held: Tensor) -> None:
        """Run a region once more, unless it was; this time its operations keep what they keep. ``held`` stay named."""
        if region in self.was_run_again:
            return
        self.was_run_again.add(region)
        start, casts, names = len(self.events), [], {}
        last = region.keepers[-1] if region.stops_early else None
        # put back after the run, so it stands beside all of it
        size = self.graph.random_state_bytes
        states = [self.new(size, self.op, self.where)] if size else []
        for op in region.operations:
            # it has all it keeps, and makes nothing any more
            if op is last and not set(op.makes) & set(op.keeps):
                self.keep(op)
                break
            self.flops_again[op.unit] += 0 if op.is_saved else op.flops
            casts += self.make(op, is_again=True)
            names |= {x: self.block_of[x] for x in op.makes if not op.is_view}
            self.keep(op)
            if op is last:
                break
            self.drop(*[names.pop(x) for x in op.last_uses if x in names])
        self.drop(*[block for x, block in names.items() if x not in held], *casts, *states)
        name_activations(self.events[start:])


def name_activations(events: Iterable[tuple[Allocation, int]]) -> None:
    """What was born in these events and is there now is an activation; casts of weights are not."""
    for block, sign in events:
        if sign == BORN and block.holders and block.part == "temporary" and not block.is_cast:
            block.part = "activations"
