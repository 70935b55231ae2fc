"""How a forward moves bytes: the program's operations, written down one line each.

The estimate does not run PyTorch. It writes the model's operations on this tape: what each reads, what it
makes, what its backward will need. The tape does what PyTorch does with memory:

- a tensor is freed when the program has dropped it and no operation keeps it for the backward;
- autocast's cast of a weight is made once and remembered until autocast is left;
- inside a checkpoint nothing is kept but the arguments.

``memkit.formula.backward`` reads the tape. Nothing here knows a transformer, and nothing knows torch.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from memkit.formats.dtypes import tensor_bytes

NEW, SAME, SUM, FULL = "new", "same", "sum", "full"
"""How a backward makes the gradient of an input: a tensor of its own; the output's gradient itself (an addition, a
view); that one summed down (a bias); a tensor as large as the output, then summed down (a factor that was broadcast).
"""


@dataclass(slots=True, eq=False)
class Storage:
    """Bytes in memory, how many hold them, and what for (``timeline.PARTS``)."""

    num_bytes: int
    part: str = "temporary"
    holders: int = 1
    is_cast: bool = False  # autocast's cast of a weight: temporary, however long it stays
    is_viewed: bool = False  # known through a view, which holds it too: nothing can be added into it


@dataclass(slots=True, eq=False)
class Value:
    """A tensor as the program sees it: ``count`` values of ``dtype``, possibly a view of another's storage."""

    count: int
    dtype: str
    storage: Storage | None = None  # None: a parameter, which the tape neither makes nor frees
    needs_grad: bool = True
    num_uses: int = 0  # operations that will send a gradient
    is_dropped: bool = False

    @property
    def num_bytes(self) -> int:
        """Bytes of the values, which are fewer than the storage's in a view of a part."""
        return tensor_bytes(self.count, self.dtype)


@dataclass(slots=True, eq=False)
class Operation:
    """What the backward of one operation needs to know."""

    name: str
    inputs: tuple[Value, ...]
    modes: tuple[str, ...]
    scratch_bytes: int
    sum_scratch_bytes: int
    sends_views: bool
    region: "Region | None"
    outs: tuple[Value, ...] = ()
    kept: list[Storage | None] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Region:
    """A checkpointed part of the program: how to run it again, and what it holds until then."""

    run: Callable
    arguments: tuple[Value, ...]
    random_state: Storage | None = None  # so that dropout drops the same values again
    operations: list[Operation] = field(default_factory=list)
    is_recomputed: bool = False


class EarlyStop(Exception):
    """A recomputation has made the last tensor that the backward wants; PyTorch stops it there."""


class Tape:
    """Operations in program order, and the events they cause: ``(storage, +1)`` a birth, ``(storage, -1)`` a free.

    ``round_up`` turns the bytes asked for into the bytes that the device's allocator takes.
    ``random_state_bytes`` is what a checkpoint keeps of the random number generator in the device's memory.
    """

    def __init__(self, round_up: Callable[[int], int], random_state_bytes: int = 0):
        self.round_up, self.random_state_bytes = round_up, random_state_bytes
        self.events: list[tuple[Storage, int]] = []
        self.operations: list[Operation] = []
        self.weight_casts: dict[Value, Value] = {}
        self.region: Region | None = None
        self.replay: list[tuple[Operation, int]] | None = None  # what a region that runs again has yet to keep
        self.named: list[Value] = []  # what a region that runs again has made

    def allocate(self, num_bytes: int) -> Storage:
        """A new block."""
        storage = Storage(self.round_up(num_bytes))
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

    def make(self, count: int, dtype: str) -> Value:
        """A tensor without a gradient: a batch, a table."""
        value = Value(count, dtype, needs_grad=False)
        value.storage = self.allocate(value.num_bytes)
        return self._name(value)

    def run(
        self, name: str, inputs: Sequence[Value], count: int | None, dtype: str = "", *, keeps: Sequence[Value] = (),
        keeps_out: bool = False, extra: Sequence[tuple[int, str]] = (), modes: Sequence[str] = (),
        scratch_bytes: int = 0, sum_scratch_bytes: int = 0, sends_views: bool = False,
    ) -> Value:  # fmt: skip
        """One operation. Returns its output of ``count`` values; ``None``: a view of its first input.

        ``keeps``: inputs kept for the backward. ``keeps_out``: so is the output. ``extra``: further tensors
        that it makes and keeps, as (count, dtype): a mask, statistics. ``modes``: how the gradient of each
        input is made (default ``NEW``). ``scratch_bytes``: further temporaries of the backward;
        ``sum_scratch_bytes``: those of a gradient that is summed down.
        ``sends_views``: its gradients are handed on through a view.
        """
        node = self._begin(name, inputs, modes, scratch_bytes, sum_scratch_bytes, sends_views)
        for value in keeps:
            self._keep(node, value.storage)
        self._stop_if_complete()
        source = inputs[0]
        if count is None:
            out = Value(source.count, source.dtype, self.hold(source.storage))
        else:
            out = Value(count, dtype)
            out.storage = self.allocate(out.num_bytes)
        self._name(out)
        for extra_count, extra_dtype in extra:
            storage = self.allocate(tensor_bytes(extra_count, extra_dtype))
            self._keep(node, storage)
            self.release(storage)
        if keeps_out:
            self._keep(node, out.storage)
        self._end(node, (out,))
        self._stop_if_complete()
        return out

    def split(self, name: str, value: Value, counts: Sequence[int]) -> tuple[Value, ...]:
        """Views of parts of one tensor. The backward joins their gradients in a new tensor."""
        node = self._begin(name, (value,))
        outs = tuple(self._name(Value(count, value.dtype, self.hold(value.storage))) for count in counts)
        self._end(node, outs)
        return outs

    def cast(self, value: Value, dtype: str) -> Value:
        """``value`` in another dtype; the value itself where it has that dtype already."""
        return value if value.dtype == dtype else self.run("cast", [value], value.count, dtype)

    def cast_weight(self, parameter: Value, dtype: str) -> Value:
        """Autocast's cast of a parameter, remembered until ``forget_casts``."""
        if parameter.dtype == dtype:
            return parameter
        if parameter not in self.weight_casts:
            self.weight_casts[parameter] = self.run("cast of a weight", [parameter], parameter.count, dtype)
            self.weight_casts[parameter].storage.is_cast = True
        return self.weight_casts[parameter]

    def forget_casts(self, parameters: Iterable[Value]) -> None:
        """Autocast is left. The casts of these parameters that an operation keeps stay all the same."""
        for parameter in parameters:
            if parameter in self.weight_casts:
                self.drop(self.weight_casts.pop(parameter))

    def checkpoint(self, run: Callable[..., Value], *arguments: Value) -> Value:
        """``run(*arguments)``, keeping nothing but the arguments; the backward will run it again."""
        self.region = Region(run, arguments, self._random_state())
        for value in arguments:
            self.hold(value.storage)
        out = run(*arguments)
        self.region = None
        return out

    def _random_state(self) -> Storage | None:
        return self.allocate(self.random_state_bytes) if self.random_state_bytes else None

    def run_again(self, region: Region) -> None:
        """Run a checkpointed region once more; this time its operations keep what they keep."""
        region.is_recomputed = True
        self.replay = [(node, slot) for node in region.operations for slot in range(len(node.kept))]
        weight_casts, self.weight_casts = self.weight_casts, {}
        start, state_of_now = len(self.events), self._random_state()
        try:
            self.drop(region.run(*region.arguments))
        except EarlyStop:
            self.drop(*self.named)
        self.forget_casts(list(self.weight_casts))
        self.release(state_of_now)
        self.weight_casts, self.replay, self.named = weight_casts, None, []
        self.name_activations(start)

    def name_activations(self, start: int = 0) -> None:
        """What was born since event ``start`` and is alive now is an activation; casts of weights are not."""
        for storage, sign in self.events[start:]:
            if sign > 0 and storage.holders and storage.part == "temporary" and not storage.is_cast:
                storage.part = "activations"

    def _name(self, value: Value) -> Value:
        if self.replay is not None:
            self.named.append(value)
        return value

    def _begin(
        self, name: str, inputs: Sequence[Value], modes: Sequence[str] = (), scratch_bytes: int = 0,
        sum_scratch_bytes: int = 0, sends_views: bool = False,
    ) -> Operation:  # fmt: skip
        if self.replay is None:
            for value in inputs:
                value.num_uses += 1
        modes = tuple(modes) or (NEW,) * len(inputs)
        return Operation(name, tuple(inputs), modes, scratch_bytes, sum_scratch_bytes, sends_views, self.region)

    def _keep(self, node: Operation, storage: Storage | None) -> None:
        if self.replay is not None:
            first_run, slot = self.replay.pop(0)
            first_run.kept[slot] = self.hold(storage)
        else:
            node.kept.append(None if self.region is not None else self.hold(storage))

    def _stop_if_complete(self) -> None:
        if self.replay is not None and not self.replay:
            raise EarlyStop

    def _end(self, node: Operation, outs: tuple[Value, ...]) -> None:
        node.outs = outs
        if self.replay is None:
            self.operations.append(node)
            if self.region is not None:
                self.region.operations.append(node)
