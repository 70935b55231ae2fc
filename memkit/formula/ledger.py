"""A ledger of kept tensors: one named line for each tensor that the forward leaves for the backward.

No formula here, only the record that formulas and real runs share, and its printing. Axes are written in
letters: b micro-batch, s sequence, h hidden size, a heads, k key/value heads, d head size, f intermediate
size, v vocabulary, r rank of an adapter; ``s↑32`` is s rounded up to a multiple of 32. A line counts one storage:
two operations that keep the same storage share one line.
"""

import math
from dataclasses import dataclass, replace

from memkit.formats.dtypes import tensor_bytes
from memkit.formula.parameters import model_axes
from memkit.setup.training import DEVICES, TrainingSetup
from memkit.units import aligned_table, as_one_of, as_whole_number, format_bytes, round_up


def axis_sizes(setup: TrainingSetup) -> dict[str, int]:
    """The number behind every axis that a ledger line may have."""
    return model_axes(setup.model) | {
        "b": setup.micro_batch_size, "s": setup.seq_len, "s↑32": round_up(setup.seq_len, 32),
        "d↑8": round_up(setup.model.head_dim, 8), "1": 1, "2": 2, "5056": 5056,
        "r": setup.adapter.rank if setup.adapter else 0,
    }  # fmt: skip


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

    def __post_init__(self):
        as_whole_number("count", self.count)
        for size in self.shape:
            as_whole_number("shape", size)

    @property
    def num_bytes(self) -> int:
        """Bytes of all ``count`` tensors, as asked for."""
        return self.count * tensor_bytes(math.prod(self.shape), self.dtype)

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all ``count`` tensors, each rounded up to the block size of CUDA's allocator."""
        return self.count * round_up(tensor_bytes(math.prod(self.shape), self.dtype))


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Lines and their sum. ``sbh`` is s·b·h, the values in one hidden state: the field's unit of account."""

    title: str
    lines: tuple[Kept, ...]
    sbh: int
    device: str = "cuda"

    def __post_init__(self):
        as_whole_number("sbh", self.sbh, 1)
        as_one_of("device", self.device, DEVICES)

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

    def table(self) -> str:
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
        return f"{self.title}, {self.device} rules: {format_bytes(self.num_bytes)}\n{self.table()}"
