"""What a program may ask of a tensor that has a shape and no values, and what it is told.

A loss that is printed becomes NaN (a whole number 0), with one warning. A branch on a tensor, or a shape that
depends on values, has no answer: ``NeedsValues`` names the call and says what to write in its place.
"""

import functools
import itertools
import linecache
import math
import sys
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from unittest.mock import patch

import torch
import torch._dynamo.eval_frame
import torch.utils.data
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from memkit.program.doors import is_wrapper, line_of, outside
from memkit.program.interrupts import HeldBack
from memkit.tracing.constants import KnownValues
from memkit.units import MIB

OWN_HOME, TORCH_HOME = str(Path(__file__).parents[1]), str(Path(torch.__file__).parent)
LIBRARY_HOME = str(Path(TORCH_HOME).parent)
BETWEEN = (OWN_HOME, torch.utils._device.__file__, torch.overrides.__file__)
"""Files whose frames may stand between a call that asks for values and the code that made it: modes of torch, as of
``with torch.device("cuda")``, hand a call on."""
INITIALISERS = torch.nn.init.__file__
"""Its loops draw again while a value is out of bounds; they are told so twice, which shows all they hold."""

LBFGS = sys.modules[torch.optim.LBFGS.__module__].__file__
"""It asks whether it is done, and whether an update may be kept: ``if ys > 1e-10``."""

DISTRIBUTIONS = torch.distributions.distribution.__file__
"""It asks whether arguments and samples are allowed; they are taken to be."""

MAX_STAND_IN_BYTES = 16 * MIB

COMPILED = (
    "a compiled function is traced as the code it was made of: compiled, it keeps other tensors for its "
    "backward and makes fewer in between; measure_memory runs it compiled"
)


MOST = {
    torch.linalg.matrix_exp: "matrices of a 1-norm above 3",
    **dict.fromkeys((torch.matrix_exp, Tensor.matrix_exp), "matrices of a 1-norm above 3"),
    **dict.fromkeys((torch.cumprod, Tensor.cumprod, torch.prod, Tensor.prod), "factors with zeros among them"),
}
"""Functions whose own memory, or whose backward's, follows from values: those that are taken to be there."""


COMPARED = ("__lt__", "__le__", "__gt__", "__ge__")
COMPUTED = tuple(f"__{side}{name}__" for name in ("add", "sub", "mul", "truediv") for side in ("", "r"))
"""What a program does with a value that it has read: a branch, or an average of several."""


class NeedsValues(RuntimeError):
    """An operation asked for the values of a tensor, and the trace has only shapes."""

    def __init__(self, operation: str, *, can_assume: bool = True):
        line, own = program_line(), own_line()
        where = line if line.startswith(own) else f"{own}: in {line}"
        words = (
            f"{where}: {operation} needs the values of a tensor, and a trace has only shapes and dtypes. Take "
            "it out of build and step, or write it with a fixed shape: torch.where or masked_fill in place of a mask "
            "as index, a constant in place of a branch. "
        )
        offer = (
            "Or say what comes out (how many rows, the longest target, a value, 1 or 0 for a branch): "
            f"trace_memory(..., assume={{{own!r}: 128}}), or memkit report --assume {own}=128"
        )
        super().__init__(words + (offer if can_assume else "No one number says what comes out: use measure_memory"))


def has_values(tensor: Tensor) -> bool:
    """Whether the tensor's values are known: it is a real one, or a fake copy of a constant."""
    if isinstance(tensor, FakeTensor):
        return tensor.constant is not None
    return not tensor.is_meta


def no_value(tensor: Tensor) -> float:
    """What stands for a value that nobody knows."""
    return math.nan if tensor.is_floating_point() or tensor.is_complex() else 0


def storage_key(tensor: Tensor) -> int:
    """Names the storage; 0 where the tensor has none of its own (sparse, inside torch.func)."""
    if tensor.layout is not torch.strided or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return 0
    return tensor.untyped_storage()._cdata


class ShapesOnly(TorchFunctionMode):
    """Answers every call that asks for values; ``rules`` says which call is answered by what."""

    def __init__(self):
        super().__init__()
        self.known = KnownValues()
        self.rejects = itertools.cycle((True, True, False))
        self.warned: set[str] = set()
        self.interrupts = HeldBack()
        self.rules = {}
        self.rules.update(dict.fromkeys((Tensor.item, Tensor.__float__, Tensor.tolist, Tensor.numpy), answer))
        self.rules.update(dict.fromkeys((Tensor.__bool__, Tensor.__int__, Tensor.__index__), refuse))
        self.rules[Tensor.__format__] = answer
        self.rules |= dict.fromkeys(MOST, at_most)
        self.rules[Tensor.add_] = add_in_place
        self.rules[torch._C._nn.one_hot] = one_hot
        self.rules |= dict.fromkeys((torch.ctc_loss, torch.nn.functional.ctc_loss), ctc_loss)
        self.rules |= dict.fromkeys((torch._pack_padded_sequence, torch._VF._pack_padded_sequence), pack)
        for name in ("isnan", "isinf", "isfinite"):
            self.rules |= dict.fromkeys((getattr(torch, name), getattr(Tensor, name)), as_finite)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        rule = self.rules.get(func)
        if rule is not None:
            out = rule(self, func, args, kwargs or {})
        else:
            out = func(*args, **kwargs) if kwargs else func(*args)
        if self.interrupts.is_waiting:  # between two calls: inside one it could abort the process
            raise KeyboardInterrupt
        return out

    def also_in(self, callback):
        """``callback`` under these rules also where torch calls it from inside an operation."""

        @functools.wraps(callback)
        def with_rules(*args):
            if torch._C._len_torch_function_stack():
                return callback(*args)
            with self:
                return callback(*args)

        return with_rules

    def tell_no_values(self, call: str) -> None:
        """Warn, once, that a program asks for values."""
        text = (
            f"Tensor.{call}: a trace has no values; the result is NaN, 0 for whole numbers. A step that "
            "returns early on it is traced only as far as it goes, and a best state that is kept is missing; "
            f"assume={{{own_line()!r}: 0.5}} says the value"
        )
        self.warn_once("values", text)

    def without_values(self, tensor: Tensor, call: str) -> Tensor:
        """A tensor of this shape in host memory, all NaN (0 for whole numbers)."""
        self.tell_no_values(call)
        with _disable_current_modes():
            value = no_value(tensor)
            shape, size = tensor.shape, tensor.numel() * tensor.element_size()
            if size > MAX_STAND_IN_BYTES:  # one value, seen everywhere
                return torch.full((), value, dtype=tensor.dtype, device="cpu").expand(shape)
            return torch.full(shape, value, dtype=tensor.dtype, device="cpu")

    def warn_once(self, about: str, text: str, *, is_told_in_torch: bool = False) -> None:
        """Tell the program, at its own line; torch's own code (offloading to the host) only where asked."""
        frame = calling_frame()
        frame = outside(frame, TORCH_HOME) if is_told_in_torch else frame
        if about not in self.warned and not frame.f_code.co_filename.startswith(TORCH_HOME):
            self.warned.add(about)
            warnings.warn_explicit(text, UserWarning, frame.f_code.co_filename, frame.f_lineno)


def program_line() -> str:
    """The program's own line that runs now."""
    frame = outside(outside(calling_frame(), TORCH_HOME, "<"), TORCH_HOME, OWN_HOME)
    return line_of(frame) if frame else "the step"


def own_line() -> str:
    """``file:line`` of the nearest code that is not an installed library's; the program's line where all is."""
    frame = outside(calling_frame(), LIBRARY_HOME, TORCH_HOME, OWN_HOME, "<")
    return (line_of(frame) if frame else program_line()).rpartition(" ")[0]


def calling_frame() -> FrameType | None:
    """The frame, torch's own or the program's, that called into this package."""
    return outside(sys._getframe(1), *BETWEEN)


def answer(mode: ShapesOnly, func, args, kwargs):
    """NaN for the value that a program reads, 0 where it is a whole number."""
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
    with _disable_current_modes():
        if func in (Tensor.tolist, Tensor.numpy):
            return func(stand_in)
        value = no_value(tensor) or (0 if func is Tensor.item else 0.0)
        if func is Tensor.__format__:
            return format(value, *args[1:])
        return stand_in_number(mode, value) if func is Tensor.item else value


def stand_in_number(mode: ShapesOnly, value: complex) -> complex:
    """NaN or 0 for a value that nobody knows; who compares it, or a sum with it, is told where that was decided."""
    kind = type(value)
    if kind not in (int, float):
        return value
    line = own_line()

    def compared(name: str) -> Callable:
        def compare(self, other: object) -> bool:
            text = (
                f"{own_line()}: compared with a value that a trace does not have, as {value}: what runs if it is "
                "smaller or larger (a best state that is kept) may be missing. Say the value: "
                f"assume={{{line!r}: 0.5}}"
            )
            mode.warn_once(f"compared at {own_line()}", text)
            return getattr(kind, name)(self, other)

        return compare

    def computed(name: str) -> Callable:
        def compute(self, *others: object) -> object:
            result = getattr(kind, name)(self, *others)
            return stand_in_number(mode, result) if type(result) in (int, float) else result

        return compute

    names = {name: compared(name) for name in COMPARED} | {name: computed(name) for name in COMPUTED}
    return type(kind.__name__, (kind,), names)(value)


def refuse(mode: ShapesOnly, func, args, kwargs):
    """No answer: what the program does next depends on it."""
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
    if caller == INITIALISERS:
        return next(mode.rejects)
    if caller == DISTRIBUTIONS:
        return True
    raise NeedsValues(f"Tensor.{func.__name__}")


def at_most(mode: ShapesOnly, func, args, kwargs):
    """A call that takes what it takes for the values that need most, with a warning; of products the backward alone."""
    is_product = "prod" in func.__name__
    if not is_product or (torch.is_grad_enabled() and args[0].requires_grad):
        which = f"{func.__name__}'s backward" if is_product else func.__name__
        mode.warn_once(func.__name__, f"{which} is traced as for {MOST[func]}: other values may take less")
    return func(*args, **kwargs)


def pack(mode: ShapesOnly, func, args, kwargs):
    """Lengths are read in the host's memory, where a program makes them without ``device=``."""
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


def ctc_loss(_, func, args, kwargs):
    """Lengths in a list become a tensor, as torch makes one of them where a fake one has no memory."""
    scores, targets, *lengths = args[:4]
    as_tensors = [x if isinstance(x, Tensor) else torch.tensor(x, device=scores.device) for x in lengths]
    return func(scores, targets, *as_tensors, *args[4:], **kwargs)


def add_in_place(_, func, args, kwargs):
    """A factor that is a tensor counts as 1: torch reads its value, which decides nothing."""
    if isinstance(kwargs.get("alpha"), Tensor):
        kwargs = kwargs | {"alpha": 1}
    return func(*args, **kwargs)


def as_finite(mode: ShapesOnly, func, args, kwargs):
    """Values that nobody knows count as finite, as the gradients of a gradient scaler do."""
    out = func(*args, **kwargs)
    if mode.known.value_of(args[0]) is None:
        shape, value = tuple(out.shape), func.__name__ == "isfinite"
        mode.known.keep(out, lambda: torch.full(shape, value))
    return out


def not_followed(what: object, instead: str) -> NotImplementedError:
    """The refusal of what a trace cannot follow, with the program's line and what to write in its place."""
    return NotImplementedError(f"{program_line()}: a trace does not follow {what}; {instead}, or use measure_memory")


def refuse_unseen(tensors: list[Tensor]) -> None:
    """Raises: NotImplementedError: a sparse tensor or one inside ``torch.func``: storages are not seen."""
    for tensor in tensors:
        if is_wrapper(tensor):
            continue
        is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        if is_wrapped or tensor.layout is not torch.strided:
            if is_wrapped:
                raise not_followed("torch.func's transforms", "take gradients by torch.autograd.grad")
            raise not_followed("sparse tensors", "write it with dense ones (scatter_add_, sparse=False)")


def refuse_workers(loader, *_):
    """In place of an iterator whose worker processes would inherit the trace."""
    raise ValueError(
        f"{program_line()}: DataLoader(num_workers={loader.num_workers}) starts processes, which a trace does not "
        "follow; num_workers=0 allocates the same on the device"
    )


@contextmanager
def maps_of_bitsandbytes():
    """bitsandbytes keeps its maps of codes from call to call: those of a trace have no values, and are forgotten."""
    maps = getattr(sys.modules.get("bitsandbytes.functional"), "name2qmap", {})
    before = dict(maps)
    maps.clear()
    try:
        yield
    finally:
        maps = getattr(sys.modules.get("bitsandbytes.functional"), "name2qmap", maps)
        maps.clear()
        maps.update(before)


@contextmanager
def shapes_only(mode: ShapesOnly):
    """Run under ``mode``, in the callbacks of autograd too; a gradient scaler finds every gradient finite."""
    make_hooks = torch.autograd.graph.saved_tensors_hooks.__init__

    def init_hooks(hooks, pack_hook, unpack_hook):
        make_hooks(hooks, mode.also_in(pack_hook), mode.also_in(unpack_hook))

    def step_always(scaler, optimizer, optimizer_state, *args, **kwargs):
        return optimizer.step(*args, **kwargs)

    def as_eager(callback):
        if callable(callback):
            mode.warn_once("compiled", COMPILED, is_told_in_torch=True)
        return from_stance(callback)

    def save_nothing(*_, **__):
        mode.warn_once("saved", "torch.save: a trace has no values, and writes no file")

    from_stance = torch._dynamo.eval_frame._callback_from_stance
    set_anomaly = torch.set_anomaly_enabled  # without the search for NaN: there are no values
    with (
        maps_of_bitsandbytes(),
        patch.object(torch.utils.data.dataloader, "_MultiProcessingDataLoaderIter", refuse_workers),
        patch.object(torch.nn.parallel.distributed, "_verify_param_shape_across_processes", lambda *_, **__: None),
        torch.compiler.set_stance("force_eager"),
        patch.object(torch, "save", save_nothing),
        patch.object(torch, "set_anomaly_enabled", lambda mode, *_, **__: set_anomaly(mode, False)),
        patch.object(torch._dynamo.eval_frame, "_callback_from_stance", as_eager),
        patch.object(torch.autograd.graph.saved_tensors_hooks, "__init__", init_hooks),
        patch.object(torch.amp.grad_scaler.GradScaler, "_maybe_opt_step", step_always),
        mode,
    ):
        yield mode
