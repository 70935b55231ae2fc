"""More optimizers: Adafactor, Lion, Muon, and those of two libraries, which keep states in few bits or page them.

Each is a record with functions that play what its step makes for a moment, as the kit's are, and is passed as one:
``OptimizerConfig(record=OPTIMIZERS["Lion"])``. The kit's own table stays as it is.

Source: ``_init_group`` in torch.optim's Adafactor and Muon (2.13); ``Optimizer2State`` of bitsandbytes 0.50; torchao
0.18's ``optim/low_bit``.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from memkit import recipes as kit
from memkit.formula.kernels import sum_buffers
from memkit.formula.liveness import Allocation
from memkit.formula.parameters import Parameter
from memkit.formula.run import Temporaries
from memkit.recipes import (
    FIRST,
    IN_ONE_KERNEL,
    MOMENTUM,
    SECOND,
    STEP,
    Optimizer,
    State,
    on_lists,
)

MIN_8BIT_VALUES = 4096
"""bitsandbytes and torchao leave the states of smaller tensors as they are (``min_8bit_size``)."""

MIN_PAGED_VALUES = 100_000
"""bitsandbytes' paged optimizers leave the states of smaller tensors in the card's own memory."""


@dataclass(frozen=True, kw_only=True)
class Factored(State):
    """A state of one number for each row or column of a matrix, or of a vector's own shape for vectors alone."""

    along: str

    def tensors_of(self, shape, moment_dtype):
        rows, columns = (*shape[:-1], 1), (*shape[:-2], 1, *shape[-1:])
        kept = {"rows": rows, "columns": columns} if len(shape) > 1 else {"vector": shape}
        if self.along not in kept:
            return ()
        return ((self.role, kept[self.along], self.dtype or moment_dtype),)


@dataclass(frozen=True, kw_only=True)
class Paged(State):
    """A state in unified memory, which the driver moves between host and card; of small tensors it is the card's."""

    is_paged: bool = True

    def is_in_host(self, role, count, implementation):
        return count >= MIN_PAGED_VALUES


@dataclass(frozen=True, kw_only=True)
class Quantized(State):
    """A moment in few bits: codes, one float32 scale a block, a map from codes to values.

    Each tensor has a map of its own of ``map_values``, or all share one (``shares_map``), and then a tensor's last
    block may be short; else one with a short block is left as wide as it is. ``block_size`` values share a scale.
    """

    coded: str = "uint8"
    bits: int = 8
    scale: str = "scale"
    map_values: int = 0
    shares_map: bool = False
    block_size: int = 256
    is_paged: bool = False

    def takes(self, count: int) -> bool:
        """Whether the moment of a tensor of so many values is quantized."""
        return count >= MIN_8BIT_VALUES and (self.shares_map or count % self.block_size == 0)

    def tensors_of(self, shape, moment_dtype):
        count = math.prod(shape)
        if not self.takes(count):
            return super().tensors_of(shape, moment_dtype)
        codes = (self.role, shape if self.bits == 8 else (count * self.bits // 8,), self.coded)
        scales = (f"{self.role} {self.scale}", (-(-count // self.block_size),), "float32")
        has_own_map = self.map_values and not self.shares_map
        maps = ((f"{self.role} map", (self.map_values,), "float32"),) if has_own_map else ()
        return (codes, scales, *maps)

    def is_in_host(self, role, count, implementation):
        """The codes of large tensors, where they are paged; scales are never."""
        return self.is_paged and role == self.role and count >= MIN_PAGED_VALUES


def in_few_bits(*states: State, **how) -> tuple[State, ...]:
    """The same moments, quantized."""
    return tuple(Quantized(role=state.role, dtype=state.dtype, **how) for state in states)


@dataclass(frozen=True, kw_only=True)
class SharesMaps(Optimizer):
    """bitsandbytes' 8-bit optimizers: one map from codes to values for each moment, for all tensors together."""

    def shared_by(self, counts):
        counts = tuple(counts)
        return tuple(
            (f"{state.role} map", (state.map_values,), "float32")
            for state in self.states
            if any(map(state.takes, counts))
        )


@dataclass(frozen=True, kw_only=True)
class Muon(Optimizer):
    """Takes the matrices of the blocks and leaves the rest to another optimizer."""

    rest: Optimizer

    def states_of(self, shape, kind):
        is_hidden_matrix = len(shape) == 2 and kind not in ("embedding", "head")
        return self if is_hidden_matrix else self.rest


def is_paged(record: Optimizer) -> bool:
    """Whether the driver moves its large states between host and card."""
    return any(getattr(state, "is_paged", False) for state in record.states)


def is_quantized(record: Optimizer) -> bool:
    """Whether it keeps its moments in few bits."""
    return any(isinstance(state, Quantized) for state in record.states)


def of_library(name: str, made_by: str, *states: State, kind: type = Optimizer) -> Optimizer:
    """An optimizer that a library steps in one kernel, whatever implementation is named."""
    how = {"temporaries": IN_ONE_KERNEL, "has_argument": False}
    return kind(name=name, made_by=made_by, states=states, **how)


WIDE = tuple(replace(state, dtype="float32") for state in (FIRST, SECOND))
PAGED = tuple(Paged(role=state.role, dtype="float32") for state in (FIRST, SECOND))
ON_HOST_STEP = replace(STEP, on_host="always")
ABSMAX = {"scale": "absmax", "map_values": 256, "shares_map": True}
EIGHT_BITS = in_few_bits(FIRST, SECOND, map_values=256)
FOUR_BITS = in_few_bits(FIRST, SECOND, bits=4, map_values=16, block_size=128)
FP8 = in_few_bits(FIRST, SECOND, coded="float8_e4m3fn")
IN_PAGES = in_few_bits(*WIDE, is_paged=True, **ABSMAX)
FACTORED = {"variance": "vector", "row_var": "rows", "col_var": "columns"}


def reduced(new: Temporaries, shape: tuple[int, ...], axis: int | None = None) -> Allocation:
    """A norm or a mean along one axis, or of the whole; its kernel's scratch comes and goes beside it."""
    walks = [(size, math.prod(shape[i + 1 :])) for i, size in enumerate(shape)]
    along = walks if axis is None else [walks.pop(axis)]
    kept = [] if axis is None else walks
    out = new.one(math.prod(size for size, _ in kept))
    for sizes in sum_buffers(along, kept) if new.is_cuda else ():
        new.drop(*[new.record.new(num_bytes, new.op, new.where) for num_bytes in sizes])
    return out


def one_at_a_time(new: Temporaries, parameters: Sequence[Parameter]) -> None:
    """One like a parameter, freed before the next parameter's."""
    for parameter in parameters:
        new.drop(new.one(parameter.count))


def adafactor_one_by_one(new: Temporaries, parameters: Sequence[Parameter]) -> None:
    """One tensor at a time; what is made of a matrix stays until the next matrix has its own."""
    names: dict[str, Allocation | None]
    names = dict.fromkeys(("row mean", "column mean", "square", "update"))

    def bind(name: str, block: Allocation) -> None:
        before, names[name] = names[name], block
        new.drop(before)

    for p in parameters:
        new.drop(reduced(new, p.shape))
        if len(p.shape) > 1:
            bind("row mean", reduced(new, p.shape, -1))
            bind("column mean", reduced(new, p.shape, -2))
        else:
            bind("square", new.one(p.count))
        estimate = new.one(p.count)
        if len(p.shape) > 1:
            new.drop(reduced(new, p.shape[:-1], -1))
        bind("update", estimate)
        new.drop(reduced(new, p.shape))
    new.drop(*names.values())


ADDED = (
    Optimizer(
        name="Adafactor",
        made_by="torch.optim:Adafactor",
        states=(STEP, *(Factored(role=role, along=along) for role, along in FACTORED.items())),
        temporaries={"foreach": None, "for-loop": adafactor_one_by_one},
    ),
    Optimizer(
        name="Lion",
        states=(FIRST,),
        made_by="stepscope.program.job:Lion",
        temporaries={"foreach": on_lists, "for-loop": one_at_a_time},
    ),
    Muon(
        name="Muon",
        states=(MOMENTUM,),
        made_by="torch.optim:Muon",
        has_argument=False,
        temporaries={"foreach": None, "for-loop": None},
        rest=kit.OPTIMIZERS["AdamW"],
    ),
    of_library(
        "8-bit AdamW",
        "bitsandbytes.optim:AdamW8bit",
        *in_few_bits(*WIDE, **ABSMAX),
        kind=SharesMaps,
    ),
    of_library("torchao 8-bit AdamW", "torchao.optim:AdamW8bit", ON_HOST_STEP, *EIGHT_BITS),
    of_library("torchao 4-bit AdamW", "torchao.optim:AdamW4bit", ON_HOST_STEP, *FOUR_BITS),
    of_library("torchao FP8 AdamW", "torchao.optim:AdamWFp8", ON_HOST_STEP, *FP8),
    of_library("paged AdamW", "bitsandbytes.optim:PagedAdamW32bit", *PAGED),
    of_library(
        "paged 8-bit AdamW", "bitsandbytes.optim:PagedAdamW8bit", *IN_PAGES, kind=SharesMaps
    ),
)
OPTIMIZERS: Mapping[str, Optimizer] = kit.OPTIMIZERS | {each.name: each for each in ADDED}
"""The kit's and these, by name. 8-bit and paged ones are bitsandbytes', torchao's say so."""
