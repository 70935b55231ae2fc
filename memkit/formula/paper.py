"""A program's memory on paper: a tensor's bytes are there as long as a name, or the graph, holds it.

The estimate does not run PyTorch. It runs the same Python program on tensors that have shapes and no values, and
Python itself counts the references, as it does in PyTorch: the birth of a ``Storage`` is an event, and so is its
``__del__``. Three things can hold a tensor:

- a name of the program, until the name is bound anew or its function returns;
- the operation that needs it for the backward, until that backward has run;
- autocast's cache of cast weights, until autocast is left.

Inside a checkpoint the operations keep nothing but its arguments and what a policy saves; the backward runs the
function again. ``memkit.formula.backward`` has the backward. Nothing here knows a transformer or torch.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from memkit.formats.dtypes import tensor_bytes
from memkit.formula.parameters import Parameter

NEW, SAME = "new", "same"
"""How a backward makes the gradient of an input. ``NEW``: it allocates a tensor for it. ``SAME``: it hands on the
output's gradient itself, as an addition or a view does. ``Summed`` is the third way."""

FACTORS = ("mm", "addmm", "bmm", "mul")
"""Products of two factors: the backward needs each factor for the gradient of the other one."""


class Summed(NamedTuple):
    """The gradient of an input that was broadcast: the output's gradient, summed to the size of the input.

    ``scratch_bytes`` is what the kernel of the sum takes for itself. ``is_product``: the input is a factor, so that its
    gradient is a product first, as large as the output, and then summed. (For a bias the output's gradient itself is.)
    """

    scratch_bytes: int = 0
    is_product: bool = False


@dataclass(slots=True, eq=False)
class Block:
    """What is known of one allocation. It stays when the bytes are freed, because events and ledgers name it.

    ``num_bytes`` is what the allocator takes, ``asked_bytes`` what was asked for; ``part`` is one of
    ``timeline.PARTS``. ``axes`` are its shape in letters. ``kept_by`` says which operations' backward needs it, and
    ``section`` in which part of the model; both are empty until an operation keeps it.
    """

    num_bytes: int
    asked_bytes: int
    op: str
    where: str
    name: str = ""
    axes: str = ""
    dtype: str = ""
    part: str = "temporary"
    kept_by: str = ""
    section: str = ""
    is_alive: bool = True
    is_cast: bool = False


class Storage:
    """Bytes in memory. The last reference to it that goes frees them."""

    __slots__ = ("block", "events", "is_viewed")

    def __init__(self, block: Block, events: list):
        self.block, self.events = block, events
        self.is_viewed = False  # a gradient that was handed on through a view: nothing can be added into it
        events.append((block, +1))

    def __del__(self):
        self.block.is_alive = False
        self.events.append((self.block, -1))


@dataclass(slots=True, eq=False)
class Tensor:
    """What a name of the program stands for: ``count`` values of ``dtype``, maybe a view of a part of a storage.

    A parameter has no storage here: it stays, whatever the step does. Its gradient goes to output number ``output`` of
    ``source``; ``None`` if no gradient is wanted.
    """

    axes: str
    count: int
    dtype: str
    storage: Storage | None = None
    source: "Operation | Leaf | None" = None
    output: int = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of its values."""
        return tensor_bytes(self.count, self.dtype)

    def edge(self) -> "Tensor":
        """What an operation remembers of an input: where its gradient goes, and how large it is, but no bytes."""
        return Tensor(self.axes, self.count, self.dtype, None, self.source, self.output)


@dataclass(slots=True, eq=False)
class Leaf:
    """A parameter that is trained. Its gradient is complete when every use of it has sent one."""

    parameter: Parameter | None
    dtype: str
    gradients: dict[int, Storage] = field(default_factory=dict)
    num_uses: int = 0
    num_arrived: int = 0


@dataclass(slots=True, eq=False)
class Operation:
    """A node of the graph: what its backward needs. It holds what it keeps and no other tensor, as in autograd."""

    op: str
    dtype: str  # of its output
    edges: list[Tensor]
    ways: Sequence
    name: str
    where: str
    scratch_bytes: int
    flops: int
    needs_grad: bool
    region: "Region | None" = None  # the checkpointed one that has to run again before this can go backwards
    made: list[Block] = field(default_factory=list)
    kept: list[Storage | None] = field(default_factory=list)
    gradients: dict[int, Storage] = field(default_factory=dict)
    num_uses: int = 0


@dataclass(eq=False)
class Region:
    """A checkpointed part of the program: how to run it again, and what it holds until its backward is done.

    ``make_policy`` makes a function that says for each operation of a run in turn whether its outputs are saved.
    """

    run: Callable
    arguments: tuple
    make_policy: Callable[[], Callable[[str], bool]] | None
    stops_early: bool
    random_state: Storage | None  # so that dropout drops the same values again
    saves: Callable[[str], bool] | None = None  # the policy of one run, the first or the second
    saved: list[Storage] = field(default_factory=list)
    keepers: list[Operation] = field(default_factory=list)  # its operations that keep something
    is_recomputed: bool = False


class EarlyStop(Exception):
    """A recomputation has made the last tensor that the backward needs; PyTorch stops it there."""


class Paper:
    """The program's operations in order, and the events they cause: ``(block, +1)`` a birth, ``(block, -1)`` a free.

    ``sizes``: the number behind every axis. ``block_bytes``: the allocator hands out multiples of it.
    ``random_state_bytes``: what a checkpoint keeps of the random number generator in the device's memory. ``where``
    and ``section`` say which part of the model runs.
    """

    def __init__(self, sizes: Mapping[str, int] | None = None, block_bytes: int = 512, random_state_bytes: int = 0):
        self.sizes, self.block_bytes, self.random_state_bytes = sizes or {}, block_bytes, random_state_bytes
        self.counts: dict[str, int] = {}
        self.events: list[tuple[Block, int]] = []
        self.operations: list[Operation] = []
        self.kept: list[Block] = []  # in the order in which they were first kept
        self.casts: dict[Leaf, Tensor] = {}
        self.region: Region | None = None
        self.again: list[tuple[Operation, int]] | None = None  # what a second run has yet to keep, the last first
        self.flops_again = 0
        self.where = self.section = self.op = ""

    # Tensors

    def count(self, axes: str) -> int:
        """Values in a tensor of these axes; ``/2`` at the end is half of them."""
        if axes not in self.counts:
            whole = axes.removesuffix("/2")
            self.counts[axes] = math.prod(self.sizes[axis] for axis in whole.split()) // (1 + (whole != axes))
        return self.counts[axes]

    def round_up(self, num_bytes: int) -> int:
        """Bytes that the allocator takes for so many."""
        return -(-num_bytes // self.block_bytes) * self.block_bytes

    def allocate(self, num_bytes: int, name: str = "", axes: str = "", dtype: str = "") -> Storage:
        """New bytes, which are there as long as the caller holds the result."""
        return Storage(Block(self.round_up(num_bytes), num_bytes, self.op, self.where, name, axes, dtype), self.events)

    def place(self, num_bytes: int, part: str) -> None:
        """New bytes that stay to the end of the run."""
        block = Block(self.round_up(num_bytes), num_bytes, self.op, self.where, part=part)
        self.events.append((block, +1))

    def empty(self, axes: str, dtype: str, name: str = "", op: str = "empty") -> Tensor:
        """A tensor without a gradient: a batch, a table."""
        self.op, count = op, self.count(axes)
        return Tensor(axes, count, dtype, self.allocate(tensor_bytes(count, dtype), name, axes, dtype))

    def rename(self, x: Tensor, name: str) -> Tensor:
        """``x``, whose storage has another name from now on, unless a ledger has it already."""
        if x.storage is not None and not x.storage.block.kept_by:
            x.storage.block.name = name
        return x

    def note(self, storage: Storage | None, kept_by: str, section: str = "") -> None:
        """Enter a storage in the list of those kept, unless it is a parameter's or a cast of one or nobody is named."""
        if storage is None or storage.block.is_cast or not kept_by:
            return
        block = storage.block
        if not block.kept_by:
            block.kept_by, block.section = kept_by, section or self.section
            self.kept.append(block)
        elif not section and block.section == self.section and kept_by not in block.kept_by.split(", "):
            block.kept_by += f", {kept_by}"

    # Operations

    def run(
        self, op: str, inputs: Sequence[Tensor], axes: str, dtype: str = "", *, name: str = "", by: str = "",
        keeps: Sequence[Tensor] = (), out_kept_by: str | None = None, extra: Sequence[tuple[str, str, str]] = (),
        ways: Sequence = (), scratch_bytes: int = 0, flops: int = 0,
    ) -> Tensor:
        """Run one operation and return its output, a tensor of these axes called ``name``.

        For the backward it keeps the inputs in ``keeps``; its output too, unless ``out_kept_by`` is ``None``; and the
        tensors of ``extra``, each (name, axes, dtype), which it makes beside the output: a mask, statistics. A ledger
        says that ``by`` keeps them (left out: ``op``), and ``out_kept_by`` the output; one kept by ``""`` is in no
        ledger. ``ways``: how the backward makes each input's gradient (left out: all ``NEW``). ``scratch_bytes`` are
        further temporaries of the backward, ``flops`` those of the forward.
        """
        dtype = dtype or inputs[0].dtype
        operation = self._operation(op, inputs, dtype, ways, name, scratch_bytes, flops)
        is_saved = self.region is not None and self.region.saves is not None and self.region.saves(op)
        if op in FACTORS and len(inputs) > 1:  # each of the first two with the other; an addmm's bias is no factor
            keeps = [x for x, other in zip(inputs, inputs[1::-1], strict=False) if x in keeps and other.source]
        self._keep(operation, keeps, by or op)  # before the output: a second run may stop here and make none
        if self.again is not None and not is_saved:
            self.flops_again += flops
        sorts = ((name, axes, dtype), *extra)
        out, *others = [self._make(operation, *sort, is_saved) for sort in sorts]  # all stand until it returns
        operation.made = [x.storage.block for x in (out, *others)]
        self._keep(operation, others, by or op)
        if out_kept_by is not None:
            self._keep(operation, [out], out_kept_by)
        return out

    def view(self, op: str, x: Tensor, axes: Iterable[str] = (), ways: Sequence = (SAME,)) -> Tensor | list[Tensor]:
        """Another shape of the same storage; with ``axes`` a list of views of parts of it."""
        operation = self._operation(op, [x], x.dtype, ways)
        source = operation if operation.needs_grad else None
        parts = [(part, self.count(part)) for part in axes] or [(x.axes, x.count)]
        outs = [Tensor(part, count, x.dtype, x.storage, source, i) for i, (part, count) in enumerate(parts)]
        return outs if axes else outs[0]

    def cast(self, x: Tensor, dtype: str, name: str = "") -> Tensor:
        """``x`` in another dtype; ``x`` itself where it has that dtype already.

        Autocast's cache remembers the cast of a parameter that is trained (``cached_cast``, C++).
        """
        if x.dtype == dtype:
            return x
        if x.source in self.casts:
            return self.casts[x.source]
        name = name if x.storage is None else f"{x.storage.block.name}, cast to {dtype}"
        cast = self.run("_to_copy", [x], x.axes, dtype, name=name)
        cast.storage.block.is_cast = x.storage is None  # a parameter's
        if isinstance(x.source, Leaf):
            self.casts[x.source] = cast
        return cast

    def _operation(self, op, inputs, dtype, ways, name="", scratch_bytes=0, flops=0) -> Operation:
        """An operation begins. A recomputation adds none to the program's: those of the first run go backwards."""
        self.op, edges = op, [x.edge() for x in inputs]
        needs_grad = any(edge.source is not None for edge in edges)
        ways = ways or (NEW,) * len(edges)
        operation = Operation(op, dtype, edges, ways, name, self.where, scratch_bytes, flops, needs_grad)
        if self.again is None:
            self.operations.append(operation)
            for edge in edges:
                if edge.source is not None:
                    edge.source.num_uses += 1
        return operation

    def _make(self, operation: Operation, name: str, axes: str, dtype: str, is_saved: bool) -> Tensor:
        """A result of an operation; one that the first run of its region saved is there already in the second."""
        count = self.count(axes)
        if is_saved and self.again is not None:
            storage = self.region.saved.pop(0)
        else:
            storage = self.allocate(tensor_bytes(count, dtype), name, axes, dtype)
            if is_saved:
                self.region.saved.append(storage)
                self.note(storage, "policy", "policy")
        return Tensor(axes, count, dtype, storage, operation if operation.needs_grad else None)

    def _keep(self, operation: Operation, tensors: Iterable[Tensor], by: str) -> None:
        """Hold tensors for the backward; in a region only the second run does, in the place of the first."""
        for x in tensors if operation.needs_grad else ():
            if self.again is not None:
                first_run, number = self.again.pop()
                first_run.kept[number] = x.storage
            else:
                operation.kept.append(None if self.region else x.storage)
                if self.region is None:
                    self.note(x.storage, by)
        if self.again == [] and self.region.stops_early:
            raise EarlyStop

    # Checkpoints

    def checkpoint(
        self, run: Callable[..., Tensor], *arguments: Tensor | dict[str, Tensor], make_policy: Callable | None = None,
        stops_early: bool = True,
    ) -> Tensor:
        """``run(*arguments)``, keeping the arguments and what a policy saves; the backward will run it again."""
        self.op, num_operations, num_kept = "checkpoint", len(self.operations), len(self.kept)
        region = Region(run, arguments, make_policy, stops_early, self._random_state())
        for x in arguments:
            for tensor in x.values() if isinstance(x, dict) else (x,):
                self.note(tensor.storage, "checkpoint")
        self.note(region.random_state, "checkpoint", "checkpoint")
        out = self._run_region(region)
        region.keepers = [operation for operation in self.operations[num_operations:] if operation.kept]
        for operation in region.keepers:  # they alone hold the region: with the last of them it goes
            operation.region = region
        if not region.keepers:  # nothing in it is trained
            for block in self.kept[num_kept:]:
                block.kept_by = block.section = ""
            del self.kept[num_kept:]
        return out

    def run_again(self, region: Region) -> None:
        """Run a checkpointed region once more; this time its operations keep what they keep."""
        region.is_recomputed = True
        self.again = [(operation, i) for operation in region.keepers for i in range(len(operation.kept))][::-1]
        before, start, casts = (self.where, self.section, self.op), len(self.events), self.casts
        state_of_now = self._random_state()  # put back after the run, so it stands beside all of it
        self.casts = {}  # autocast is entered anew, and its cache is empty
        try:
            self._run_region(region)
        except EarlyStop:
            pass
        del state_of_now
        self.again, self.casts = None, casts
        self.where, self.section, self.op = before
        self.name_activations(start)

    def name_activations(self, start: int = 0) -> None:
        """What was born since event ``start`` and is alive now is an activation; casts of weights are not."""
        for block, sign in self.events[start:]:
            if sign > 0 and block.is_alive and block.part == "temporary" and not block.is_cast:
                block.part = "activations"

    def _run_region(self, region: Region) -> Tensor:
        """One run of a region, the first or the second: its policy is asked anew about each operation."""
        self.region, region.saves = region, region.make_policy() if region.make_policy else None
        try:
            return region.run(*region.arguments)
        finally:
            self.region = None

    def _random_state(self) -> Storage | None:
        size = self.random_state_bytes
        return self.allocate(size, "random number state", str(size), "uint8") if size else None
