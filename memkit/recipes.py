"""In which dtype a training recipe keeps weights, gradients, master copy and optimizer states.

People print 8, 16, 18 and 20 bytes per parameter for "the same" training. They are right about different
recipes. A ``Precision`` says who keeps which copy; an ``OptimizerConfig`` says which states there are.
"""

from dataclasses import dataclass

from memkit.formats.records import dtype_bits
from memkit.optimizers import IMPLEMENTATIONS, OPTIMIZERS, Optimizer
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
        for name in ("weight_dtype", "gradient_dtype", "compute_dtype"):
            dtype_bits(getattr(self, name), name)
        for name in ("master_dtype", "main_gradient_dtype", "state_dtype", "remainder_dtype"):
            if getattr(self, name) is not None:
                dtype_bits(getattr(self, name), name)

    @property
    def uses_autocast(self) -> bool:
        """Whether matrix products run in another dtype than the weights are kept in."""
        return self.compute_dtype != self.weight_dtype

    @property
    def moment_dtype(self) -> str:
        """The dtype of the optimizer's moments."""
        return self.state_dtype or self.master_dtype or self.weight_dtype


FP32 = Precision(name="fp32", source="torch default")
AUTOCAST_BF16 = Precision(name="autocast bf16", compute_dtype="bfloat16", source="torch.autocast")
AUTOCAST_FP16 = Precision(
    name="autocast fp16", compute_dtype="float16", source="torch.autocast with GradScaler"
)
BF16_MASTER = Precision(
    name="bf16 + fp32 master",
    weight_dtype="bfloat16",
    gradient_dtype="bfloat16",
    compute_dtype="bfloat16",
    master_dtype="float32",
    source="ZeRO paper, arXiv:1910.02054, section 3.1: 2 + 2 + 12 bytes",
)
MEGATRON = Precision(
    name="Megatron, fp32 gradients",
    weight_dtype="bfloat16",
    gradient_dtype="float32",
    compute_dtype="bfloat16",
    master_dtype="float32",
    source="Megatron-LM distributed optimizer: 18 bytes, bf16 weights and fp32 gradients",
)
BF16_TWO_GRADIENTS = Precision(
    name="bf16 + fp32 master and gradients",
    weight_dtype="bfloat16",
    gradient_dtype="bfloat16",
    compute_dtype="bfloat16",
    master_dtype="float32",
    main_gradient_dtype="float32",
    source="Ultra-Scale Playbook: 20 bytes",
)
PURE_BF16 = Precision(
    name="pure bf16",
    weight_dtype="bfloat16",
    gradient_dtype="bfloat16",
    compute_dtype="bfloat16",
    source="model.to(torch.bfloat16)",
)
PURE_FP16 = Precision(
    name="pure fp16",
    weight_dtype="float16",
    gradient_dtype="float16",
    compute_dtype="float16",
    source="model.to(torch.float16); a GradScaler refuses 16-bit gradients, so for frozen weights alone",
)
KAHAN_BF16 = Precision(
    name="bf16 + Kahan",
    weight_dtype="bfloat16",
    gradient_dtype="bfloat16",
    compute_dtype="bfloat16",
    remainder_dtype="bfloat16",
    source="arXiv:2010.06192, Kahan summation for the weight update",
)

PRECISIONS = {
    p.name: p
    for p in (
        FP32,
        AUTOCAST_BF16,
        AUTOCAST_FP16,
        BF16_MASTER,
        MEGATRON,
        BF16_TWO_GRADIENTS,
        PURE_BF16,
    )
}
"""The recipes whose bytes people print."""

TORCH_PRECISIONS = ("fp32", "autocast bf16", "autocast fp16", "pure bf16")
"""The precisions that plain torch runs with one of its own optimizers, so that they can be traced and measured."""


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
