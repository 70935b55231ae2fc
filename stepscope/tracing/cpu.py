"""The CPU's rules for programs that nobody here wrote: what is refused there, and libraries' kinds of tensors."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from memkit.tracing.cpu import fake_cpu
from memkit.tracing.shapes import deepcopied
from stepscope.tracing.patched import as_a_script_needs
from stepscope.tracing.refusals import not_followed, refusing
from stepscope.tracing.values import ShapesOnly


def not_here(what: str) -> Callable:
    """The refusal of what reads memory in C++, where a fake tensor has none."""
    return refusing(f"{what} on the CPU's rules", 'trace it with device="cuda"')


@contextmanager
def fake_cpu_for_script(tracer) -> Iterator[ShapesOnly]:
    """Inside, every new tensor is fake."""
    with (
        fake_cpu(tracer, ShapesOnly()) as mode,
        as_a_script_needs(mode),
        patch.object(Tensor, "_make_subclass", staticmethod(make_subclass)),
        patch.object(
            torch.nn.parallel.DistributedDataParallel, "__init__", not_here("DDP's reducer")
        ),
    ):
        mode.rules[Tensor.__deepcopy__] = deepcopied
        mode.rules[torch.asarray] = from_storage
        mode.rules[torch._VF._pad_packed_sequence] = not_here("pad_packed_sequence")
        mode.rules[torch.nn.functional.ctc_loss] = not_here("ctc_loss")
        yield mode


def from_storage(_, func, args, kwargs):
    """safetensors reads weights from a mapped file, which a CPU's step then shares and does not allocate."""
    if isinstance(args[0], torch.UntypedStorage):
        raise not_followed(
            "weights in a mapped file (from_pretrained) on the CPU's rules",
            "make them by from_config",
        )
    return func(*args, **kwargs)


MAKE_SUBCLASS = Tensor._make_subclass


def make_subclass(kind: type, data: Tensor, requires_grad: bool = False, **options) -> Tensor:
    """``Tensor._make_subclass``, which refuses fake data: a view of them of a kind that is fake too.

    For a library's kind of tensor: bitsandbytes' ``Params4bit``.
    """
    if not isinstance(data, FakeTensor):
        return MAKE_SUBCLASS(kind, data, requires_grad, **options)
    view = data.detach().requires_grad_(requires_grad)
    view.__class__ = type(kind.__name__, (kind, FakeTensor), {})
    return view
