"""Activations: what a forward leaves for the backward, tensor by tensor, read off the paper step.

A formula for activation memory is a sum over tensors, and a ledger writes the sum out: every coefficient is
made of named lines; a line counts one storage, so that two operations that keep the same storage share one line. Axes
are written in letters: b micro-batch, s sequence, h hidden size, a heads, k key/value heads, d head size, f
intermediate size, v vocabulary; ``s↑32`` is s rounded up to a multiple of 32. Which tensors autograd keeps depends on
the device. CUDA's autocast runs softmax in float32, its dropout keeps one byte a value, its RMSNorm is one kernel; the
CPU does otherwise.

Autocast costs memory in three ways. The residual stream stays float32. Every linear layer casts its input for
itself, so query, key and value keep three copies of one tensor. And the casts of the weights stay until the
backward: they are no activations, ``autocast_casts`` gives them apart.

Not counted: numbers that Python hands to an operation (8 B of host memory each), such as the 1/√d of
attention.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from memkit.formats.dtypes import tensor_bytes
from memkit.formula.backward import Backward
from memkit.formula.forward import Forward, Part, forward_of, run_of
from memkit.formula.paper import Block
from memkit.setup.training import TrainingSetup
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

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all ``count`` tensors, each rounded up to the block size of CUDA's allocator."""
        return self.count * round_up(tensor_bytes(math.prod(self.shape), self.dtype))


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
        return sum(line.allocated_bytes for line in self.lines)

    @property
    def per_sbh(self) -> float:
        """Bytes per token and hidden unit: the 34 of the paper's 34sbh."""
        return self.num_bytes / self.sbh

    def section(self, name: str) -> "Ledger":
        """The lines of one section of the model.

        Raises: ValueError: the ledger has no such section.
        """
        sections = dict.fromkeys(line.section for line in self.lines)
        if name not in sections:
            raise ValueError(f"section {name!r} is not one of {', '.join(sections)}")
        lines = tuple(line for line in self.lines if line.section == name)
        return replace(self, title=f"{self.title}: {name}", lines=lines)

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


def block_ledger(setup: TrainingSetup) -> Ledger:
    """What one transformer block keeps from forward to backward, its recomputation taken into account.

    >>> from memkit.setup.models import GPT2_LARGE
    >>> from memkit.setup.recipes import PURE_BF16
    >>> setup = TrainingSetup(
    ...     model=GPT2_LARGE, precision=PURE_BF16, micro_batch_size=8, attention="stored", dropout=0.1
    ... )
    >>> round(block_ledger(setup).per_sbh)  # 34 + 5as/h of Korthikanti et al. 2022
    114
    """
    num_layers = run_of(setup).num_first  # the last of those, since what enters the first may need no gradient
    model = replace(setup.model.one_block, num_layers=2 * num_layers - 1)
    forward = forward_of(replace(setup, model=model), is_whole=True)
    return _ledger(setup, "one block", _of_blocks(forward, forward.units[num_layers - 1 :][:1]))


def blocks_ledger(setup: TrainingSetup) -> Ledger:
    """What all L blocks keep from forward to backward, on the device."""
    title = f"{setup.model.num_layers} blocks, {setup.recomputation.name}"
    return _ledger(setup, title, _of_blocks(forward_of(setup)))


def activation_ledger(setup: TrainingSetup) -> Ledger:
    """All that one micro-batch's forward has left when the backward starts: every block and the outside."""
    forward = forward_of(setup)
    return _ledger(setup, "activations", [*_of_blocks(forward), *_of_outside(forward)])


def activation_bytes(setup: TrainingSetup) -> int:
    """Bytes of activations in memory when the backward starts, L · block + outside, as the device rounds
    them.

    >>> from memkit.setup.models import LLAMA_3_8B
    >>> from memkit.setup.recipes import PURE_BF16
    >>> activation_bytes(TrainingSetup(model=LLAMA_3_8B, precision=PURE_BF16, seq_len=8192)) // 2**20  # MiB
    44154
    """
    return activation_ledger(setup).held_bytes


def autocast_casts(setup: TrainingSetup) -> Ledger:
    """The low-precision copies of parameters that autocast makes: temporary, yet as long-lived as
    activations.

    Listed are the copies alive when the backward starts, one of each linear weight whose forward is not run again. A
    tied head is cast like any other, embeddings are not.
    """
    forward = forward_of(setup)
    casts = [(cast.storage.block, part) for part in forward.parts for cast in part.casts.values()]
    forward.end()
    lines = []
    for block, part in casts:
        if block.is_alive:
            block.section = "head" if part.block is None else "blocks"
            block.kept_by = "linear"
            lines.append((block, part.times))
    return _ledger(setup, "casts by autocast", lines)


def autocast_cast_bytes(setup: TrainingSetup) -> int:
    """Bytes of autocast's weight copies alive when the backward starts, two per weight; no activations."""
    return autocast_casts(setup).held_bytes


def line_of(setup: TrainingSetup, block: Block) -> Kept:
    """An allocation as a line of a ledger."""
    sizes = run_of(setup).forward.axis_sizes(setup)
    return Kept(
        name=block.name, op=block.kept_by, axes=block.axes, dtype=block.dtype, section=block.section,
        shape=tuple(sizes[axis] for axis in block.axes.split()),
    )


def _of_blocks(forward: Forward, units: Iterable[Part] | None = None) -> list[tuple[Block, int]]:
    if forward.setup.recomputation.scope == "host":
        return []
    return [(block, part.times) for part in units or forward.units for block in part.kept]


def _of_outside(forward: Forward) -> list[tuple[Block, int]]:
    forward.end()
    Backward(forward.paper, forward.loss)
    kept = forward.parts[0].kept + forward.parts[-1].kept
    moved = ("shared",) if forward.setup.recomputation.scope == "host" else ()
    return [(block, 1) for block in kept if block.section not in moved]


def _ledger(setup: TrainingSetup, title: str, blocks: Iterable[tuple[Block, int]]) -> Ledger:
    """Lines of allocations, equal ones counted."""
    counts: Counter[Kept] = Counter()
    for block, times in blocks:
        counts[line_of(setup, block)] += times
    sbh = setup.seq_len * setup.micro_batch_size * setup.model.hidden_size
    lines = tuple(replace(line, count=count) for line, count in counts.items())
    return Ledger(title=title, lines=lines, sbh=sbh, device=setup.device)
