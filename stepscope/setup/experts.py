"""A transformer with a mixture of experts in place of the MLP of some blocks or of all."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from memkit import models as kit
from memkit.models import MAX_SIZE, QWEN_3, ModelConfig, llama_config
from memkit.units import as_whole_number, check_fields

EXPERTS = "experts"


@dataclass(frozen=True, kw_only=True)
class ExpertsConfig(ModelConfig):
    """With ``num_experts`` the MLP of every block, but for those that ``dense_layers`` names, is so many gated ones of
    width ``expert_size``, of which each token uses ``experts_per_token``.

    >>> from memkit import count_parameters, models
    >>> model = experts_config(models.TINY_LLAMA, num_experts=8, experts_per_token=2, expert_size=64, dense_layers=(0,))
    >>> model.blocks_by_kind
    {'swiglu': 1, 'experts': 3}
    """

    num_experts: int
    experts_per_token: int
    expert_size: int
    dense_layers: tuple[int, ...] = ()

    def __post_init__(self):
        super().__post_init__()
        check_fields(self, "num_experts experts_per_token expert_size", as_whole_number, 1, MAX_SIZE)
        experts = self.num_experts, self.experts_per_token, self.expert_size
        if self.experts_per_token > self.num_experts or (self.hidden_size | self.expert_size) % 8:
            raise ValueError(
                f"experts={experts} and hidden_size={self.hidden_size}: num_experts, at most as many for a token, and "
                "their size; both sizes multiples of 8, as grouped products want them"
            )

    def mlp_of(self, layer: int) -> str:
        """The MLP's own kind, or experts."""
        return self.mlp if layer in self.dense_layers else EXPERTS

    @property
    def blocks_by_kind(self) -> dict[str, int]:
        """Dense ones first."""
        counts = super().blocks_by_kind
        return {kind: counts[kind] for kind in (self.mlp, EXPERTS) if kind in counts}

    @property
    def one_of_each(self) -> "ExpertsConfig":
        kinds = self.blocks_by_kind
        return replace(self, num_layers=len(kinds), dense_layers=(0,) if self.mlp in kinds else ())

    @property
    def one_block(self) -> "ExpertsConfig":
        return replace(self, num_layers=1, dense_layers=())

    @property
    def more_axes(self) -> dict[str, int]:
        """e experts, c of them chosen for a token, g their width."""
        return {"e": self.num_experts, "c": self.experts_per_token, "g": self.expert_size, "2g": 2 * self.expert_size}


def num_experts_of(model: ModelConfig) -> int:
    """How many experts a block has, 0 where it has none."""
    return model.num_experts if isinstance(model, ExpertsConfig) else 0


def experts_config(dense: ModelConfig, **choices) -> ExpertsConfig:
    """The same model with experts."""
    return ExpertsConfig(**vars(dense) | choices)


QWEN_3_30B_A3B = experts_config(
    llama_config("Qwen3-30B-A3B", 48, 2048, 32, 4, 6144, 151936, 40960, **QWEN_3),
    num_experts=128, experts_per_token=8, expert_size=768,
)

PUBLISHED_MODELS: Mapping[str, ModelConfig] = kit.PUBLISHED_MODELS | {QWEN_3_30B_A3B.name: QWEN_3_30B_A3B}
"""The kit's, and one with experts, by name."""
