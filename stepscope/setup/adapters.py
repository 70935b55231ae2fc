"""LoRA: the weights are frozen, and beside some of them two thin matrices are trained.

Hu et al. 2021 (arXiv:2106.09685): W x + (α / r) B A x, with A of shape [r, in] and B of [out, r]. QLoRA (Dettmers et
al. 2023, arXiv:2305.14314) keeps the frozen W in 4 bits (NF4) and makes 16-bit ones of it for each product.
"""

from dataclasses import dataclass

from memkit.formats.records import dtype_bits
from memkit.models import ModelConfig
from memkit.setup import check_probability
from memkit.units import as_one_of, as_whole_number, check_fields

TARGETS = ("qkv", "query", "key", "value", "output", "gate", "up", "down")
"""The linear layers of a block that an adapter may stand beside; ``qkv`` where a model has the three in one."""

BASES = ("as loaded", "nf4")


def linear_layers(model: ModelConfig) -> tuple[str, ...]:
    """Those of ``TARGETS`` that a block of the model has, in its order.

    >>> from memkit.models import GPT2_SMALL
    >>> linear_layers(GPT2_SMALL)
    ('qkv', 'output', 'up', 'down')
    """
    missing = {"query", "key", "value"} if model.fuses_qkv else {"qkv"}
    mlp = TARGETS[-3:] if model.mlp == "swiglu" else TARGETS[-2:]
    return tuple(n for n in (*TARGETS[:-3], *(mlp if model.mlp in model.blocks_by_kind else ())) if n not in missing)


@dataclass(frozen=True, kw_only=True)
class AdapterConfig:
    """LoRA of rank ``rank`` beside the layers ``targets`` of every block; all else is frozen.

    ``dtype`` is that of the adapters: peft makes them float32 whatever the weights are
    (``autocast_adapter_dtype=True``). ``dropout`` is applied to what enters an adapter. ``base="nf4"``: the
    weights of all linear layers of the blocks are kept in 4 bits, one scale for 64 values, and those scales in 8 bits
    (double quantization).

    Raises: ValueError: no target, or an unknown one; a value out of range.

    >>> from memkit import estimate_memory, models, recipes
    >>> from stepscope import Job
    >>> lora = AdapterConfig(rank=16, targets=("query", "value"))
    >>> job = Job(model=models.LLAMA_2_7B, precision=recipes.PURE_BF16, adapter=lora, seq_len=512)
    >>> estimate_memory(job).at("optimizer").optimizer_states  # 8 B for each of 8,388,608 parameters
    67108864
    """

    rank: int = 16
    targets: tuple[str, ...] = ("query", "key", "value", "output")
    dropout: float = 0.0
    dtype: str = "float32"
    base: str = "as loaded"

    def __post_init__(self):
        check_fields(self, "rank", as_whole_number, 1)
        dtype_bits(self.dtype)
        check_fields(self, "base", as_one_of, BASES)
        if not self.targets or not set(self.targets) <= set(TARGETS):
            raise ValueError(f"targets={self.targets!r} are not some of {', '.join(TARGETS)}")
        check_fields(self, "dropout", check_probability)
