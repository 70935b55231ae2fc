"""More optimizers: Adafactor, Lion, Muon, and those of two libraries, which keep states in few bits or page them."""

import math
from dataclasses import dataclass, replace

from memkit.setup.optimizers import FIRST, IN_ONE_KERNEL, MOMENTUM, OPTIMIZERS, SECOND, STEP, TRACE_IT, Optimizer, State

MIN_8BIT_VALUES = 4096
"""bitsandbytes and torchao leave the states of smaller tensors as they are (``min_8bit_size``)."""

MIN_PAGED_VALUES = 100_000
"""bitsandbytes' paged optimizers leave the states of smaller tensors in the card's own memory."""


@dataclass(frozen=True, kw_only=True)
class Factored(State):
    """A state of one number for each row or column of a matrix, or of a vector's own shape for vectors alone."""

    along: str

    def tensors_of(self, shape, moment_dtype):
        is_matrix = len(shape) > 1
        if (self.along == "vector") is is_matrix:
            return ()
        kept = {"vector": shape, "rows": (*shape[:-1], 1), "columns": (*shape[:-2], 1, *shape[-1:])}[self.along]
        return ((self.role, kept, self.dtype or moment_dtype),)


@dataclass(frozen=True, kw_only=True)
class Quantized(State):
    """A moment in few bits: codes, one float32 scale a block, a map from codes to values for each tensor."""

    coded: str = "uint8"
    bits: int = 8
    scale: str = "scale"
    map_values: int = 0
    takes_short_blocks: bool = False
    block_size: int = 256
    is_paged: bool = False

    def tensors_of(self, shape, moment_dtype):
        count = math.prod(shape)
        if count < MIN_8BIT_VALUES or (count % self.block_size and not self.takes_short_blocks):
            return super().tensors_of(shape, moment_dtype)
        codes = (self.role, shape if self.bits == 8 else (count * self.bits // 8,), self.coded)
        scales = (f"{self.role} {self.scale}", (-(-count // self.block_size),), "float32")
        maps = ((f"{self.role} map", (self.map_values,), "float32"),) if self.map_values else ()
        return (codes, scales, *maps)

    def is_in_host(self, count, implementation):
        return self.is_paged and count >= MIN_PAGED_VALUES


def in_8_bits(*states: State, **how) -> tuple[State, ...]:
    """The same moments, quantized."""
    return tuple(Quantized(role=state.role, dtype=state.dtype, **how) for state in states)


@dataclass(frozen=True, kw_only=True)
class Muon(Optimizer):
    """Takes the matrices of the blocks and leaves the rest to AdamW."""

    rest: str = "AdamW"

    def states_of(self, shape, kind):
        is_hidden_matrix = len(shape) == 2 and kind not in ("embedding", "head")
        return self if is_hidden_matrix else OPTIMIZERS[self.rest]


UNFUSED_ONLY = ("foreach", "for-loop")
TORCHAO = {"temporaries": IN_ONE_KERNEL, "has_argument": False}
WIDE = tuple(replace(state, dtype="float32") for state in (FIRST, SECOND))
ON_HOST_STEP = replace(STEP, on_host="always")

ADDED = (
    Optimizer(name="Adafactor", made_by="torch.optim:Adafactor",
              states=(STEP, Factored(role="variance", along="vector"), Factored(role="row_var", along="rows"),
                      Factored(role="col_var", along="columns")),
              temporaries={"foreach": TRACE_IT, "for-loop": "factored, one by one"}),
    Optimizer(name="Lion", states=(FIRST,), made_by="stepscope.program.optimizers:Lion",
              temporaries={"foreach": "all at once", "for-loop": "one at a time"}),
    Muon(name="Muon", states=(MOMENTUM,), made_by="torch.optim:Muon", has_argument=False,
         temporaries=dict.fromkeys(UNFUSED_ONLY, TRACE_IT)),
    Optimizer(name="8-bit AdamW", made_by="bitsandbytes.optim:AdamW8bit", **TORCHAO,
              states=in_8_bits(*WIDE, scale="absmax", takes_short_blocks=True)),
    Optimizer(name="torchao 8-bit AdamW", made_by="torchao.optim:AdamW8bit", **TORCHAO,
              states=(ON_HOST_STEP, *in_8_bits(FIRST, SECOND, map_values=256))),
    Optimizer(name="torchao 4-bit AdamW", made_by="torchao.optim:AdamW4bit", **TORCHAO,
              states=(ON_HOST_STEP, *in_8_bits(FIRST, SECOND, bits=4, map_values=16, block_size=128))),
    Optimizer(name="torchao FP8 AdamW", made_by="torchao.optim:AdamWFp8", **TORCHAO,
              states=(ON_HOST_STEP, *in_8_bits(FIRST, SECOND, coded="float8_e4m3fn"))),
)
OPTIMIZERS.update({optimizer.name: optimizer for optimizer in ADDED})
