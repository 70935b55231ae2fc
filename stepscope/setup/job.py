"""A training step with all that chapters 08 to 12 add: adapters, 4 bits, where the optimizer steps."""

from dataclasses import dataclass
from typing import ClassVar

from memkit.setup import TrainingSetup
from stepscope.setup.adapters import AdapterConfig, linear_layers
from stepscope.setup.places import Place


@dataclass(frozen=True, kw_only=True)
class Job(TrainingSetup):
    """A ``TrainingSetup`` in which LoRA may be trained, and nothing else (``adapter``), and whose optimizer may step
    elsewhere or earlier (``place``).

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

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "place", Place(self.place))
        if self.place.frees_gradients and (self.grad_accum_steps > 1 or not self.sets_grads_to_none):
            raise ValueError(
                f"place={self.place!r} frees each gradient at once: grad_accum_steps={self.grad_accum_steps}, "
                f"sets_grads_to_none={self.sets_grads_to_none} keep them; use 1 and True"
            )
        layers = linear_layers(self.model)
        if self.adapter is not None and not set(self.adapter.targets) <= set(layers):
            raise ValueError(f"adapter targets={self.adapter.targets} are not layers of {self.model.name}: {layers}")


def as_job(setup: TrainingSetup) -> Job:
    """The setup as a job without adapters, whose optimizer steps after the backward; a job as it is."""
    return setup if isinstance(setup, Job) else Job(**vars(setup))
