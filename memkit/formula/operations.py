"""A forward as data: operations in order, each with the tensors that it reads, makes and keeps for its backward.

Nothing is computed and nothing lives here. A tensor can go when nobody will mention it again: after the last operation
that reads it, or after which a name of the program that was bound to it is gone (``holds``), and after the backward of
every operation that ``keeps`` it. ``liveness`` walks the list and says when that is.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import NamedTuple

from memkit.formats.records import tensor_bytes
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
class Tensor:
    """``count`` values. A view has a ``base``, whose bytes it shows; a parameter stands anyway, whatever the step does.

    ``axes`` is the shape in letters.
    """

    axes: str
    count: int
    dtype: str
    name: str = ""
    base: "Tensor | None" = None  # left out: itself
    parameter: Parameter | None = None
    needs_grad: bool = False
    is_renamed: bool = False

    def __post_init__(self):
        self.base = self.base or self

    @property
    def num_bytes(self) -> int:
        """Bytes of its values."""
        return tensor_bytes(self.count, self.dtype)


class Extra(NamedTuple):
    """A tensor that an operation makes beside its output: a mask, statistics."""

    name: str
    axes: str
    dtype: str


@dataclass(slots=True, eq=False)
class Operation:
    """One line of the list.

    ``keeps`` is in the order in which autograd saves; a ledger says that it is kept ``by`` (left out: its kind), and
    its output ``out_by`` (``""``: no line of its own). ``ways`` says for each tensor that is read how its gradient is
    made (left out: ``NEW``). ``scratch_bytes`` are further temporaries of the backward. ``name`` is its output's.
    """

    kind: str
    reads: Sequence[Tensor]
    makes: list[Tensor]
    where: str
    section: str
    unit: int
    region: "Region | None"
    keeps: Sequence[Tensor] = ()
    ways: Sequence = ()
    name: str = ""
    by: str = ""
    out_by: str = ""
    scratch_bytes: int = 0
    flops: int = 0
    needs_grad: bool = False
    is_view: bool = False
    is_cast: bool = False  # of a parameter
    is_remembered: bool = False  # by autocast's cache
    # a policy saves what it makes, from the first run of its region to the second
    is_saved: bool = False
    holds: list[Tensor] = field(default_factory=list)
    last_uses: list[Tensor] = field(default_factory=list)  # what nobody mentions after it

    def __post_init__(self):
        self.by, self.ways = self.by or self.kind, self.ways or (NEW,) * len(self.reads)


@dataclass(eq=False)
class Region:
    """A checkpointed part of the list: its operations keep nothing, and the backward runs them again.

    ``entry`` is the line before it, which keeps its arguments. ``keepers`` are those of its operations that keep
    something in the second run; with ``stops_early`` that run ends when the last of them has what it keeps.
    """

    stops_early: bool = True
    saves: Callable[[str], bool] | None = None
    operations: list[Operation] = field(default_factory=list)
    keepers: list[Operation] = field(default_factory=list)
    entry: Operation | None = None

    def restore(self, walk, op: Operation) -> None:
        """Before the backward of ``op``, one of its keepers: the first to come has the whole region run again."""
        walk.run_again(self)

    def leave(self, walk, op: Operation) -> None:
        """After that backward: with its last keeper a region goes, and what it holds."""
        if op is self.keepers[0]:
            walk.drop(*walk.saved.pop(self, ()), *walk.kept.pop(self.entry, ()))


def scope(write: Callable) -> Callable:
    """For a method that writes what a function of the program does: its arguments stay bound until it returns."""

    @wraps(write)
    def run(self, *arguments, **more):
        outer, self.graph.bound = self.graph.bound, [x for x in arguments if isinstance(x, Tensor)]
        out = write(self, *arguments, **more)
        self.graph.hold(*self.graph.bound)
        self.graph.bound = outer
        return out

    return run


class Graph:
    """The list, and the verbs with which a model writes it.

    ``sizes``: the number behind every axis. ``random_state_bytes``: what a checkpoint keeps of the random number
    generator on the device. ``where`` and ``section`` say which part of the model writes, ``unit`` which of its units.
    """

    def __init__(self, sizes: Mapping[str, int], random_state_bytes: int = 0):
        self.sizes, self.random_state_bytes = sizes, random_state_bytes
        self.operations: list[Operation] = []
        # what the program holds until the forward returns, and for whom
        self.named: dict[Tensor, str] = {}
        self.bound: list[Tensor] = []  # what names hold of the function that writes
        self.casts: dict[tuple, Tensor] = {}
        self.region: Region | None = None
        self.where = self.section = ""
        self.unit = 0

    def count(self, axes: str) -> int:
        """Values in a tensor of these axes."""
        return math.prod(self.sizes[axis] for axis in axes.split())

    # Verbs

    def op(
        self,
        kind: str,
        reads: Sequence[Tensor],
        axes: str,
        dtype: str = "",
        *,
        name: str = "",
        keeps: Sequence[Tensor] = (),
        out_by: str | None = None,
        extra: Sequence[Extra] = (),
        **more,
    ) -> Tensor:
        """Write one operation; returns its output, a tensor of these axes called ``name``.

        It keeps those of ``keeps``; its output too, unless ``out_by`` is None; and the tensors of ``extra``,
        which it makes beside the output. ``more`` are its other fields.
        """
        needs_grad = any(x.needs_grad for x in reads)
        out = Tensor(axes, self.count(axes), dtype or reads[0].dtype, name, needs_grad=needs_grad)
        makes = [out, *[Tensor(x.axes, self.count(x.axes), x.dtype, x.name) for x in extra]]
        if not needs_grad:
            keeps = ()
        else:
            if kind in FACTORS and len(reads) > 1:
                # each with the other; an addmm's bias is no factor
                pairs = zip(reads, reads[1::-1], strict=False)
                keeps = [x for x, other in pairs if x in keeps and other.needs_grad]
            keeps = [*keeps, *makes[1:], *makes[: out_by is not None]]
        if self.region is not None and self.region.saves is not None:
            more["is_saved"] = self.region.saves(kind)
        more |= {"name": name, "out_by": out_by or "", "needs_grad": needs_grad}
        self._write(kind, reads, makes, keeps, **more)
        return out

    def view(
        self, kind: str, x: Tensor, axes: Iterable[str] = (), ways: Sequence = (SAME,)
    ) -> Tensor | list[Tensor]:
        """Another shape of the same bytes; with ``axes`` a list of views of parts of them."""
        parts = [(part, self.count(part)) for part in axes] or [(x.axes, x.count)]
        views = [
            Tensor(part, count, x.dtype, "", x.base, needs_grad=x.needs_grad)
            for part, count in parts
        ]
        self._write(kind, [x], views, ways=ways, needs_grad=x.needs_grad, is_view=True)
        return views if axes else views[0]

    def data(self, axes: str, dtype: str, name: str = "", kind: str = "empty") -> Tensor:
        """A tensor that nobody trains: a batch, a table."""
        return self._write(kind, (), [Tensor(axes, self.count(axes), dtype, name)]).makes[0]

    def scratch(self, num_bytes: int) -> Tensor:
        """Bytes that the operation just written takes for itself once its output is there."""
        kind = self.operations[-1].kind
        return self._write(kind, (), [Tensor("", num_bytes, "uint8", "scratch")]).makes[0]

    def cast(self, x: Tensor, dtype: str, name: str = "") -> Tensor:
        """``x`` in another dtype; ``x`` itself where it has that dtype already.

        Autocast's cache remembers the cast of a float32 parameter that is trained (``cached_cast``, C++), until
        autocast is left or a checkpointed region ends.
        """
        key = x, self.region
        if x.dtype == dtype or key in self.casts:
            return self.casts.get(key, x)
        name = name or f"{x.base.name}, cast to {dtype}"
        is_cast = x.parameter is not None
        is_remembered = is_cast and x.needs_grad and x.dtype == "float32"
        how = {"is_cast": is_cast, "is_remembered": is_remembered}
        cast = self.op("_to_copy", [x], x.axes, dtype, name=name, **how)
        if is_remembered:
            self.casts[key] = cast
        return cast

    def rename(self, x: Tensor, name: str) -> Tensor:
        """``x`` under the name that its first reader has for it."""
        if not x.base.is_renamed:
            x.base.name, x.base.is_renamed = name, True
        return x

    def hold(self, *tensors: Tensor) -> None:
        """Names stay bound to these tensors until the operation just written has run, and are bound anew then."""
        self.operations[-1].holds += tensors

    def bind(self, *tensors: Tensor) -> None:
        """Names of the function that writes are bound to these until it returns; see ``scope``."""
        self.bound += tensors

    def checkpoint(self, run: Callable, *arguments: Tensor, region: Region | None = None) -> Tensor:
        """What ``run(*arguments)`` writes is run again in the backward; until then ``arguments`` alone are kept."""
        size = self.random_state_bytes
        states = [Tensor(str(size), size, "uint8", "random number state")] if size else []
        entry = self._write("checkpoint", arguments, states)
        self.region = region = region or Region()
        region.entry = entry
        out = run(*arguments)
        self.hold(*arguments, *states)
        self.region = None
        if region.keepers:  # else nothing in it is trained
            entry.keeps = (*arguments, *states)
        return out

    def _write(self, kind, reads, makes, keeps=(), **more) -> Operation:
        place = self.where, self.section, self.unit, self.region
        op = Operation(kind, reads, makes, *place, keeps, **more)
        self.operations.append(op)
        if self.region is not None:
            self.region.operations.append(op)
            if keeps:
                self.region.keepers.append(op)
        return op

    def find_last_uses(self) -> None:
        """Fill ``last_uses`` of each operation."""
        seen = set(self.named)
        for op in reversed(self.operations):
            op.last_uses = []
            for x in (*op.reads, *op.holds, *op.makes):
                if x.base not in seen and x.base.parameter is None:
                    seen.add(x.base)
                    op.last_uses.append(x.base)
