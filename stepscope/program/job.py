"""The step of a ``Job`` in PyTorch: LoRA beside frozen weights, experts, an optimizer that steps in the backward."""

from collections.abc import Callable, Mapping
from functools import partial

from torch import nn

from memkit.program import transformer as kit
from memkit.program.optimizers import make_optimizer, make_step_optimizer
from stepscope.program.adapters import add_adapters, bitsandbytes_layers
from stepscope.program.experts import Experts
from stepscope.setup.experts import EXPERTS
from stepscope.setup.job import Job
from stepscope.setup.places import Place

kit.MLPS[EXPERTS] = Experts


class Transformer(kit.Transformer):
    """The kit's, whose blocks are frozen beside adapters and, in QLoRA, in 4 bits before the next block is made."""

    setup: Job

    def make_block(self, layer: int, **where) -> kit.Block:
        return add_adapters(kit.initialise(super().make_block(layer, **where)), self.setup.adapter)

    def make_head(self, **where) -> nn.Linear:
        if self.config.ties_embeddings:
            where["device"] = "meta"  # no second table: beside frozen weights it would be the run's peak
        return super().make_head(**where)

    def initialise(self) -> None:
        for module in set(self.children()) - {self.blocks}:
            kit.initialise(module.requires_grad_(False))


class Steps:
    """An optimizer whose steps were done in the backward."""

    def step(self) -> None: ...

    def zero_grad(self, set_to_none: bool = True) -> None: ...


def optimizer_of(setup: Job, named: Mapping[str, nn.Parameter]):
    """The job's optimizer."""
    trained = [parameter for parameter in named.values() if parameter.requires_grad]
    if setup.place.is_on_host:
        raise ValueError(f"place={setup.place!r} is a formula only: torchao's needs a CUDA card")
    if setup.place == Place.IN_BACKWARD:
        for parameter in trained:
            optimizer = make_optimizer(setup.optimizer, [parameter])

            def step_and_free(parameter: nn.Parameter, optimizer=optimizer) -> None:
                optimizer.step()
                optimizer.zero_grad()

            parameter.register_post_accumulate_grad_hook(step_and_free)
        return Steps()
    if setup.adapter is None:
        return make_step_optimizer(setup, named)
    return make_optimizer(setup.optimizer, trained) if trained else None


def job_build(setup: Job, next_batch=None) -> Callable:
    """``memkit.training_build`` of a job."""
    if setup.adapter is not None and setup.adapter.base == "nf4":
        bitsandbytes_layers()  # loaded here: a trace pretends that there is a card
    model = kit.Transformer if setup.adapter is None else Transformer
    return kit.training_build(setup, next_batch, make_model=model, make_optimizer=optimizer_of)
