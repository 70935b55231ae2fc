"""How a forward moves bytes: the program's operations, written down one line each.

The estimate does not run PyTorch. It writes the model's operations on this tape: what each reads, what it
makes, what its backward will need. The tape does what PyTorch does with memory:

- a tensor is freed when the program has dropped it and no operation keeps it for the backward;
- autocast's cast of a weight is made once and remembered until autocast is left;
- inside a checkpoint nothing is kept but the arguments, and what a policy saves.

Every storage carries its name, its axes and who keeps it, every product its FLOPs: ledgers and costs are read
off. ``memkit.formula.backward`` reads the tape from its end. Nothing here knows a transformer or torch.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from memkit.formats.dtypes import tensor_bytes

NEW, SAME, SUM, FULL = "new", "same", "sum", "full"
"""How a backward makes the gradient of an input: a tensor of its own; the output's gradient itself (an addition, a
view); that one summed down (a bias); a tensor as large as the output, then summed down (a factor that was broadcast).
"""

FACTORS = ("mm", "addmm", "bmm", "mul")  # the backward wants each of two inputs for the gradient of the other


@dataclass(slots=True, eq=False)
class Storage:
    """Bytes in memory, how many hold them, and what for (``timeline.PARTS``)."""

    num_bytes: int
    part: str = "temporary"
    holders: int = 1
    is_cast: bool = False  # autocast's cast of a weight: temporary, however long it stays
    is_viewed: bool = False  # known through a view, which holds it too: nothing can be added into it
    asked_bytes: int = 0  # before the allocator rounds
    op: str = ""  # which operation made it, and in which module
    where: str = ""
    name: str = ""  # for a ledger: what it is, and its axes in letters
    axes: str = ""
    dtype: str = ""
    kept_by: str = ""  # the operations whose backward wants it, in which section of the model
    section: str = ""


@dataclass(slots=True, eq=False)
class Value:
    """A tensor as the program sees it: ``count`` values of ``dtype``, possibly a view of another's storage."""

    count: int
    dtype: str
    storage: Storage | None = None  # None: a parameter, which the tape neither makes nor frees
    needs_grad: bool = True
    num_uses: int = 0  # operations that will send a gradient
    is_dropped: bool = False
    axes: str = ""
    name: str = ""  # of a parameter

    @property
    def num_bytes(self) -> int:
        """Bytes of the values, which are fewer than the storage's in a view of a part."""
        return tensor_bytes(self.count, self.dtype)


@dataclass(slots=True, eq=False)
class Operation:
    """What the backward of one operation needs to know, and what it costs."""

    op: str
    inputs: tuple[Value, ...]
    modes: tuple[str, ...]
    scratch_bytes: int
    sum_scratch_bytes: int
    sends_views: bool
    region: "Region | None"
    where: str
    name: str = ""
    flops: int = 0
    outs: tuple[Value, ...] = ()
    made: list[Storage] = field(default_factory=list)
    kept: list[Storage | None] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Region:
    """A checkpointed part of the program: how to run it again, and what it holds until then.

    ``make_policy`` makes a function that says for each operation in turn whether its outputs are saved.
    """

    run: Callable
    arguments: tuple[Value, ...]
    make_policy: Callable[[], Callable[[str], bool]] | None = None
    stops_early: bool = True
    random_state: Storage | None = None  # so that dropout drops the same values again
    operations: list[Operation] = field(default_factory=list)
    saved: list[Storage] = field(default_factory=list)
    is_recomputed: bool = False

    def let_go(self, tape: "Tape") -> None:
        """Release what it holds."""
        for storage in (*(value.storage for value in self.arguments), self.random_state):
            tape.release(storage)
        self.arguments, self.random_state = (), None


class EarlyStop(Exception):
    """A recomputation has made the last tensor that the backward wants; PyTorch stops it there."""


class Tape:
    """Operations in program order, and the events they cause: ``(storage, +1)`` a birth, ``(storage, -1)`` a free.

    ``round_up`` turns the bytes asked for into the bytes that the device's allocator takes.
    ``random_state_bytes`` is what a checkpoint keeps of the random number generator in the device's memory.
    ``sizes``: the number behind every axis; shapes may then be given as axes. ``where`` and ``section`` say
    which part of the model is being written.
    """

    def __init__(
        self, round_up: Callable[[int], int], random_state_bytes: int = 0, sizes: Mapping[str, int] | None = None
    ):
        self.round_up, self.random_state_bytes, self.sizes = round_up, random_state_bytes, sizes or {}
        self.counts: dict[str, int] = {}
        self.events: list[tuple[Storage, int]] = []
        self.operations: list[Operation] = []
        self.kept: list[Storage] = []  # in the order in which they were first kept
        self.weight_casts: dict[Value, Value] = {}
        self.region: Region | None = None
        self.replay: list[tuple[Operation, int]] | None = None  # what a region that runs again has yet to keep
        self.named: list[Value] = []  # what a region that runs again has made
        self.policy: Callable[[str], bool] | None = None
        self.flops_again = 0
        self.where = self.section = self.op = ""

    def count(self, axes: str | int) -> int:
        """Values in a tensor of these axes; ``/2`` at the end is half of them."""
        if isinstance(axes, int):
            return axes
        if axes not in self.counts:
            whole = axes.removesuffix("/2")
            self.counts[axes] = math.prod(self.sizes[axis] for axis in whole.split()) // (1 + (whole != axes))
        return self.counts[axes]

    def allocate(self, num_bytes: int) -> Storage:
        """A new block."""
        storage = Storage(self.round_up(num_bytes), asked_bytes=num_bytes, op=self.op, where=self.where)
        self.events.append((storage, +1))
        return storage

    def hold(self, storage: Storage | None) -> Storage | None:
        """One holder more."""
        if storage is not None:
            storage.holders += 1
        return storage

    def release(self, storage: Storage | None) -> None:
        """One holder less; the last one frees the block."""
        if storage is not None:
            storage.holders -= 1
            if storage.holders == 0:
                self.events.append((storage, -1))

    def drop(self, *values: Value) -> None:
        """The program's names for these tensors go out of scope."""
        for value in values:
            if not value.is_dropped:
                value.is_dropped = True
                self.release(value.storage)

    def make(
        self, axes: str | int, dtype: str, name: str = "", kept_by: str = "", section: str = "", op: str = "empty"
    ) -> Value:  # fmt: skip
        """A tensor without a gradient: a batch, a table. ``kept_by``: what a ledger says of it."""
        self.op = op
        value = self._value(axes, dtype, self.allocate, name)
        value.needs_grad = False
        if kept_by:
            self.note(value.storage, kept_by, section)
        return value

    def rename(self, value: Value, name: str) -> Value:
        """Call a storage by another name, unless a ledger has it already."""
        storage = value.storage
        if storage is not None and not storage.kept_by:
            storage.name = name
        return value

    def note(self, storage: Storage, kept_by: str, section: str = "") -> None:
        """Enter a storage in the list of those kept."""
        if kept_by and not storage.kept_by:
            storage.kept_by, storage.section = kept_by, section or self.section
            self.kept.append(storage)
        elif kept_by and not section and storage.section == self.section and kept_by not in storage.kept_by.split(", "):
            storage.kept_by += f", {kept_by}"

    def run(
        self, op: str, inputs: Sequence[Value], axes: str | int | None, dtype: str = "", *, name: str = "",
        by: str = "", keeps: Sequence[Value] = (), keeps_out: bool = False, out_by: str | None = None,
        extra: Sequence[tuple[str, str | int, str]] = (), modes: Sequence[str] = (), scratch_bytes: int = 0,
        sum_scratch_bytes: int = 0, sends_views: bool = False, flops: int = 0, forward_scratch_bytes: int = 0,
    ) -> Value:  # fmt: skip
        """One operation. Returns its output, of these axes or so many values; ``None``: a view of its first input.

        ``name``: of what it makes. ``by``: its own name as a keeper, where that is not ``op``. ``keeps``: inputs
        kept for the backward. ``keeps_out``: so is the output, for which a ledger names ``out_by``. ``extra``:
        further tensors that it makes and keeps, as (name, axes, dtype): a mask, statistics. ``modes``: how the
        gradient of each input is made (default ``NEW``). ``scratch_bytes``: further temporaries of the backward;
        ``sum_scratch_bytes``: those of a gradient that is summed down. ``sends_views``: its gradients are handed
        on through a view. ``flops``: of its forward;
        ``forward_scratch_bytes``: what its kernel takes beside the output and gives back.
        """
        by, self.op = by or op, op
        needs_grad = any(value.needs_grad for value in inputs)
        if op in FACTORS and len(inputs) > 1:
            keeps = [x for x, other in zip(inputs, inputs[1::-1], strict=False) if x in keeps and other.needs_grad]
        is_saved = self.policy is not None and self.policy(op)
        node = self._begin(op, inputs, modes, scratch_bytes, sum_scratch_bytes, sends_views)
        node.name, node.flops = name, flops
        for value in keeps if needs_grad else ():
            self._keep(node, value.storage, by)
        self._stop_if_complete()
        allocate = self.allocate
        if is_saved:
            allocate = self._save if self.replay is None else lambda _: self.region.saved.pop(0)
        elif self.replay is not None:
            self.flops_again += flops
        source = inputs[0]
        if axes is None:
            out = self._named(Value(source.count, source.dtype, self.hold(source.storage), axes=source.axes))
        else:
            out = self._value(axes, dtype, allocate, name)
            node.made.append(out.storage)
        if forward_scratch_bytes and not is_saved:
            self.release(self.allocate(forward_scratch_bytes))
        extras = []
        for extra_name, extra_axes, extra_dtype in extra:
            value = self._value(extra_axes, extra_dtype, allocate, extra_name, is_named=False)
            node.made.append(value.storage)
            if needs_grad:
                self._keep(node, value.storage, by)
            extras.append(value.storage)
        out.needs_grad = needs_grad
        if keeps_out and needs_grad:
            self._keep(node, out.storage, by if out_by is None else out_by)
        for storage in extras:  # they all stand until the operation returns
            self.release(storage)
        self._end(node, (out,))
        self._stop_if_complete()
        return out

    def split(self, op: str, value: Value, axes: Sequence[str | int]) -> tuple[Value, ...]:
        """Views of parts of one tensor. The backward joins their gradients in a new tensor."""
        node = self._begin(op, (value,))
        like = {"dtype": value.dtype, "needs_grad": value.needs_grad}
        outs = (Value(self.count(part), storage=self.hold(value.storage), axes=str(part), **like) for part in axes)
        outs = tuple(self._named(out) for out in outs)
        self._end(node, outs)
        return outs

    def cast(self, value: Value, dtype: str) -> Value:
        """``value`` in another dtype; the value itself where it has that dtype already."""
        if value.dtype == dtype:
            return value
        name = f"{value.storage.name}, cast to {dtype}" if value.storage else ""
        return self.run("_to_copy", [value], value.axes or value.count, dtype, name=name)

    def cast_weight(self, parameter: Value, dtype: str, name: str = "") -> Value:
        """Autocast's cast of a parameter, remembered until ``forget_casts`` if it is trained (``cached_cast``, C++)."""
        if parameter.dtype == dtype:
            return parameter
        cast = self.weight_casts.get(parameter)
        if cast is None:
            cast = self.run("_to_copy", [parameter], parameter.axes or parameter.count, dtype, name=name)
            cast.storage.is_cast = True
            if parameter.needs_grad:
                self.weight_casts[parameter] = cast
        return cast

    def forget_casts(self, parameters: Iterable[Value]) -> None:
        """Autocast is left. The casts of these parameters that an operation keeps stay all the same."""
        for parameter in parameters:
            if parameter in self.weight_casts:
                self.drop(self.weight_casts.pop(parameter))

    def checkpoint(
        self, run: Callable[..., Value], *arguments: Value, make_policy: Callable | None = None,
        stops_early: bool = True,
    ) -> Value:  # fmt: skip
        """``run(*arguments)``, keeping the arguments and what a policy saves; the backward will run it again."""
        self.op = "checkpoint"
        region, num_kept = Region(run, arguments, make_policy, stops_early, self._random_state()), len(self.kept)
        for value in arguments:
            self.note(self.hold(value.storage), "checkpoint")
        if region.random_state is not None:
            region.random_state.name, region.random_state.dtype = "random number state", "uint8"
            region.random_state.axes = str(self.random_state_bytes)
            self.note(region.random_state, "checkpoint", "checkpoint")
        self._enter(region)
        out = run(*arguments)
        self._enter(None)
        if not any(node.kept for node in region.operations):  # nothing in it is trained: it is not run again
            for storage in self.kept[num_kept:]:
                storage.kept_by = storage.section = ""
            del self.kept[num_kept:]
            region.let_go(self)
        return out

    def run_again(self, region: Region) -> None:
        """Run a checkpointed region once more; this time its operations keep what they keep.

        What a policy saved and this run did not reach stays until the region is done.
        """
        region.is_recomputed = True
        self.replay = [(node, slot) for node in region.operations for slot in range(len(node.kept))]
        weight_casts, self.weight_casts = self.weight_casts, {}
        before = self.where, self.section, self.op
        start, state_of_now = len(self.events), self._random_state()
        self._enter(region)
        try:
            self.drop(region.run(*region.arguments))
        except EarlyStop:
            self.drop(*self.named)
        self._enter(None)
        self.forget_casts(list(self.weight_casts))
        self.release(state_of_now)
        self.weight_casts, self.replay, self.named = weight_casts, None, []
        self.where, self.section, self.op = before
        region.arguments += tuple(Value(0, "float32", storage) for storage in region.saved)
        region.saved = []
        self.name_activations(start)

    def name_activations(self, start: int = 0) -> None:
        """What was born since event ``start`` and is alive now is an activation; casts of weights are not."""
        for storage, sign in self.events[start:]:
            if sign > 0 and storage.holders and storage.part == "temporary" and not storage.is_cast:
                storage.part = "activations"

    def _enter(self, region: Region | None) -> None:
        self.region = region
        self.policy = region.make_policy() if region is not None and region.make_policy else None

    def _random_state(self) -> Storage | None:
        return self.allocate(self.random_state_bytes) if self.random_state_bytes else None

    def _save(self, num_bytes: int) -> Storage:
        storage = self.hold(self.allocate(num_bytes))
        self.region.saved.append(storage)
        self.kept.append(storage)
        storage.kept_by = storage.section = "policy"
        return storage

    def _value(
        self, axes: str | int, dtype: str, allocate: Callable[[int], Storage], name: str, is_named: bool = True
    ) -> Value:  # fmt: skip
        value = Value(self.count(axes), dtype, axes=str(axes))
        storage = value.storage = allocate(value.num_bytes)
        if not storage.name:
            storage.name, storage.axes, storage.dtype = name, value.axes, dtype
        return self._named(value) if is_named else value

    def _named(self, value: Value) -> Value:
        if self.replay is not None:
            self.named.append(value)
        return value

    def _begin(
        self, op: str, inputs: Sequence[Value], modes: Sequence[str] = (), scratch_bytes: int = 0,
        sum_scratch_bytes: int = 0, sends_views: bool = False,
    ) -> Operation:  # fmt: skip
        if self.replay is None:
            for value in inputs:
                value.num_uses += value.needs_grad
        modes = tuple(modes) or (NEW,) * len(inputs)
        return Operation(
            op, tuple(inputs), modes, scratch_bytes, sum_scratch_bytes, sends_views, self.region, self.where
        )

    def _keep(self, node: Operation, storage: Storage | None, by: str) -> None:
        if self.replay is not None:
            first_run, slot = self.replay.pop(0)
            first_run.kept[slot] = self.hold(storage)
        elif self.region is not None:
            node.kept.append(None)
        else:
            node.kept.append(self.hold(storage))
            if storage is not None:
                self.note(storage, by)

    def _stop_if_complete(self) -> None:
        if self.replay is not None and not self.replay and self.region.stops_early:
            raise EarlyStop

    def _end(self, node: Operation, outs: tuple[Value, ...]) -> None:
        node.outs = outs
        if self.replay is None:
            self.operations.append(node)
            if self.region is not None:
                self.region.operations.append(node)
