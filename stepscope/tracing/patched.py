"""torch and libraries where they would do otherwise on tensors without values, put right."""

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import torch
import torch._dynamo.eval_frame
import torch.utils.data

from stepscope.tracing.checkpoints import saved_without_values, unflattened, write_safetensors
from stepscope.tracing.scratch_disk import ON
from stepscope.tracing.values import ShapesOnly

AS_MADE_OF = "a compiled function is traced as the code it was made of"
COMPILED = (
    f'{AS_MADE_OF}: by mode="default" it takes no less than weights, gradients and states, and about all that this '
    "code keeps, or less. That is no proof: of eight programs that Inductor ran on a CPU one took more, by 4%, with "
    "convolutions, which it lays out anew. CUDA graphs (reduce-overhead) and autotuning may add to it: measure_memory "
    "runs it compiled"
)


@contextmanager
def replaced(*rows: tuple[object, str, object]) -> Iterator[None]:
    """Inside, each of these homes has this value under this name."""
    with ExitStack() as stack:
        for home, name, value in rows:
            stack.enter_context(patch.object(home, name, value))
        yield


@contextmanager
def asks_quietly(tracer, module):
    """DTensor runs each operation once more, to know the result's shape: ``tracer`` pauses meanwhile."""
    ask = module.ShardingPropagator._propagate_tensor_meta_non_cached

    def quietly(propagator, schema):
        name, first = schema.op._opname, schema.args_schema[0] if schema.args_schema else None
        if name.endswith("_") and not name.startswith("_") and getattr(first, "tensor_meta", None):
            # in place; run on a tensor of "cuda" some would look for a real one
            return first.tensor_meta
        tracer.is_paused = True
        try:
            return ask(propagator, schema)
        finally:
            tracer.is_paused = False

    with patch.object(module.ShardingPropagator, ask.__name__, quietly):
        yield


@contextmanager
def forgets_maps(tracer, module):
    """bitsandbytes keeps maps of codes from call to call, and those of a trace have no values."""
    if not tracer.log.events:  # loaded before the trace: these are of a real run
        module.name2qmap.clear()
    try:
        yield
    finally:
        module.name2qmap.clear()


OF_LIBRARIES = {
    "torch.distributed.tensor._sharding_prop": asks_quietly,
    # It would keep the state of a real card's generator, and split each draw over the ranks.
    "torch.distributed.tensor._dispatch": lambda _, module: patch.object(
        module, "is_rng_supported_mesh", lambda mesh: False, create=True
    ),
    "bitsandbytes.functional": forgets_maps,
    # From 5.0 on it looks at no mask that is fake, and then takes another road than a real run.
    "transformers.utils.import_utils": lambda _, module: patch.object(
        module, "is_fake_tensor", lambda _: False, create=True
    ),
    "safetensors.torch": lambda tracer, module: patch.multiple(
        module,
        create=True,
        serialize_file=tracer.at_file("save", write_safetensors),
        load_file=tracer.at_file("load", module.load_file),
        _flatten=unflattened,
        _flatten_as_ptr=unflattened,
    ),
}
"""Modules that need a patch, and the context that makes it."""


def patching_libraries(tracer, stack: ExitStack) -> Callable[[], None]:
    """Patches the modules that have been loaded since; ``stack`` takes each patch back at the trace's end."""
    waiting = dict(OF_LIBRARIES)

    def look() -> None:
        for disk in ON:
            disk.look()
        for name in waiting.keys() & sys.modules.keys():
            stack.enter_context(waiting.pop(name)(tracer, sys.modules[name]))

    return look


def write_empty(file, **_) -> None:
    """In place of a scripted module's ``save``."""
    Path(file).write_bytes(b"")


def without_workers(loader):
    """In place of an iterator with worker processes: one of this process, which makes the same batches."""
    alone = copy.copy(loader)
    alone.num_workers, alone.timeout = 0, 0
    return torch.utils.data.dataloader._SingleProcessDataLoaderIter(alone)


@contextmanager
def as_a_script_needs(mode: ShapesOnly):
    """Workers, compiled functions and files of a script that is traced under ``mode``."""

    def as_eager(callback):
        if callable(callback):
            mode.warn_once("compiled", COMPILED, in_torch=True, in_report=True)
        return from_stance(callback)

    def scripted(code, *_, **__):
        """The code itself: torch.jit reads the source of functions for which others stand here."""
        mode.warn_once("scripted", f"torch.jit.script: {AS_MADE_OF}", in_torch=True, in_report=True)
        if isinstance(code, torch.nn.Module):
            vars(code).setdefault("save", write_empty)
        return code

    from_stance = torch._dynamo.eval_frame._callback_from_stance
    set_anomaly = torch.set_anomaly_enabled  # without the search for NaN: there are no values
    ddp = torch.nn.parallel.distributed
    with (
        torch.compiler.set_stance("force_eager"),
        saved_without_values(mode),
        replaced(
            (torch.utils.data.dataloader, "_MultiProcessingDataLoaderIter", without_workers),
            (ddp, "_verify_param_shape_across_processes", lambda *_, **__: None),
            (torch.jit, "script", scripted),
            (torch, "set_anomaly_enabled", lambda mode, *_, **__: set_anomaly(mode, False)),
            (torch._dynamo.eval_frame, "_callback_from_stance", as_eager),
        ),
    ):
        yield mode
