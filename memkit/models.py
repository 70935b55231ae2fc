"""A transformer's shape as a frozen record, and the published models as constants.

``ModelConfig`` covers the two families that most decoder models descend from. GPT-2: LayerNorm, biases, GELU,
learned positions, the output head tied to the token embedding. Llama: RMSNorm, no biases, SwiGLU, rotary
positions, grouped key and value heads, a head of its own; Qwen3 adds norms on queries and keys.
What-ifs are made with ``dataclasses.replace``.
"""

from collections import Counter
from dataclasses import dataclass, field, replace

from memkit.units import as_one_of, as_whole_number, check_fields

NORMS = ("layernorm", "rmsnorm")
MLPS = ("gelu", "swiglu")
POSITIONS = ("learned", "rotary")
MAX_SIZE = 10**9
"""Nothing counted by a ``ModelConfig`` field is larger; a larger value is a typing error."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes and choices that fix every tensor of a decoder-only transformer.

    ``num_kv_heads`` and ``intermediate_size`` left at 0 mean ``num_heads`` and ``4 * hidden_size``;
    ``head_dim`` left at 0 means ``hidden_size / num_heads``. The record holds them filled in, so a what-if
    that replaces ``hidden_size`` or ``num_heads`` sets these to 0 again. ``fuses_qkv`` makes query, key and
    value one matrix, as GPT-2 does; ``has_qk_norm`` puts an RMSNorm on each query and key head, as Qwen3 does.

    ``mlp`` is one of ``MLPS``; what such an MLP is say ``MLP_PARAMETERS`` of the formula and ``MLPS`` of the program. A
    model whose blocks differ is a subclass with an ``mlp_of`` of its own.

    ``block_times``, in ``one_of_each``, says for each block how many that are alike it stands for.

    Raises: ValueError: a size is not a whole number in range, heads do not divide, or a name is unknown.

    >>> from dataclasses import replace
    >>> from memkit import count_parameters, models
    >>> half = replace(models.GPT2_SMALL, num_layers=6)
    >>> half.head_dim, count_parameters(half)
    (64, 81912576)
    """

    name: str = "custom"
    num_layers: int
    hidden_size: int
    num_heads: int
    vocab_size: int
    max_seq_len: int
    num_kv_heads: int = 0
    head_dim: int = 0
    intermediate_size: int = 0
    norm: str = "rmsnorm"
    mlp: str = "swiglu"
    position: str = "rotary"
    ties_embeddings: bool = False
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_mlp_bias: bool = False
    fuses_qkv: bool = False
    has_qk_norm: bool = False
    block_times: tuple[int, ...] = field(default=(), repr=False)

    def __post_init__(self):
        sizes = "num_layers hidden_size num_heads vocab_size max_seq_len"
        check_fields(self, sizes, as_whole_number, 1, MAX_SIZE)
        sizes = "num_kv_heads head_dim intermediate_size"
        check_fields(self, sizes, as_whole_number, 0, MAX_SIZE)
        check_fields(self, "norm", as_one_of, NORMS)
        check_fields(self, "mlp", as_one_of, MLPS)
        check_fields(self, "position", as_one_of, POSITIONS)
        if self.head_dim == 0 and self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} is not a multiple of num_heads={self.num_heads}"
            )
        if self.num_kv_heads and self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads={self.num_heads} is not a multiple of num_kv_heads={self.num_kv_heads}"
            )
        object.__setattr__(self, "num_kv_heads", self.num_kv_heads or self.num_heads)
        object.__setattr__(self, "head_dim", self.head_dim or self.hidden_size // self.num_heads)
        object.__setattr__(
            self, "intermediate_size", self.intermediate_size or 4 * self.hidden_size
        )
        if len(self.block_times) not in (0, self.num_layers):
            raise ValueError(
                f"block_times={self.block_times}: a number for each of num_layers={self.num_layers}, or none"
            )
        if self.position == "rotary" and self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} is odd; rotary pairs values")
        if self.has_qk_norm and (self.fuses_qkv or self.norm != "rmsnorm"):
            raise ValueError(
                "has_qk_norm=True needs norm='rmsnorm' and a matrix each for query and key"
            )

    def mlp_of(self, layer: int) -> str:
        """The kind of MLP that a block has: the same in every block."""
        return self.mlp

    @property
    def blocks_by_kind(self) -> dict[str, int]:
        """How many blocks have an MLP of each kind, in the order of their first block."""
        return dict(Counter(map(self.mlp_of, range(self.num_layers))))

    @property
    def one_of_each(self) -> "ModelConfig":
        """The same model with one block of each kind that it has, a block of the first kind first."""
        return replace(self, num_layers=1, block_times=(self.num_layers,))

    @property
    def more_axes(self) -> dict[str, int]:
        """Sizes of axes beside those of every transformer, by their letters."""
        return {}

    @property
    def one_block(self) -> "ModelConfig":
        """The same model with one block alone, the one that a ledger of a block describes."""
        return replace(self, num_layers=1)

    @property
    def query_size(self) -> int:
        """Width of all query heads together: ``num_heads * head_dim``."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together (and of all value heads): ``num_kv_heads * head_dim``."""
        return self.num_kv_heads * self.head_dim


GPT2 = {
    "norm": "layernorm",
    "mlp": "gelu",
    "position": "learned",
    "ties_embeddings": True,
    "has_qkv_bias": True,
    "has_output_bias": True,
    "has_mlp_bias": True,
    "fuses_qkv": True,
}
"""What a model of GPT-2's family has."""


def gpt2_config(name: str, num_layers: int, hidden_size: int, num_heads: int) -> ModelConfig:
    """A GPT-2 style model with GPT-2's vocabulary of 50,257 tokens and 1,024 positions."""
    sizes = {"num_layers": num_layers, "hidden_size": hidden_size, "num_heads": num_heads}
    return ModelConfig(name=name, vocab_size=50257, max_seq_len=1024, **sizes, **GPT2)


SIZES_OF_LLAMAS = (
    "num_layers hidden_size num_heads num_kv_heads intermediate_size vocab_size max_seq_len".split()
)


def llama_config(name: str, *sizes: int, **fields) -> ModelConfig:
    """A Llama style model of sizes in the order of ``SIZES_OF_LLAMAS``; Qwen2 adds the field ``has_qkv_bias``."""
    fields |= zip(SIZES_OF_LLAMAS[: len(sizes)], sizes, strict=True)
    return ModelConfig(name=name, **fields)


GPT2_SMALL = gpt2_config("GPT-2 small", 12, 768, 12)
GPT2_MEDIUM = gpt2_config("GPT-2 medium", 24, 1024, 16)
GPT2_LARGE = gpt2_config("GPT-2 large", 36, 1280, 20)
GPT2_XL = gpt2_config("GPT-2 XL", 48, 1600, 25)
LLAMA_2_7B = llama_config("Llama-2-7B", 32, 4096, 32, 32, 11008, 32000, 4096)
LLAMA_2_13B = llama_config("Llama-2-13B", 40, 5120, 40, 40, 13824, 32000, 4096)
LLAMA_2_70B = llama_config("Llama-2-70B", 80, 8192, 64, 8, 28672, 32000, 4096)
LLAMA_3_8B = llama_config("Llama-3-8B", 32, 4096, 32, 8, 14336, 128256, 8192)
LLAMA_3_70B = llama_config("Llama-3-70B", 80, 8192, 64, 8, 28672, 128256, 8192)
LLAMA_3_405B = llama_config("Llama-3.1-405B", 126, 16384, 128, 8, 53248, 128256, 131072)
LLAMA_32_1B = llama_config(
    "Llama-3.2-1B", 16, 2048, 32, 8, 8192, 128256, 131072, ties_embeddings=True
)
LLAMA_32_3B = llama_config(
    "Llama-3.2-3B", 28, 3072, 24, 8, 8192, 128256, 131072, ties_embeddings=True
)
MISTRAL_7B = llama_config("Mistral-7B", 32, 4096, 32, 8, 14336, 32000, 32768)
QWEN_2_05B = llama_config(
    "Qwen2-0.5B", 24, 896, 14, 2, 4864, 151936, 131072, ties_embeddings=True, has_qkv_bias=True
)
QWEN_3 = {"has_qk_norm": True, "head_dim": 128}
QWEN_3_06B = llama_config(
    "Qwen3-0.6B", 28, 1024, 16, 8, 3072, 151936, 40960, ties_embeddings=True, **QWEN_3
)
QWEN_3_8B = llama_config("Qwen3-8B", 36, 4096, 32, 8, 12288, 151936, 40960, **QWEN_3)
QWEN_3_32B = llama_config("Qwen3-32B", 64, 5120, 64, 8, 25600, 151936, 40960, **QWEN_3)
TINY_GPT2 = gpt2_config("tiny GPT-2", 4, 256, 4)
TINY_LLAMA = llama_config("tiny Llama", 4, 256, 4, 2, 688, 8192, 1024)

GPT2_FAMILY = GPT2_SMALL, GPT2_MEDIUM, GPT2_LARGE, GPT2_XL
ON_ONE_CARD = LLAMA_32_1B, QWEN_2_05B, LLAMA_32_3B
LLAMAS_2 = (LLAMA_2_7B, LLAMA_2_13B, LLAMA_2_70B)
LLAMAS_3 = (LLAMA_3_8B, LLAMA_3_70B, LLAMA_3_405B)
QWEN_3_FAMILY = QWEN_3_06B, QWEN_3_8B, QWEN_3_32B
PUBLISHED_MODELS = {
    config.name: config
    for config in (*GPT2_FAMILY, *ON_ONE_CARD, *LLAMAS_2, MISTRAL_7B, *LLAMAS_3, *QWEN_3_FAMILY)
}
"""The published models by name, in rough order of size within a family."""
