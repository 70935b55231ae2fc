"""Everything that fixes the memory of a training step, in one record that formula, trace and measurement all take.

``estimate_memory(setup)`` computes its bytes; ``training_build(setup)`` makes the real PyTorch step of the same
setup, for ``trace_memory`` and ``measure_memory``.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from memkit.models import MAX_SIZE, ModelConfig
from memkit.recipes import ADAMW, FP32, OptimizerConfig, Precision
from memkit.strategies import NONE, RECOMPUTATIONS, Strategy
from memkit.units import as_one_of, as_whole_number, check_fields

ATTENTIONS = ("stored", "flash", "efficient")
"""``stored``: softmax over an explicit score matrix. ``flash`` and ``efficient``: PyTorch's fused kernels, which keep
one float32 number per query and head (the log-sum-exp) in place of the scores."""

DEVICES = ("cuda", "cpu")
MAX_FLASH_HEAD_DIM = 256
"""CUDA's flash kernel takes no larger head."""


def check_probability(name: str, value: float) -> None:
    """Refuse what is no number from 0 to 1, 1 left out."""
    if not 0 <= value < 1:
        raise ValueError(f"{name}={value!r} is not a probability in [0, 1)")


MAX_GRAD_ACCUM_STEPS = 4096
"""Every micro-batch has instants of its own; more of them than this is a typing error."""


@dataclass(frozen=True, kw_only=True)
class TrainingSetup:
    """A model, a precision, an optimizer and the shape of a step.

    ``recomputation`` is a ``Strategy`` or one of the names in ``RECOMPUTATIONS``, held as a ``Strategy``.
    ``device`` says whose rules decide what autograd saves. ``uses_fused_norm`` chooses torch's kernel over the same
    formula written in Python; ``upcasts_logits`` makes a float32 copy of the
    logits before the loss, as many training scripts do. ``sets_grads_to_none``: what ``zero_grad`` does
    (torch's default is True).

    Raises: ValueError: an unknown name, a size out of range, or heads that no CUDA kernel takes.

    >>> from dataclasses import replace
    >>> from memkit import activation_bytes, models
    >>> setup = TrainingSetup(model=models.GPT2_SMALL, seq_len=512)
    >>> round(activation_bytes(replace(setup, micro_batch_size=8)) / activation_bytes(setup), 3)
    8.0
    """

    built_by: ClassVar[str] = "memkit.training_build"
    """The function that makes the PyTorch step; a subclass with more in it names another."""

    model: ModelConfig
    precision: Precision = FP32
    optimizer: OptimizerConfig = ADAMW
    micro_batch_size: int = 1
    seq_len: int = 1024
    grad_accum_steps: int = 1
    attention: str = "flash"
    recomputation: Strategy | str = NONE
    dropout: float = 0.0
    uses_fused_norm: bool = True
    upcasts_logits: bool = False
    sets_grads_to_none: bool = True
    device: str = "cuda"

    def __post_init__(self):
        check_fields(self, "micro_batch_size seq_len", as_whole_number, 1, MAX_SIZE)
        check_fields(self, "grad_accum_steps", as_whole_number, 1, MAX_GRAD_ACCUM_STEPS)
        check_fields(self, "attention", as_one_of, ATTENTIONS)
        check_fields(self, "device", as_one_of, DEVICES)
        if isinstance(self.recomputation, str):
            name = as_one_of("recomputation", self.recomputation, RECOMPUTATIONS)
            object.__setattr__(self, "recomputation", RECOMPUTATIONS[name])
        check_fields(self, "dropout", check_probability)
        if self.attention == "efficient" and self.device == "cpu":
            raise ValueError(
                "attention='efficient' has no CPU kernel; device='cpu' allows stored, flash"
            )
        if self.model.position == "learned" and self.seq_len > self.model.max_seq_len:
            raise ValueError(
                f"seq_len={self.seq_len} is above max_seq_len={self.model.max_seq_len}, the learned positions"
            )
        self._check_kernel()

    def _check_kernel(self) -> None:
        """CUDA's memory-efficient kernel refuses some heads, and PyTorch has no other one to run then."""
        model, dtype, wanted = self.model, self.precision.compute_dtype, ""
        heads, alignment = f"head_dim={model.head_dim}", 4 if dtype == "float32" else 8
        is_grouped_flash = self.attention == "flash" and model.num_kv_heads < model.num_heads
        if model.head_dim % alignment:
            wanted = f"a head_dim that is a multiple of {alignment}"
        elif is_grouped_flash and dtype != "float32":
            heads += f" and num_kv_heads={model.num_kv_heads}"
            wanted = "a key head for every query head"
        if wanted and self.uses_efficient_kernel:
            raise ValueError(
                f"attention={self.attention!r} has no CUDA kernel for {heads} in {dtype}: the memory-efficient one "
                f"wants {wanted}; attention='stored' takes any"
            )

    def under(self, strategy: Strategy | None) -> "TrainingSetup":
        """The same step under a strategy, or as it is under ``None``.

        Raises: ValueError: it has another strategy already.
        """
        if strategy in (None, self.recomputation):
            return self
        if self.recomputation != NONE:
            raise ValueError(
                f"recomputation={self.recomputation.name!r} of the setup and strategy={strategy.name!r}: name only one"
            )
        return replace(self, recomputation=strategy)

    @property
    def uses_efficient_kernel(self) -> bool:
        """Whether CUDA's memory-efficient kernel runs; also where flash is asked for and refuses dtype or head size.

        Source: ATen/native/transformers/cuda/sdp_utils.cpp, ``check_head_dim_size_flash``.
        """
        if self.device != "cuda" or self.attention == "stored":
            return False
        is_wide = self.precision.compute_dtype == "float32"
        return self.attention == "efficient" or is_wide or self.model.head_dim > MAX_FLASH_HEAD_DIM

    @property
    def tokens_per_micro_batch(self) -> int:
        """Tokens in one forward: ``micro_batch_size * seq_len``."""
        return self.micro_batch_size * self.seq_len
