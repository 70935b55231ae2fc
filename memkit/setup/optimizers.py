"""The optimizers, one record each: what it keeps, what its step allocates, how it is made and what it gives up.

Whoever needs to know an optimizer reads its record. The formula takes the states and the rule of the temporaries from
it, and the program takes the class. The code of a plan has the same class as a line. The planner learns in which ways
to try the optimizer, or why not to, and what it gives up, and the state explorer whether to show it. A new optimizer is
a new record in ``_ALL``. If none of ``TEMPORARIES`` describes its step, the record says ``TRACE_IT``.

Source: ``_init_group`` in torch.optim's SGD, Adam, Adafactor and Muon (2.13); ``Optimizer2State`` of bitsandbytes 0.50;
torchao 0.18's ``optim/low_bit``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from memkit.units import as_one_of

IMPLEMENTATIONS = ("foreach", "for-loop", "fused")
UNFUSED_ONLY = ("foreach", "for-loop")

MIN_OFFLOADED = 4096
"""``CPUOffloadOptimizer`` keeps smaller tensors on the card (``minimal_size``)."""


class Place(StrEnum):
    """Where an optimizer steps; on the host, for tensors of ``MIN_OFFLOADED`` values and more.

    Source: torchao's ``CPUOffloadOptimizer``; the last is with ``offload_gradients=True``.
    """

    AFTER_BACKWARD = "after backward"  # once all gradients are there
    IN_BACKWARD = "in backward"  # on each gradient as soon as it is there, which frees it
    ON_HOST = "on the host"
    ON_HOST_WITH_GRADIENTS = "on the host, gradients too"  # each gradient is freed once it is copied

    __repr__ = str.__repr__  # as a reader writes it


SHAPES = ("parameter", "scalar", "rows", "columns", "vector")
"""A state has its parameter's shape or is one number; ``rows`` and ``columns``: one number for each row or column of a
matrix, none for a vector; ``vector``: the parameter's shape, for vectors alone."""

HOSTS = ("never", "always", "unless fused", "if paged")
"""When a state stays in the host's memory; paged ones are unified memory, which the driver moves."""

TRACE_IT = "trace it"
TEMPORARIES = (
    "none", "all at once", "one at a time", "root and denominator", "factored, one by one", TRACE_IT,
)
"""What a step allocates and frees again: nothing; a tensor like every parameter, all at once or one at a time; AdamW's
two of one parameter at a time; Adafactor's default. ``memkit.formula.optimizer`` plays each; ``TRACE_IT`` is refused
there, and a trace tells the bytes."""

GIVEN_UP = ("second moments by row and column", "states in 8 bits", "states in 4 bits")
"""What an optimizer may give up besides time, the dearest last. The planner compares plans by it."""

MIN_8BIT_VALUES = 4096
"""bitsandbytes and torchao leave the states of smaller tensors as they are (``min_8bit_size``)."""

MIN_PAGED_VALUES = 100_000
"""bitsandbytes' paged optimizers leave the states of smaller tensors in the card's own memory."""


@dataclass(frozen=True, kw_only=True)
class Quantized:
    """How a library keeps a moment in few bits: codes, one float32 scale a block, maps from codes to values.

    ``map_values``: how many values each moment's map has. bitsandbytes has one map for all tensors, and the
    last block of a tensor may be short; torchao has one for each tensor, and leaves a tensor with a short
    block in the parameter's dtype. ``block_size`` values share a scale.
    """

    dtype: str
    bits: int = 8
    scale: str = "scale"
    map_values: int = 0
    shares_map: bool = False
    block_size: int = 256

    def takes(self, count: int) -> bool:
        """Whether the moments of a tensor of ``count`` values are quantized."""
        return count >= MIN_8BIT_VALUES and (self.shares_map or count % self.block_size == 0)


@dataclass(frozen=True, kw_only=True)
class State:
    """One tensor that an optimizer keeps for a parameter, by torch's key in ``optimizer.state``.

    ``dtype`` left empty is that of the recipe's moments. ``is_moment``: quantized where the optimizer quantizes.
    """

    role: str
    shape: str = "parameter"
    dtype: str = ""
    is_moment: bool = True
    on_host: str = "never"

    def __post_init__(self):
        as_one_of("shape", self.shape, SHAPES)
        as_one_of("on_host", self.on_host, HOSTS)

    def shape_of(self, parameter: tuple[int, ...]) -> tuple[int, ...] | None:
        """The state's shape for a parameter of this shape; ``None`` where that parameter has no such state."""
        is_matrix = len(parameter) > 1
        match self.shape:
            case "scalar":
                return ()
            case "rows":
                return (*parameter[:-1], 1) if is_matrix else None
            case "columns":
                return (*parameter[:-2], 1, parameter[-1]) if is_matrix else None
            case "vector":
                return None if is_matrix else parameter
        return parameter


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """One optimizer. ``made_by`` is ``module:class`` and ``arguments`` what it takes beside the learning rate.

    ``temporaries`` is by implementation, one of ``TEMPORARIES``. ``implementations`` are those it offers;
    ``has_argument`` says whether the class takes ``foreach`` and ``fused``. With a ``rest`` it steps the matrices of
    the blocks, and the optimizer of that name all else. ``gives_up`` is one of ``GIVEN_UP`` or empty.
    ``planned`` has a pair of implementation and ``Place`` for each way in which the planner tries it;
    ``not_planned`` says what they do for which the planner does not. ``trainer_name`` is the value of ``optim`` in
    Hugging Face's ``TrainingArguments``.

    Raises: ValueError: a word that is not one of those above, or neither or both of ``planned`` and ``not_planned``.
    """

    name: str
    states: tuple[State, ...]
    temporaries: Mapping[str, str]
    made_by: str
    arguments: Mapping = field(default_factory=dict)
    implementations: tuple[str, ...] = IMPLEMENTATIONS
    has_argument: bool = True
    quantized: Quantized | None = None
    rest: str = ""
    steps_in_backward: bool = True
    gives_up: str = ""
    planned: tuple[tuple[str, Place], ...] = ()
    not_planned: str = ""
    trainer_name: str = ""

    def __post_init__(self):
        for implementation in self.implementations:
            as_one_of("temporaries", self.temporaries[implementation], TEMPORARIES)
        as_one_of("gives_up", self.gives_up, ("", *GIVEN_UP))
        if bool(self.planned) == bool(self.not_planned):
            raise ValueError(
                f"optimizer {self.name!r} has planned={self.planned} and not_planned={self.not_planned!r}: give the "
                "planner ways to try it, or the reason why it is not tried"
            )

    @property
    def estimated(self) -> tuple[str, ...]:
        """Its implementations whose step the formula knows."""
        return tuple(each for each in self.implementations if self.temporaries[each] != TRACE_IT)

    @property
    def roles(self) -> tuple[str, ...]:
        """Names of the states that are moments."""
        return tuple(state.role for state in self.states if state.is_moment)

    def keywords(self, implementation: str) -> dict[str, object]:
        """What its class takes beside the learning rate to step in this way."""
        if not self.has_argument:
            return dict(self.arguments)
        way = {"fused": True} if implementation == "fused" else {"foreach": implementation == "foreach"}
        return {**self.arguments, **way}

    @property
    def is_wide_adam(self) -> bool:
        """Whether it keeps Adam's second moment in full, so that a quantized one would be smaller."""
        return "exp_avg_sq" in self.roles and self.quantized is None

    @property
    def is_paged(self) -> bool:
        """Whether the driver moves its large states between host and card."""
        return any(state.on_host == "if paged" for state in self.states)

    @property
    def library(self) -> str:
        """What ``pip install`` is asked for."""
        return self.made_by.partition(":")[0].partition(".")[0]


STEP = State(role="step", shape="scalar", dtype="float32", is_moment=False, on_host="unless fused")
FIRST, SECOND = State(role="exp_avg"), State(role="exp_avg_sq")
MOMENTUM = State(role="momentum_buffer")
ON_LISTS = {"foreach": "all at once", "for-loop": "root and denominator", "fused": "none"}
IN_ONE_KERNEL = dict.fromkeys(IMPLEMENTATIONS, "none")
TRAINS_DIFFERENTLY, AS_LARGE = "train differently", "keep states as large as torchao's 8-bit ones"
FUSED_AFTER, FUSED_INSIDE = ("fused", Place.AFTER_BACKWARD), ("fused", Place.IN_BACKWARD)
ON_HOST = ("foreach", Place.ON_HOST), ("foreach", Place.ON_HOST_WITH_GRADIENTS)

ADAMW = Optimizer(
    name="AdamW", states=(STEP, FIRST, SECOND), temporaries=ON_LISTS, made_by="torch.optim:AdamW",
    planned=(FUSED_AFTER, FUSED_INSIDE, *ON_HOST),
    trainer_name="adamw_torch_fused",
)
IN_BITSANDBYTES = Optimizer(
    name="paged AdamW", temporaries=IN_ONE_KERNEL, made_by="bitsandbytes.optim:PagedAdamW32bit", has_argument=False,
    states=tuple(replace(state, dtype="float32", on_host="if paged") for state in (FIRST, SECOND)),
    planned=(FUSED_AFTER, FUSED_INSIDE), trainer_name="paged_adamw_32bit",
)
IN_TORCHAO = Optimizer(
    name="torchao 8-bit AdamW", temporaries=IN_ONE_KERNEL, made_by="torchao.optim:AdamW8bit", has_argument=False,
    states=(replace(STEP, on_host="always"), FIRST, SECOND), quantized=Quantized(dtype="uint8", map_values=256),
    gives_up="states in 8 bits", planned=(FUSED_AFTER, FUSED_INSIDE, *ON_HOST), trainer_name="adamw_torch_8bit",
)
ABSMAX = Quantized(dtype="uint8", scale="absmax", map_values=256, shares_map=True)

_ALL = (
    Optimizer(name="SGD", states=(), temporaries=IN_ONE_KERNEL, made_by="torch.optim:SGD",
              not_planned=TRAINS_DIFFERENTLY, trainer_name="sgd"),
    Optimizer(name="SGD momentum", states=(MOMENTUM,), temporaries=IN_ONE_KERNEL, made_by="torch.optim:SGD",
              arguments={"momentum": 0.9}, not_planned=TRAINS_DIFFERENTLY),
    ADAMW,
    Optimizer(
        name="Adafactor", made_by="torch.optim:Adafactor", implementations=UNFUSED_ONLY,
        states=(STEP, State(role="variance", shape="vector"), State(role="row_var", shape="rows"),
                State(role="col_var", shape="columns")),
        temporaries={"foreach": TRACE_IT, "for-loop": "factored, one by one"},
        gives_up="second moments by row and column", planned=tuple(("for-loop", place) for place in Place),
    ),
    Optimizer(name="Lion", states=(FIRST,), made_by="memkit.program.optimizers:Lion", implementations=UNFUSED_ONLY,
              temporaries={"foreach": "all at once", "for-loop": "one at a time"}, not_planned=TRAINS_DIFFERENTLY),
    Optimizer(name="Muon", states=(MOMENTUM,), made_by="torch.optim:Muon", implementations=UNFUSED_ONLY, rest="AdamW",
              temporaries=dict.fromkeys(UNFUSED_ONLY, TRACE_IT), has_argument=False,
              not_planned=TRAINS_DIFFERENTLY),
    replace(IN_BITSANDBYTES, name="8-bit AdamW", made_by="bitsandbytes.optim:AdamW8bit", quantized=ABSMAX,
            steps_in_backward=False,
            states=tuple(replace(state, on_host="never") for state in IN_BITSANDBYTES.states),
            gives_up="states in 8 bits", planned=(), not_planned=AS_LARGE, trainer_name="adamw_bnb_8bit"),
    IN_TORCHAO,
    replace(IN_TORCHAO, name="torchao 4-bit AdamW", made_by="torchao.optim:AdamW4bit", gives_up="states in 4 bits",
            quantized=Quantized(dtype="uint8", bits=4, map_values=16, block_size=128),
            trainer_name="adamw_torch_4bit"),
    replace(IN_TORCHAO, name="torchao FP8 AdamW", made_by="torchao.optim:AdamWFp8", planned=(), not_planned=AS_LARGE,
            quantized=Quantized(dtype="float8_e4m3fn"), trainer_name=""),
    IN_BITSANDBYTES,
    replace(IN_BITSANDBYTES, name="paged 8-bit AdamW", made_by="bitsandbytes.optim:PagedAdamW8bit", quantized=ABSMAX,
            steps_in_backward=False,
            gives_up="states in 8 bits", planned=(), not_planned=AS_LARGE,
            trainer_name="paged_adamw_8bit"),
)

OPTIMIZERS = {optimizer.name: optimizer for optimizer in _ALL}
"""torch's, Lion, and those of two libraries: 8-bit and paged ones are bitsandbytes', torchao's say so. Muon takes the
matrices of the blocks and leaves the rest to AdamW."""
