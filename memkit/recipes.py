"""In which dtype a training recipe keeps weights, gradients, master copy and optimizer states.

People print 8, 16, 18 and 20 bytes per parameter for "the same" training. They are right about different
recipes. A ``Precision`` says who keeps which copy; an ``OptimizerConfig`` says which states there are.

Whoever needs to know an optimizer reads its record. The formula takes the states and the rule of the temporaries from
it, and the program takes the class. A new optimizer is a record of its own, passed as ``OptimizerConfig(record=...)``,
with a function that plays the temporaries of its step, or None: a trace tells them then.

Source: ``_init_group`` in torch.optim's SGD and Adam (2.13).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from memkit.formats.records import dtype_bits
from memkit.units import as_one_of


@dataclass(frozen=True, kw_only=True)
class Precision:
    """The dtype of every persistent copy of a parameter, and the dtype of the arithmetic.

    ``weight_dtype`` is what the module's parameters are; ``gradient_dtype`` what ``.grad`` is.
    ``master_dtype`` is the optimizer's own copy of the weights, ``main_gradient_dtype`` a second copy of the
    gradients that lives beside the first (``None``: there is none). ``compute_dtype`` is what matrix products
    run in; where it differs from ``weight_dtype`` the casts are made by autocast, on the way, and are
    temporary. ``state_dtype`` is the dtype of the optimizer's moments (``None``: that of the master copy, or
    else of the weights, as torch does). ``remainder_dtype`` is that of what rounding took from each weight,
    kept for the next step (Kahan).
    """

    name: str
    weight_dtype: str = "float32"
    gradient_dtype: str = "float32"
    compute_dtype: str = "float32"
    master_dtype: str | None = None
    main_gradient_dtype: str | None = None
    state_dtype: str | None = None
    remainder_dtype: str | None = None
    source: str = ""

    def __post_init__(self):
        copies = "master_dtype", "main_gradient_dtype", "state_dtype", "remainder_dtype"
        for name in ("weight_dtype", "gradient_dtype", "compute_dtype", *copies):
            if name not in copies or getattr(self, name) is not None:
                dtype_bits(getattr(self, name), name)

    @property
    def uses_autocast(self) -> bool:
        """Whether matrix products run in another dtype than the weights are kept in."""
        return self.compute_dtype != self.weight_dtype

    @property
    def has_copies(self) -> bool:
        """Whether a step needs more than weights and gradients of one dtype."""
        copies = self.master_dtype, self.main_gradient_dtype, self.remainder_dtype
        return any(copies) or self.gradient_dtype != self.weight_dtype

    @property
    def moment_dtype(self) -> str:
        """The dtype of the optimizer's moments."""
        return self.state_dtype or self.master_dtype or self.weight_dtype


FP32 = Precision(name="fp32", source="torch default")
AUTOCAST_BF16 = Precision(name="autocast bf16", compute_dtype="bfloat16", source="torch.autocast")
AUTOCAST_FP16 = Precision(
    name="autocast fp16", compute_dtype="float16", source="torch.autocast with GradScaler"
)
PURE_BF16 = Precision(
    name="pure bf16",
    weight_dtype="bfloat16",
    gradient_dtype="bfloat16",
    compute_dtype="bfloat16",
    source="model.to(torch.bfloat16)",
)
KAHAN_BF16 = replace(
    PURE_BF16,
    name="bf16 + Kahan",
    remainder_dtype="bfloat16",
    source="arXiv:2010.06192, Kahan summation for the weight update",
)
BF16_MASTER = replace(
    PURE_BF16,
    name="bf16 + fp32 master",
    master_dtype="float32",
    source="ZeRO paper, arXiv:1910.02054, section 3.1: 2 + 2 + 12 bytes",
)
MEGATRON = replace(
    BF16_MASTER,
    name="Megatron, fp32 gradients",
    gradient_dtype="float32",
    source="Megatron-LM distributed optimizer: 18 bytes, bf16 weights and fp32 gradients",
)
BF16_TWO_GRADIENTS = replace(
    BF16_MASTER,
    name="bf16 + fp32 master and gradients",
    main_gradient_dtype="float32",
    source="Ultra-Scale Playbook: 20 bytes",
)

PRINTED = FP32, AUTOCAST_BF16, AUTOCAST_FP16, BF16_MASTER, MEGATRON, BF16_TWO_GRADIENTS, PURE_BF16
PRECISIONS = {precision.name: precision for precision in PRINTED}
"""The recipes whose bytes people print."""

TORCH_PRECISIONS = ("fp32", "autocast bf16", "autocast fp16", "pure bf16")
"""The precisions that plain torch runs with one of its own optimizers, so that they can be traced and measured."""


IMPLEMENTATIONS = ("foreach", "for-loop", "fused")
HOSTS = ("never", "always", "unless fused")
"""When a state stays in the host's memory."""


@dataclass(frozen=True, kw_only=True)
class State:
    """One tensor that an optimizer keeps for a parameter, by torch's key in ``optimizer.state``.

    ``is_scalar``: one number, and not one for each of the parameter's. ``dtype`` left empty is that of the recipe's
    moments. A subclass with ``tensors_of`` of its own keeps something else: few bits, rows and columns.
    """

    role: str
    is_scalar: bool = False
    dtype: str = ""
    is_moment: bool = True
    on_host: str = "never"

    def __post_init__(self):
        as_one_of("on_host", self.on_host, HOSTS)

    def tensors_of(
        self, shape: tuple[int, ...], moment_dtype: str
    ) -> tuple[tuple[str, tuple[int, ...], str], ...]:
        """What is kept for a parameter of this shape, each as (role, shape, dtype)."""
        return ((self.role, () if self.is_scalar else shape, self.dtype or moment_dtype),)

    def is_in_host(self, role: str, count: int, implementation: str) -> bool:
        """Whether the host's memory has what it keeps as ``role`` for a parameter of so many values."""
        return self.on_host == "always" or (
            self.on_host == "unless fused" and implementation != "fused"
        )


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """One optimizer. ``made_by`` is ``module:class`` and ``arguments`` what it takes beside the learning rate.

    ``temporaries`` has a function for each implementation it offers: it is given what makes and drops a tensor in the
    dtype of the moments (``memkit.formula.run.Temporaries``), and the parameters that are stepped. None: a step that no
    formula describes is refused there, and a trace tells the bytes.
    ``has_argument`` says whether the class takes ``foreach`` and ``fused``.
    """

    name: str
    states: tuple[State, ...]
    temporaries: Mapping[str, Callable | None] = field(hash=False)
    made_by: str
    arguments: Mapping = field(default_factory=dict, hash=False)
    has_argument: bool = True

    @property
    def implementations(self) -> tuple[str, ...]:
        """Those that it offers."""
        return tuple(self.temporaries)

    @property
    def estimated(self) -> tuple[str, ...]:
        """Its implementations whose step the formula knows."""
        return tuple(each for each, rule in self.temporaries.items() if rule)

    def keywords(self, implementation: str) -> dict[str, object]:
        """What its class takes beside the learning rate to step in this way."""
        keywords = dict(self.arguments)
        if self.has_argument:
            is_fused = implementation == "fused"
            keywords |= {"fused": True} if is_fused else {"foreach": implementation == "foreach"}
        return keywords

    def states_of(self, shape: tuple[int, ...], kind: str) -> "Optimizer":
        """The optimizer that keeps states for a parameter of this shape and kind: itself."""
        return self

    def shared_by(self, counts: Iterable[int]) -> tuple[tuple[str, tuple[int, ...], str], ...]:
        """What is kept once for all tensors, of so many values each, as (role, shape, dtype): nothing."""
        return ()


STEP = State(role="step", is_scalar=True, dtype="float32", is_moment=False, on_host="unless fused")
FIRST, SECOND = State(role="exp_avg"), State(role="exp_avg_sq")
MOMENTUM = State(role="momentum_buffer")


def in_registers(new, parameters) -> None:
    """A kernel that computes the update without a temporary."""


def on_lists(new, parameters) -> None:
    """One temporary for every parameter, all at once."""
    new.drop(*[new.one(parameter.count) for parameter in parameters])


def one_by_one(new, parameters) -> None:
    """√v is born, then √v / √(1 - β₂ᵗ); the first is freed; the second stays until the next one replaces it."""
    before = None
    for parameter in parameters:
        root = new.one(parameter.count)
        denominator = new.one(parameter.count)
        new.drop(before, root)
        before = denominator
    new.drop(before)


OF_ADAM = {"foreach": on_lists, "for-loop": one_by_one, "fused": in_registers}
IN_ONE_KERNEL = dict.fromkeys(IMPLEMENTATIONS, in_registers)

SGD = Optimizer(name="SGD", states=(), temporaries=IN_ONE_KERNEL, made_by="torch.optim:SGD")
WITH_MOMENTUM = {"name": "SGD momentum", "states": (MOMENTUM,), "arguments": {"momentum": 0.9}}
ADAM = {"states": (STEP, FIRST, SECOND), "temporaries": OF_ADAM, "made_by": "torch.optim:AdamW"}
OPTIMIZERS = {
    optimizer.name: optimizer
    for optimizer in (SGD, replace(SGD, **WITH_MOMENTUM), Optimizer(name="AdamW", **ADAM))
}
"""By name, those of chapters 00 to 06. Nothing is added to it: another record is passed as it is."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Which states an optimizer keeps per parameter, and how its step is done.

    ``record`` is an ``Optimizer``, or a name in ``OPTIMIZERS``, held as an ``Optimizer``. ``implementation``:
    torch's ``foreach`` (default on CUDA) works on lists of tensors and holds temporaries as large as the parameters;
    ``for-loop`` (default on the CPU) on one tensor at a time; ``fused`` in one kernel without any.

    Raises: ValueError: an unknown name; an implementation the optimizer lacks.

    >>> from memkit import TrainingSetup, estimate_memory, models, recipes
    >>> for implementation in ("foreach", "fused"):
    ...     optimizer = OptimizerConfig(implementation=implementation)
    ...     setup = TrainingSetup(model=models.LLAMA_32_1B, precision=recipes.PURE_BF16, optimizer=optimizer)
    ...     print(implementation, estimate_memory(setup).peak.name)
    foreach optimizer peak
    fused backward peak
    """

    record: Optimizer | str = "AdamW"
    implementation: str = "foreach"

    def __post_init__(self):
        if not isinstance(self.record, Optimizer):
            name = as_one_of("optimizer record", self.record, OPTIMIZERS)
            object.__setattr__(self, "record", OPTIMIZERS[name])
        as_one_of("implementation", self.implementation, IMPLEMENTATIONS)
        offered = self.record.implementations
        if self.implementation not in offered:
            raise ValueError(
                f"implementation={self.implementation!r} is not offered by {self.name}; "
                f"use {' or '.join(map(repr, offered))}"
            )

    @property
    def name(self) -> str:
        """The optimizer's name."""
        return self.record.name


ADAMW = OptimizerConfig()
FUSED_ADAMW = OptimizerConfig(implementation="fused")
"""What is planned and explored where nothing else is asked for: it has no temporaries."""
