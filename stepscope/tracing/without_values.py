"""What a program may ask of a tensor that has no values, and what it is told: ``ShapesOnly``.

A loss that is printed (``.item()`` in nearly every training loop) becomes 1.0, a whole number 0,
with one warning. A branch on a tensor has no answer: ``NeedsValues`` names the call and says what
to write in its place. The rest of the file is those who ask and get an answer all the same: torch's
own initialisers and optimizers.
"""

import itertools
import linecache
import math
import os
import sys
import warnings

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from memkit.program.hooks import outside
from memkit.tracing import shapes
from memkit.units import MIB
from stepscope.tracing.known import KnownValues
from stepscope.tracing.refusals import TORCH_HOME, NeedsValues, calling_frame, not_followed, own_line

MAX_STAND_IN_BYTES = 16 * MIB


def has_values(tensor: Tensor) -> bool:
    """Whether the tensor's values are known: it is a real one, or a fake copy of a constant."""
    if isinstance(tensor, FakeTensor):
        return tensor.constant is not None
    return not tensor.is_meta


def no_value(tensor: Tensor) -> float:
    """What stands for a value that nobody knows."""
    return 1.0 if tensor.is_floating_point() or tensor.is_complex() else 0  # finite: ``if isnan(loss): exit`` goes on


def storage_key(tensor: Tensor) -> int:
    """Names the storage; 0 where the tensor has none of its own (sparse, inside torch.func)."""
    if tensor.layout is not torch.strided or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return 0
    return tensor.untyped_storage()._cdata


class ShapesOnly(shapes.ShapesOnly):
    """Answers every call that asks for values; ``rules`` says which call is answered by what."""

    def __init__(self):
        super().__init__()
        self.known = KnownValues()
        self.rejects = itertools.cycle((True, True, False))
        self.warned: set[str] = set()
        self.about_number: list[str] = []  # what a reader of the peak has to know
        self.rules |= {call: rule for rule, calls in RULES.items() for call in calls}

    def tell_no_values(self, call: str) -> None:
        """Warn, once, that a program asks for values."""
        text = (
            f"Tensor.{call}: a trace has no values; the result is 1.0, 0 for whole numbers. A step that "
            "returns early on it is traced only as far as it goes, and a best state that is kept may be missing. "
            f"Say the value: assume={{{own_line()!r}: 0.5}}, or stepscope report --assume {own_line()}=0.5"
        )
        self.warn_once("values", text)

    def without_values(self, tensor: Tensor, call: str) -> Tensor:
        """A tensor of this shape in host memory, all 1.0 (0 for whole numbers)."""
        self.tell_no_values(call)
        with _disable_current_modes():
            value = no_value(tensor)
            shape, size = tensor.shape, tensor.numel() * tensor.element_size()
            if size > MAX_STAND_IN_BYTES:  # one value, seen everywhere
                return torch.full((), value, dtype=tensor.dtype, device="cpu").expand(shape)
            return torch.full(shape, value, dtype=tensor.dtype, device="cpu")

    def warn_once(
        self, about: str, text: str, *, is_told_in_torch: bool = False, is_about_number: bool = False
    ) -> None:
        """Tell the program, at its own line; torch's own code only where asked.

        ``is_about_number``: it stands beside the peak in a report, too.
        """
        frame = calling_frame()
        frame = outside(frame, TORCH_HOME) if is_told_in_torch else frame
        if about not in self.warned and not frame.f_code.co_filename.startswith(TORCH_HOME):
            self.warned.add(about)
            self.about_number += [text] * is_about_number
            warnings.warn_explicit(text, UserWarning, frame.f_code.co_filename, frame.f_lineno)


def answer(mode: ShapesOnly, func, args, kwargs):
    """1.0 for the value that a program reads, 0 where it is a whole number."""
    mode.known.num_questions += 1
    tensor = args[0]
    if has_values(tensor):
        return func(*args, **kwargs)
    known = mode.known.value_of(tensor)
    if known is not None:
        with _disable_current_modes():
            return func(known.clone(), *args[1:], **kwargs)
    number = mode.known.assumptions.here() if func in (Tensor.item, Tensor.__float__) else None
    if number is not None:
        return number
    stand_in = mode.without_values(tensor, func.__name__)
    if calling_frame().f_code.co_filename == LBFGS:
        return math.nan  # it ends where two losses are equal
    with _disable_current_modes():
        if func in (Tensor.tolist, Tensor.numpy):
            return func(stand_in)
        value = no_value(tensor) or (0 if func is Tensor.item else 0.0)
        if func is Tensor.__format__:
            return format(value, *args[1:])
        return value


INITIALISERS = torch.nn.init.__file__
"""Its loops draw again while a value is out of bounds: they are told so twice."""

LBFGS = sys.modules[torch.optim.LBFGS.__module__].__file__
"""It asks whether it is done, and whether an update may be kept: ``if ys > 1e-10``."""

GENERATION = os.path.join("transformers", "generation", "utils.py")
"""It asks after each token whether all sequences have ended."""

LONGEST = "generate is traced to its longest: no sequence ends before max_new_tokens"

DISTRIBUTIONS = torch.distributions.distribution.__file__
"""It asks whether arguments and samples are allowed; they are taken to be."""


def refuse(mode: ShapesOnly, func, args, kwargs):
    """No answer: what the program does next depends on it."""
    mode.known.num_questions += 1
    if has_values(args[0]):
        return func(*args, **kwargs)
    known = mode.known.value_of(args[0])
    if known is not None:
        with _disable_current_modes():
            return func(known)
    number = mode.known.assumptions.here()
    if number is not None:
        return bool(number) if func is Tensor.__bool__ else int(number)
    frame = calling_frame()
    caller = frame.f_code.co_filename
    if caller == LBFGS and frame.f_locals.get("line_search_fn", "") is None:
        text = "LBFGS is traced as if it took every iteration and kept each update"
        mode.warn_once("lbfgs", text, is_told_in_torch=True)
        return "ys >" in linecache.getline(caller, frame.f_lineno)
    if caller.endswith(GENERATION):
        mode.warn_once("generate", LONGEST, is_told_in_torch=True)
        return False
    if caller == INITIALISERS:
        return next(mode.rejects)
    if caller == DISTRIBUTIONS:
        return True
    raise NeedsValues(f"Tensor.{func.__name__}")


def pack(mode: ShapesOnly, func, args, kwargs):
    """Lengths are read in the host's memory, where a program makes them without ``device=``."""
    mode.known.num_questions += 1
    tensor, lengths, *rest = args
    lengths = mode.known.value_of(lengths)
    if lengths is None:
        raise not_followed("pack_padded_sequence with lengths that it does not know", 'make them with device="cpu"')
    return func(tensor, lengths, *rest, **kwargs)


def one_hot(_, func, args, kwargs):
    """Ones scattered into zeros; torch compares fake numbers with all classes instead."""
    num_classes = kwargs.get("num_classes", args[1] if len(args) > 1 else -1)
    if num_classes <= 0 or args[0].numel() == 0:
        return func(*args, **kwargs)
    zeros = torch.zeros(*args[0].shape, num_classes, dtype=torch.int64, device=args[0].device)
    return zeros.scatter_(-1, args[0].unsqueeze(-1), 1)


def add_in_place(_, func, args, kwargs):
    """A factor that is a tensor, as LBFGS has one, counts as 1: its value decides nothing."""
    if isinstance(kwargs.get("alpha"), Tensor):
        kwargs = kwargs | {"alpha": 1}
    return func(*args, **kwargs)


def next_token(mode: ShapesOnly, func, args, kwargs):
    """The token that ``generate`` draws or takes is one from the middle of the vocabulary, which ends no sequence."""
    out = func(*args, **kwargs)
    if calling_frame().f_code.co_filename.endswith(GENERATION) and mode.known.value_of(out) is None:
        shape, token = tuple(out.shape), args[0].shape[-1] // 2
        mode.warn_once("generate", LONGEST, is_told_in_torch=True)
        mode.known.keep(out, lambda: torch.full(shape, token))
    return out


def as_finite(mode: ShapesOnly, func, args, kwargs):
    """Values that nobody knows count as finite, as the gradients of a gradient scaler do."""
    out = func(*args, **kwargs)
    if mode.known.value_of(args[0]) is None:
        shape, value = tuple(out.shape), func.__name__ == "isfinite"
        mode.known.keep(out, lambda: torch.full(shape, value))
    return out


RULES = {
    answer: (Tensor.item, Tensor.__float__, Tensor.tolist, Tensor.numpy, Tensor.__format__),
    refuse: (Tensor.__bool__, Tensor.__int__, Tensor.__index__),
    as_finite: [getattr(home, name) for home in (torch, Tensor) for name in ("isnan", "isinf", "isfinite")],
    add_in_place: (Tensor.add_,),
    next_token: (torch.multinomial, torch.argmax),
    one_hot: (torch._C._nn.one_hot,),
    pack: (torch._pack_padded_sequence, torch._VF._pack_padded_sequence),
}
"""Which calls each rule answers, on both devices."""
