"""The step of a ``Job`` in PyTorch: LoRA beside frozen weights, experts, an optimizer that steps in the backward."""

from collections.abc import Callable

from torch import nn

from memkit.program import transformer as kit
from stepscope.program.adapters import add_adapters, bitsandbytes_layers
from stepscope.program.experts import Experts
from stepscope.program.optimizers import make_job_optimizer
from stepscope.setup.experts import EXPERTS
from stepscope.setup.job import Job

kit.MLPS[EXPERTS] = Experts


class Transformer(kit.Transformer):
    """The kit's. With an adapter its blocks are frozen beside it and, in QLoRA, in 4 bits before the next block is
    made."""

    setup: Job

    def make_block(self, layer: int, **where) -> kit.Block:
        block = super().make_block(layer, **where)
        return block if self.setup.adapter is None else add_adapters(kit.initialise(block), self.setup.adapter)

    def make_head(self, **where) -> nn.Linear:
        if self.setup.adapter is not None and self.config.ties_embeddings:
            where["device"] = "meta"  # no second table: beside frozen weights it would be the run's peak
        return super().make_head(**where)

    def initialise(self) -> None:
        if self.setup.adapter is None:
            return super().initialise()
        for module in set(self.children()) - {self.blocks}:
            kit.initialise(module.requires_grad_(False))


def job_build(setup: Job, next_batch=None, make_model: Callable[[Job], nn.Module] = Transformer) -> Callable:
    """The ``build`` of a job, for ``trace_memory``, ``trace_script`` and ``measure_memory``: the kit's build, with
    adapters beside frozen weights, experts, and an optimizer that may step in the backward.

    Raises: ValueError: plain torch cannot run the job's precision, or its optimizer steps on the host. ImportError: a
    library that it needs is not there.

    >>> from memkit import models, trace_memory
    >>> from stepscope import AdapterConfig
    >>> job = Job(model=models.TINY_LLAMA, seq_len=64, adapter=AdapterConfig(rank=8, targets=("query", "value")))
    >>> trace_memory(job_build(job)).at("backward").gradients
    114688
    """
    if setup.adapter is not None and setup.adapter.base == "nf4":
        bitsandbytes_layers()  # loaded here: a trace pretends that there is a card
    return kit.training_build(setup, next_batch, make_model, make_job_optimizer)
