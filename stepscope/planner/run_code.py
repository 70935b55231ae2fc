"""A plan's code, traced before anybody is shown it: the very text, on tensors without data.

The book's model is this book's; what ``from_pretrained`` would load is made by the family's own module from its
configuration. Loads torch, and the libraries that the text names.
"""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import lru_cache, partial
from importlib import import_module
from io import StringIO
from unittest.mock import patch

from memkit.strategies import NONE
from stepscope.hugging_face import config_of
from stepscope.planner.code import Code, code_of
from stepscope.planner.plan import TrainingPlan, as_high
from stepscope.setup import Job, Layout

NUM_STEPS = 2
"""The second step has the states that the first one makes."""


def traced(plan: TrainingPlan, model: str = "plain") -> TrainingPlan:
    """The plan with the traced peak of its own code; unchanged where torch or a library of it is not there.

    Of more than two micro-batches two are run: a third is as high as the second.
    """
    short = replace(plan, setup=as_high(plan.setup))
    try:
        num_bytes = traced_bytes(code_of(short, model), short.setup, plan.layout)
    except ImportError:
        return plan
    return replace(plan, traced_bytes=num_bytes)


@lru_cache(maxsize=64)
def traced_bytes(code: Code, setup: Job, layout: Layout | None) -> int:
    """The highest bytes of a plan's second step, as its code runs."""
    from stepscope.program.sharded import one_rank_of
    from stepscope.tracing.trace import trace_script

    with ExitStack() as stack:
        stack.enter_context(one_rank_of(layout.world_size) if layout else nullcontext())
        stack.enter_context(redirect_stdout(StringIO()))
        stack.enter_context(redirect_stderr(StringIO()))
        stack.callback(logging.disable, logging.NOTSET)
        logging.disable(logging.WARNING)  # what libraries say of this machine is not about the plan
        import_libraries(code)
        for stand_in in stand_ins(setup, code):
            stack.enter_context(stand_in)
        build = partial(run_text, code, setup, layout)
        return trace_script(build, steps=NUM_STEPS).for_step(NUM_STEPS).peak_bytes


def import_libraries(code: Code) -> None:
    """Import what the text does, before a trace pretends that there is a card, of which libraries would ask more."""
    try:
        import_module("torchvision")
    except (ImportError, RuntimeError):  # one built for another torch: transformers is to find none
        sys.modules["torchvision"] = None
    for library in code.libraries:
        import_module(library)


def run_text(
    code: Code, setup: Job, layout: Layout | None = None, seen: dict | None = None
) -> Callable:
    """Execute the text with what it needs from its reader, and give back its step. ``seen`` gets its names."""
    from memkit.program.transformer import random_batches
    from stepscope.program.job import Transformer

    names = {} if seen is None else seen
    if not code.loads_model:
        inside = layout and layout.param_dtype or setup.precision.compute_dtype
        precision = replace(setup.precision, compute_dtype=inside)
        bare = replace(setup, recomputation=NONE, adapter=None, precision=precision, loss_pieces=1)
        names["model"] = Transformer(bare)
    names["batches"] = iter(random_batches(setup.model, setup), None)
    exec(code.text, names)  # noqa: S102 - the text is ours, and is to be run
    return names["step"]


def stand_ins(setup: Job, code: Code) -> Iterator:
    """What is put in the place of files on the disk, and of memory that only CUDA's driver gives."""
    if code.loads_model:
        loader = "transformers.AutoModelForCausalLM.from_pretrained"
        yield patch(loader, partial(made_from_config, setup))
    if code.pages_states:
        yield patch("bitsandbytes.functional.get_paged", paged_on_host)
        # zeros that nobody touches
        yield patch("bitsandbytes.functional.fill", lambda tensor, value, **_: tensor)
        yield patch("bitsandbytes.functional.prefetch_tensor", lambda tensor, to_cpu=False: None)


def made_from_config(
    setup: Job, name: str, *, dtype, device_map: str, quantization_config=None, **choices
):
    """What ``from_pretrained`` loads: the family's module in ``dtype``, and in 4 bits where that is asked."""
    from stepscope.program.hugging_face import hugging_face_model

    config = config_of(setup.model) | choices
    try:
        model = hugging_face_model(config, str(dtype).removeprefix("torch."))
    except ValueError as error:  # transformers is not there, or does not load
        raise ImportError(str(error)) from error
    model = model.to(device_map).train()
    if quantization_config is not None:
        put_in_4_bits(model)
    return model


def put_in_4_bits(model) -> None:
    """Every linear layer but the head as bitsandbytes' ``Linear4bit``, as the loader of transformers does it."""
    from torch import nn

    from stepscope.program.job import in_4_bits

    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            # GPT-2's linear layer, its matrix the other way round
            if type(layer).__name__ == "Conv1D":
                where = {"device": layer.weight.device, "dtype": layer.weight.dtype}
                setattr(parent, name, in_4_bits(nn.Linear(*layer.weight.shape, **where)))
            elif isinstance(layer, nn.Linear) and name != "lm_head":
                setattr(parent, name, in_4_bits(layer))
    model.is_loaded_in_4bit = True  # what peft looks for


def paged_on_host(*shape: int, dtype, device):
    """A state that the driver moves: on the host, where torch's allocator counts none of it."""
    import torch

    # a state of gigabytes would be real here
    tensor = torch.zeros(1, dtype=dtype, device="cpu").expand(shape)
    tensor.is_paged, tensor.page_deviceid = True, 0
    return tensor
