"""What is trained beyond the kit's setup: adapters, the place where an optimizer steps, a layout of ranks; ``Job``.

LoRA: the weights are frozen, and beside some of them two thin matrices are trained. Hu et al. 2021 (arXiv:2106.09685):
W x + (α / r) B A x, with A of shape [r, in] and B of [out, r]. QLoRA (Dettmers et al. 2023, arXiv:2305.14314) keeps
the frozen W in 4 bits (NF4) and makes 16-bit ones of it for each product.

A layout says what each rank keeps whole, and what it keeps a share of. ZeRO's stages as PyTorch has them: DDP keeps
everything whole; stage 1 shares out the optimizer's states (``ZeroRedundancyOptimizer``), stage 2 the gradients too
(``fully_shard(reshard_after_forward=False)``), stage 3 the weights too (``fully_shard``).

Source: Rajbhandari et al. 2020, arXiv:1910.02054; torch.distributed.fsdp.fully_shard, torch 2.13.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from memkit.formats.records import dtype_bits
from memkit.models import ModelConfig
from memkit.setup import TrainingSetup, check_probability
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
    attention = ("qkv",) if model.fuses_qkv else ("query", "key", "value")
    mlp = TARGETS[-3:] if model.mlp == "swiglu" else TARGETS[-2:]
    return (*attention, "output", *(mlp if model.mlp in model.blocks_by_kind else ()))


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


MIN_OFFLOADED = 4096
"""``CPUOffloadOptimizer`` keeps smaller tensors on the card (``minimal_size``)."""


class Place(StrEnum):
    """Where an optimizer steps; on the host, for tensors of ``MIN_OFFLOADED`` values and more.

    Source: torchao's ``CPUOffloadOptimizer``; the last is with ``offload_gradients=True``.

    >>> [place.value for place in Place if place.frees_gradients]
    ['in backward', 'on the host, gradients too']
    """

    AFTER_BACKWARD = "after backward"  # once all gradients are there
    IN_BACKWARD = "in backward"  # on each gradient as soon as it is there, which frees it
    ON_HOST = "on the host"
    # each gradient is freed once it is copied
    ON_HOST_WITH_GRADIENTS = "on the host, gradients too"

    __repr__ = str.__repr__  # as a reader writes it

    @property
    def frees_gradients(self) -> bool:
        """Whether a gradient is freed as soon as it is complete, so that none can be accumulated."""
        return self in (Place.IN_BACKWARD, Place.ON_HOST_WITH_GRADIENTS)

    @property
    def is_on_host(self) -> bool:
        """Whether the states of all but small tensors are in the host's memory, and the step is done there."""
        return self in (Place.ON_HOST, Place.ON_HOST_WITH_GRADIENTS)


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
            raise ValueError(
                f"dp_size={self.dp_size} · num_replicas={self.num_replicas} is above {MAX_RANKS} ranks"
            )
        for name in ("param_dtype", "reduce_dtype"):
            if getattr(self, name) is not None:
                dtype_bits(getattr(self, name), name)
        defaults = {"num_replicas": 1, "param_dtype": None, "reduce_dtype": None, "offloads": False}
        for name, default in defaults.items():
            value = getattr(self, name)
            if value != default and not self.is_fully_sharded:
                raise ValueError(
                    f"{name}={value!r} needs fully_shard: stage 2 or 3, not {self.stage}"
                )
        if self.is_fully_sharded and self.gradient_as_bucket_view:
            raise ValueError(
                f"gradient_as_bucket_view=True is DDP's: stage 0 or 1, not {self.stage}"
            )

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


@dataclass(frozen=True, kw_only=True)
class Job(TrainingSetup):
    """A ``TrainingSetup`` in which LoRA may be trained, and nothing else (``adapter``), whose optimizer may step
    elsewhere or earlier (``place``), and whose loss may be computed in pieces of the tokens, the logits of each
    made again in the backward (``loss_pieces``).

    Raises: ValueError: a target that the model lacks, or accumulation where the optimizer frees each gradient at once.

    >>> from memkit import OptimizerConfig, estimate_memory, format_bytes, models, recipes
    >>> for place in ("after backward", "in backward"):
    ...     job = Job(model=models.LLAMA_2_7B, precision=recipes.PURE_BF16, seq_len=512, place=place,
    ...               optimizer=OptimizerConfig(implementation="fused"))
    ...     print(place, format_bytes(estimate_memory(job).for_step(2).peak_bytes))
    after backward 50.21 GiB
    in backward 40.29 GiB
    """

    built_by: ClassVar[str] = "stepscope.job_build"

    adapter: AdapterConfig | None = None
    place: Place = Place.AFTER_BACKWARD
    loss_pieces: int = 1

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "place", Place(self.place))
        if self.place.frees_gradients and (
            self.grad_accum_steps > 1 or not self.sets_grads_to_none
        ):
            raise ValueError(
                f"place={self.place!r} frees each gradient at once: grad_accum_steps={self.grad_accum_steps}, "
                f"sets_grads_to_none={self.sets_grads_to_none} keep them; use 1 and True"
            )
        as_whole_number("loss_pieces", self.loss_pieces, 1)
        if self.adapter is None:
            return
        targets, layers = self.adapter.targets, linear_layers(self.model)
        if not set(targets) <= set(layers):
            raise ValueError(
                f"adapter targets={targets} are not layers of {self.model.name}: {layers}"
            )


def as_job(setup: TrainingSetup) -> Job:
    """The setup as a job without adapters, whose optimizer steps after the backward; a job as it is."""
    return setup if isinstance(setup, Job) else Job(**vars(setup))
