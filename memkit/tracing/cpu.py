"""A CPU without memory: fake tensors on which torch runs the CPU's own operations, and what they miss.

``FakeTensorMode`` gives each tensor the device "cpu" and no bytes, so that torch takes the same road as on a
real CPU: the CPU's autocast lists, its attention kernel, its optimizers one tensor at a time. Four things
differ from a real run and are mended here: values, ``Module.to``, random states, and a library's own kind of tensor.
"""

import functools
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from memkit.tracing.without_values import ShapesOnly, program_line, shapes_only

aten = torch.ops.aten


def as_laid_out(func, args: tuple, out: object) -> tuple[object, list[int]]:
    """The result as the CPU's kernel lays it out in memory, and the bytes of copies it makes of what it reads.

    LayerNorm's backward makes a contiguous gradient of contiguous inputs; its fake kernel follows their strides.
    Source: ATen/native/layer_norm.cpp (``layer_norm_backward_cpu``) of torch 2.13.
    """
    if func is not aten.native_layer_norm_backward.default or out[0] is None:
        return out, []
    copies = [x.nbytes for x in args[:2] if not x.is_contiguous()]
    return (torch.empty_like(out[0], memory_format=torch.contiguous_format), *out[1:]), copies


@contextmanager
def fake_cpu(note: Callable[[Tensor, str], None]) -> Iterator[ShapesOnly]:
    """Inside, every new tensor is fake. ``note`` is told of what is allocated below every dispatch mode."""
    get_rng_state = torch.get_rng_state
    transformers = sys.modules.get("transformers.utils.import_utils")

    def noted_rng_state() -> Tensor:
        """The generator's state, which checkpointing keeps for each segment."""
        state = get_rng_state()
        note(state, "get_rng_state")
        return state

    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        shapes_only(ShapesOnly()) as mode,
        patch.object(torch, "get_rng_state", noted_rng_state),
        patch.object(torch.random, "get_rng_state", noted_rng_state),
        patch.object(torch.nn.Module, "_apply", apply_to_data),
        patch.object(Tensor, "_make_subclass", staticmethod(make_subclass)),
        patch.object(torch.nn.parallel.DistributedDataParallel, "__init__", refuse_reducer),
        # it looks at no mask that is fake, and then takes another road than a real run
        patch.object(transformers, "is_fake_tensor", lambda _: False) if transformers else nullcontext(),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")  # by copy.deepcopy
        yield mode


MAKE_SUBCLASS = Tensor._make_subclass


@functools.cache
def fake_kind(kind: type) -> type:
    """A library's kind of tensor (bitsandbytes' ``Params4bit``) that is a fake one too."""
    return type(kind.__name__, (kind, FakeTensor), {})


def make_subclass(kind: type, data: Tensor, requires_grad: bool = False, **options) -> Tensor:
    """``Tensor._make_subclass``, which refuses fake data: a view of them that is of this kind."""
    if not isinstance(data, FakeTensor):
        return MAKE_SUBCLASS(kind, data, requires_grad, **options)
    view = data.detach().requires_grad_(requires_grad)
    view.__class__ = fake_kind(kind)
    return view


def refuse_reducer(*_, **__) -> None:
    """In place of a constructor whose C++ code would read what fake tensors do not have."""
    raise NotImplementedError(
        f"{program_line()}: the reducer of DistributedDataParallel reads memory, and a trace on the CPU's rules has "
        'none; trace it with device="cuda", or measure it'
    )


def apply_to_data(
    module: torch.nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True
) -> torch.nn.Module:
    """``Module._apply`` as it treats real tensors; it treats fake ones otherwise, and fails."""
    if recurse:
        for child in module.children():
            child._apply(fn)
    with torch.no_grad():
        for parameter in filter(lambda p: p is not None, module._parameters.values()):
            parameter.data = fn(parameter)
            if parameter.grad is not None:
                parameter.grad.data = fn(parameter.grad)
        buffers = {name: fn(buffer) for name, buffer in module._buffers.items() if buffer is not None}
        module._buffers.update(buffers)
    return module
