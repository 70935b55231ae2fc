"""Activations: what a forward leaves for the backward, tensor by tensor, read off the list of operations.

A formula for activation memory is a sum over tensors, and a ledger writes the sum out: every coefficient is made of
named lines; a line counts one storage, so that two operations that keep the same storage share one line. Axes are
written in letters: b micro-batch, s sequence, h hidden size, a heads, k key/value heads, d head size, f intermediate
size, v vocabulary; ``s↑32`` is s rounded up to a multiple of 32. Which tensors autograd keeps depends on the device.
CUDA's autocast runs softmax in float32, its dropout keeps one byte a value, its RMSNorm is one kernel; the CPU does
otherwise.

Autocast costs memory in three ways. The residual stream stays float32. Every linear layer casts its input for
itself, so query, key and value keep three copies of one tensor. And the casts of the weights stay until the
backward: they are no activations, but what is temporary at the end of ``estimate_memory``'s forward.

Not counted: numbers that Python hands to an operation (8 B of host memory each), such as the 1/√d of
attention.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from memkit.formats.records import tensor_bytes
from memkit.formula.model import TransformerOperations, model_class_of, model_of
from memkit.formula.operations import Graph, Operation, Tensor
from memkit.setup import TrainingSetup
from memkit.units import Printable, Text, aligned_table, format_bytes, on_page, round_up


@dataclass(frozen=True, kw_only=True)
class Kept:
    """One line: a tensor that stays, ``count`` times over.

    ``axes`` are letters with spaces between (empty: one number), ``op`` names the operations whose backward
    needs it, ``section`` is the part of the model.
    """

    name: str
    op: str
    axes: str
    shape: tuple[int, ...]
    dtype: str
    section: str = ""
    count: int = 1

    @property
    def num_bytes(self) -> int:
        """Bytes of all ``count`` tensors, as asked for."""
        return self.count * tensor_bytes(math.prod(self.shape), self.dtype)


@dataclass(frozen=True, kw_only=True)
class Ledger(Printable):
    """Lines and their sum. ``sbh`` is s·b·h, the values in one hidden state: the field's unit of account."""

    title: str
    lines: tuple[Kept, ...]
    sbh: int
    device: str = "cuda"

    @property
    def num_bytes(self) -> int:
        """Bytes asked for, no rounding: what the closed formulas give."""
        return sum(line.num_bytes for line in self.lines)

    @property
    def held_bytes(self) -> int:
        """Bytes that the device's allocator holds for the lines: on CUDA each tensor in blocks of 512 B."""
        if self.device == "cpu":
            return self.num_bytes
        return sum(line.count * round_up(line.num_bytes // line.count) for line in self.lines)

    @property
    def per_sbh(self) -> float:
        """Bytes per token and hidden unit: the 34 of the paper's 34sbh."""
        return self.num_bytes / self.sbh

    def table(self) -> Text:
        """Lines as aligned text: name, operation, shape in letters, dtype, bytes, multiple of sbh."""
        rows = [["kept tensor", "kept by", "shape", "dtype", "bytes", "sbh"]]
        for line in self.lines:
            times = f"{line.count} × " if line.count != 1 else ""
            shape = times + (line.axes.replace(" ", "·") or "1")
            per_sbh = f"{line.num_bytes / self.sbh:.3f}"
            rows.append([line.name, line.op, shape, line.dtype, f"{line.num_bytes:,}", per_sbh])
        rows.append(["total", "", "", "", f"{self.num_bytes:,}", f"{self.per_sbh:.3f}"])
        return aligned_table(rows)

    def __str__(self) -> str:
        title = f"{self.title}, {self.device} rules: {format_bytes(self.num_bytes)}"
        return on_page(title, self.table(), between="\n")


@dataclass
class KeptStorage:
    """A storage that is kept: by whom, in which section of the model and in which unit first."""

    tensor: Tensor
    name: str
    section: str = ""
    unit: int = 0
    by: list[str] = field(default_factory=list)

    def line(self, graph: Graph) -> Kept:
        """The same as a line of a ledger."""
        x, by = self.tensor, ", ".join(self.by)
        what = {"axes": x.axes, "shape": tuple(graph.sizes[axis] for axis in x.axes.split())}
        return Kept(name=self.name, op=by, dtype=x.dtype, section=self.section, **what)


def kept_by(op: Operation, named: dict[Tensor, str]) -> Iterator[tuple[Tensor, str, str]]:
    """What ``op`` holds until its backward, who does so, and a section if it is not the operation's own."""
    if op.is_saved:
        yield from ((x, "policy", "policy") for x in op.makes)
    elif op.region is None:
        yield from ((x, named[x], "") for x in op.makes if x in named)
        for x in op.keeps:
            is_state = op.kind == "checkpoint" and x in op.makes
            by = op.out_by if op.makes and x is op.makes[0] and not is_state else op.by
            yield x.base, by, "checkpoint" if is_state else ""


def entries_of(model: TransformerOperations) -> dict[Tensor, KeptStorage]:
    """Every storage that is kept, in the order in which it is first kept; casts of parameters are in no ledger."""
    entries: dict[Tensor, KeptStorage] = {}
    casts = {x for op in model.graph.operations if op.is_cast for x in op.makes}
    for op in model.graph.operations:
        for x, by, section in kept_by(op, model.graph.named):
            if x.parameter is not None or x in casts or not by:
                continue
            entry = entries.get(x)
            if entry is None:
                # before a reader has renamed it
                name = op.name if op.is_saved and x is op.makes[0] else x.name
                entries[x] = KeptStorage(x, name, section or op.section, op.unit, [by])
            elif not section and entry.section == op.section and by not in entry.by:
                entry.by.append(by)
    return entries


def block_ledger(setup: TrainingSetup) -> Ledger:
    """What one transformer block keeps from forward to backward, its recomputation taken into account.

    >>> from memkit.models import GPT2_LARGE
    >>> from memkit.recipes import PURE_BF16
    >>> setup = TrainingSetup(
    ...     model=GPT2_LARGE, precision=PURE_BF16, micro_batch_size=8, attention="stored", dropout=0.1
    ... )
    >>> round(block_ledger(setup).per_sbh)  # 34 + 5as/h of Korthikanti et al. 2022
    114
    """
    # the last of the first blocks, since what enters the first may need no gradient
    first = model_class_of(setup).num_first
    one = replace(setup, model=replace(setup.model.one_block, num_layers=2 * first - 1))
    model = model_of(one, is_whole=True)
    units = range(1, len(model.units) + 1)
    return ledger_of(model, "one block", units[first - 1 :][:1] or units)


def activation_bytes(setup: TrainingSetup) -> int:
    """Bytes of activations when the backward starts, L · block + outside, as the device rounds them.

    They are all that one micro-batch's forward has left, and the gradient of the loss, a 1.

    >>> from memkit.models import LLAMA_3_8B
    >>> from memkit.recipes import PURE_BF16
    >>> activation_bytes(TrainingSetup(model=LLAMA_3_8B, precision=PURE_BF16, seq_len=8192)) // 2**20  # MiB
    44154
    """
    model = model_of(setup)
    end = len(model.units) + 1
    ones = KeptStorage(model.loss, "gradient of the loss, 1", "loss", end, ["backward()"])
    return ledger_of(model, "activations", range(end + 1), [ones]).held_bytes


def ledger_of(
    model: TransformerOperations, title: str, units: Iterable[int], more: Iterable[KeptStorage] = ()
) -> Ledger:
    """Lines of these units, equal ones counted. What a strategy has moved to the host is left out."""
    setup, lines = model.setup, Counter()
    entries, is_on_host = [*entries_of(model).values(), *more], setup.recomputation.scope == "host"
    for unit in units:
        is_moved = is_on_host and 0 < unit <= len(model.units)
        for entry in entries:
            if entry.unit == unit and not (is_moved or (is_on_host and entry.section == "shared")):
                lines[entry.line(model.graph)] += model.times[unit]
    counted = tuple(replace(line, count=count) for line, count in lines.items())
    sbh = setup.tokens_per_micro_batch * setup.model.hidden_size
    return Ledger(title=title, lines=counted, sbh=sbh, device=setup.device)
