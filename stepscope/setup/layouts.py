"""How a training run is spread over ranks: what each keeps whole, and what it keeps a share of.

ZeRO's stages as PyTorch has them: DDP keeps everything whole; stage 1 shares out the optimizer's states
(``ZeroRedundancyOptimizer``), stage 2 the gradients too (``fully_shard(reshard_after_forward=False)``), stage 3 the
weights too (``fully_shard``).

Source: Rajbhandari et al. 2020, arXiv:1910.02054; torch.distributed.fsdp.fully_shard, torch 2.13.
"""

from dataclasses import dataclass

from memkit.formats.records import dtype_bits
from memkit.units import as_whole_number, check_fields

STAGES = ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")
MAX_RANKS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Layout:
    """``num_replicas`` groups of ``dp_size`` ranks; inside a group each rank keeps a share of what ``stage`` says.

    ``param_dtype`` and ``reduce_dtype`` are those of ``MixedPrecisionPolicy`` (``None``: the parameters' own);
    ``offloads`` keeps shares, gradients and states in the host's memory (``CPUOffloadPolicy``).
    ``gradient_as_bucket_view`` is DDP's: its buckets then hold the gradients, and not a second copy of them.

    Raises: ValueError: a stage that is not 0 to 3, sizes below 1, or a choice that the stage does not have.

    >>> Layout(stage=3, dp_size=8, num_replicas=4).world_size
    32
    """

    stage: int = 3
    dp_size: int = 8
    num_replicas: int = 1
    param_dtype: str | None = None
    reduce_dtype: str | None = None
    offloads: bool = False
    gradient_as_bucket_view: bool = False

    def __post_init__(self):
        if as_whole_number("stage", self.stage) >= len(STAGES):
            raise ValueError(f"stage={self.stage} is not one of 0 (DDP), 1, 2, 3")
        check_fields(self, "dp_size num_replicas", as_whole_number, 1)
        if self.world_size > MAX_RANKS:
            raise ValueError(f"dp_size={self.dp_size} · num_replicas={self.num_replicas} is above {MAX_RANKS} ranks")
        for name in ("param_dtype", "reduce_dtype"):
            if getattr(self, name) is not None:
                dtype_bits(getattr(self, name), name)
        chosen = {
            "num_replicas": self.num_replicas > 1, "param_dtype": self.param_dtype, "reduce_dtype": self.reduce_dtype,
            "offloads": self.offloads,
        }
        wrong = [name for name, is_chosen in chosen.items() if is_chosen and not self.is_fully_sharded]
        if wrong:
            value = getattr(self, wrong[0])
            raise ValueError(f"{wrong[0]}={value!r} needs fully_shard: stage 2 or 3, not {self.stage}")
        if self.is_fully_sharded and self.gradient_as_bucket_view:
            raise ValueError(f"gradient_as_bucket_view=True is DDP's: stage 0 or 1, not {self.stage}")

    @property
    def name(self) -> str:
        """The stage as the paper calls it, and what was chosen besides."""
        hybrid = f" × {self.num_replicas} replicas" if self.num_replicas > 1 else ""
        return f"{STAGES[self.stage]} on {self.dp_size}{hybrid}{', offloaded' if self.offloads else ''}"

    @property
    def world_size(self) -> int:
        """All ranks of the run."""
        return self.dp_size * self.num_replicas

    @property
    def is_fully_sharded(self) -> bool:
        """Whether FSDP2 keeps the parameters, and not DDP."""
        return self.stage >= 2
