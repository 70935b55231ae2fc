"""Values in a trace: which are known, and what a program is told that asks for one that nobody knows.

A program may ask whether a mask of ones is all ones, or loop over ``linspace(0, 0.1, depth)``. The answer
follows from its text. Beside a small tensor that was made without chance from known values a real copy is
kept, by storage, so that views share it; where a value goes in that nobody knows, the copy is dropped. Small draws
of ``randint`` and ``randperm``, and one number of ``rand``, are known too: a trace's own, the same in every trace.

Of a tensor without values ``ShapesOnly`` answers. A loss that is printed (``.item()`` in nearly every training loop)
becomes 1.0, a whole number 0, with one warning. A branch on a tensor has no answer: ``NeedsValues`` names the call and
says what to write in its place. The rest of the file is those who ask and get an answer all the same: torch's own
initialisers and optimizers.
"""

import dis
import functools
import itertools
import linecache
import math
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import FrameType

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from memkit.program.hooks import outside, source_name
from memkit.tracing import shapes
from memkit.units import KIB, MIB
from stepscope.tracing.refusals import (
    TORCH_HOME,
    NeedsValues,
    calling_frame,
    not_followed,
    own_line,
)

MAX_BYTES, MAX_WHOLE_BYTES = 256 * KIB, 4 * MIB
"""Larger tensors hold nothing that a program asks for; of whole numbers, so many are nobody's tokens or their mask."""

FILLED = {"zeros_like", "new_zeros", "ones_like", "new_ones", "full_like", "new_full"}
"""Operations whose result is one value everywhere, whatever their first tensor holds."""

DRAWN = {"rand": torch.rand, "randint": torch.randint, "randperm": torch.randperm}
"""Draws by which programs shuffle, index and skip layers: made anew, with a seed of the trace's own."""

DECIDED_BY_ONE = dict.fromkeys(("bitwise_or", "logical_or"), True)
DECIDED_BY_ONE |= dict.fromkeys(("bitwise_and", "logical_and"), False)
"""Operations that return this value wherever one operand is it: a loop that ends at a length ends, whatever else."""

OVERWRITES = ("zero_", "fill_")
"""Operations in place after which a whole tensor is known, whatever it held before."""

CHANGES_SIZE = ("resize_", "set_", "resize_as_")

INDEX_BYTES = 8
UNIQUE = ("_unique", "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive")
ASSUMED = {
    *"_local_scalar_dense allclose bincount equal nonzero masked_select index".split(),
    *UNIQUE,
}
"""Operations for which one number says what they return."""


class Unknown(Exception):
    """An argument's values are not known."""


class KnownValues:
    """Real copies of tensors whose values follow from the program's text, by their storage."""

    def __init__(self):
        # of a storage, as long as it lives: the copy, or a function that makes it
        self.copies = weakref.WeakKeyDictionary()
        self.chance = torch.Generator("cpu").manual_seed(0)
        self.assumptions = Assumptions({})
        self.num_questions = 0  # so often a program has asked what only values could say

    def value_of(self, tensor: Tensor) -> Tensor | None:
        """A real tensor with the same values, None where they are not known or too many."""
        if not is_small(tensor) or tensor.layout is not torch.strided:
            return None
        if type(tensor) in (Tensor, torch.nn.Parameter) and not tensor.is_meta:
            return tensor
        if not isinstance(tensor, FakeTensor) and not tensor.is_meta:
            return None
        copy = self.copies.get(tensor.untyped_storage())
        if copy is None and tensor.numel():
            return None
        with _disable_current_modes(), torch.no_grad():
            if copy is None:  # what holds no value holds none that is unknown
                return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
            if not isinstance(copy, Tensor):
                copy = self.copies[tensor.untyped_storage()] = copy()
            if copy.dtype is not tensor.dtype:  # such as bytes that torch.load has read
                if copy.nbytes % tensor.element_size():
                    return None
                copy = copy.view(tensor.dtype)
            return copy.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def values_in(self, value: object) -> object:
        """Arguments of an operation with real tensors in them. Raises: Unknown."""
        if isinstance(value, Tensor):
            known = self.value_of(value)
            if known is None:
                raise Unknown
            return known
        if isinstance(value, (list, tuple)):
            return type(value)([self.values_in(item) for item in value])
        if isinstance(value, dict):
            names = value.keys() - {"pin_memory", "generator"}
            return {name: self.values_in(value[name]) for name in names}
        return torch.device("cpu") if isinstance(value, torch.device) else value

    def result_of(self, func, args: tuple, kwargs: dict | None) -> object:
        """What the operation returns, computed. Raises: Unknown."""
        if kind_and_writes(func)[0] != "operation":
            raise Unknown
        if func._opname == "_pack_padded_sequence":
            return self.packed(func, *args)
        args, kwargs = self.values_in(args), self.values_in(kwargs or {})
        with _disable_current_modes(), torch.no_grad():
            return func(*args, **kwargs)

    def rows_kept(self, func, args: tuple) -> int | None:
        """How many rows a mask keeps of a tensor that nobody knows, where the mask itself is known."""
        # a larger value than the program reckons with would make more bins
        if func._opname == "bincount":
            return args[2] if len(args) > 2 and args[2] else None
        if func._opname not in ("masked_select", "index"):
            return None
        masks = [item for item in tree_leaves(args[1]) if is_mask(item)]
        known = self.value_of(masks[0]) if len(masks) == 1 else None
        if known is None:
            return None
        with _disable_current_modes():
            if func._opname == "masked_select":
                known = known.expand(torch.broadcast_shapes(args[0].shape, known.shape))
            return int(known.count_nonzero())

    def packed(self, func, x: Tensor, lengths: Tensor, *batch_first: bool) -> tuple[Tensor, Tensor]:
        """Rows without padding, whose number follows from the lengths, and how many sequences go on at each place."""
        lengths = self.values_in(lengths)
        with _disable_current_modes():
            rows, sizes = func(torch.zeros(x.shape[:2]), lengths, *batch_first)
        return x.new_empty((len(rows), *x.shape[2:])), sizes

    def follow(self, func, args: tuple, kwargs: dict | None, out: object) -> None:
        """Keep up with an operation that has just run: ``out`` is its result without values."""
        (kind, written), name = kind_and_writes(func), func._opname
        if kind == "view":
            of_a_real_one = type(args[0]) is Tensor and isinstance(out, FakeTensor)
            if of_a_real_one and args[0].nbytes <= MAX_BYTES:
                with _disable_current_modes():
                    whole = torch.empty(0, dtype=args[0].dtype).set_(args[0].untyped_storage())
                self.copies.setdefault(out.untyped_storage(), whole)
        elif func.namespace == "c10d":
            self.sent(name, args)
        elif written:
            self.write(func, args, kwargs, kind, written)
        elif not is_small(out):
            return
        elif kind == "made" and (name != "rand" or out.numel() == 1):
            if name in FILLED:  # the program's own tensor would live on in the copy
                with _disable_current_modes():
                    args = only_shape(args[0]), *args[1:]
            choices = self.values_in(kwargs or {})
            if name in DRAWN:
                choices["generator"] = self.chance
            self.keep(out, lambda: DRAWN.get(name, func)(*args, **choices))
        elif name in DECIDED_BY_ONE and self.is_decided(name, args, out):
            value, shape, dtype = DECIDED_BY_ONE[name], tuple(out.shape), out.dtype
            self.keep(out, lambda: torch.full(shape, value, dtype=dtype))
        elif kind == "operation":
            with suppress(Unknown):
                real = self.result_of(func, args, kwargs)
                for shadow, value in zip(tree_leaves(out), tree_leaves(real), strict=True):
                    self.keep(shadow, lambda value=value: value)

    def write(self, func, args, kwargs, kind: str, written: tuple) -> None:
        """An operation in place: on the real copies too, or they are dropped."""
        if func._opname == "set_":  # another storage for the tensor; no value is written over
            return
        if func._opname in OVERWRITES and args[0].nbytes == args[0].untyped_storage().nbytes():
            shape, dtype, value = tuple(args[0].shape), args[0].dtype, args[1:]
            if not any(isinstance(item, Tensor) for item in value):
                self.keep(args[0], lambda: func(torch.empty(shape, dtype=dtype), *value))
                return
        values = [
            args[place] if place < len(args) else (kwargs or {}).get(name)
            for place, name in written
        ]
        storages = {
            t.untyped_storage()
            for t in tree_leaves(values)
            if isinstance(t, Tensor) and t.layout is torch.strided
        }
        are_known = [storage in self.copies for storage in storages]
        if not any(are_known):
            return
        try:
            if kind != "operation" or not all(are_known):
                raise Unknown
            self.result_of(func, args, kwargs)
        except Unknown:
            for storage in storages:
                self.copies.pop(storage, None)

    def sent(self, name: str, args: tuple) -> None:
        """A collective: of all ranks one runs, and the others are taken to send what it sends.

        So what is gathered is known where the part of this rank is. What is reduced is known no longer.
        """
        received = [tensor for tensor in tree_leaves(args[0]) if isinstance(tensor, Tensor)]
        mine = [tensor for tensor in tree_leaves(args[1:2]) if isinstance(tensor, Tensor)]
        values = self.value_of(mine[0]) if "allgather" in name and len(mine) == 1 else None
        part = None if values is None else values.flatten().clone()
        for tensor in received if name != "broadcast_" else []:
            self.copies.pop(tensor.untyped_storage(), None)
            if part is not None:
                shape = tuple(tensor.shape)
                times = tensor.numel() // len(part)
                self.keep(tensor, lambda shape=shape, times=times: part.repeat(times).view(shape))

    def is_decided(self, name: str, operands: tuple, out: Tensor) -> bool:
        """Whether one operand alone says what comes out: "or" with true everywhere, "and" with false."""
        if DECIDED_BY_ONE[name] and out.dtype is not torch.bool:
            return False
        known = [self.value_of(operand) for operand in operands if isinstance(operand, Tensor)]
        with _disable_current_modes():
            one = DECIDED_BY_ONE[name]
            return any(value is not None and bool((value == one).all()) for value in known)

    def keep(self, out: object, make: Callable[[], Tensor]) -> None:
        """Remember how the values of a new small tensor are made; nothing is computed before it is asked for."""
        if not isinstance(out, Tensor) or out.layout is not torch.strided:
            return
        storage = out.untyped_storage()
        num_bytes, dtype = storage.nbytes(), out.dtype
        if not 0 < num_bytes <= most_bytes(dtype) or not (
            out.is_meta or isinstance(out, FakeTensor)
        ):
            return
        place = tuple(out.shape), out.stride(), out.storage_offset()

        def copied() -> Tensor:
            copy = torch.empty(num_bytes // dtype.itemsize, dtype=dtype, device="cpu")
            copy.as_strided(*place).copy_(make())
            return copy

        self.copies[storage] = copied


def is_small(out: object) -> bool:
    """Whether what an operation returns is small enough to be kept."""
    results = out if isinstance(out, (tuple, list)) else (out,)
    tensors = (item for item in results if isinstance(item, Tensor))
    return all(t.numel() * t.element_size() <= most_bytes(t.dtype) for t in tensors)


def most_bytes(dtype: torch.dtype) -> int:
    """Bytes of the largest tensor of this dtype whose values are kept."""
    return MAX_BYTES if dtype.is_floating_point or dtype.is_complex else MAX_WHOLE_BYTES


def is_mask(index: object) -> bool:
    """Whether an index is a mask, which keeps so many rows as it has true values."""
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


def only_shape(tensor: Tensor) -> Tensor:
    """A real tensor of this shape and dtype, of a single value."""
    return torch.empty((), dtype=tensor.dtype, device="cpu").expand(tensor.shape)


@functools.cache
def kind_and_writes(func) -> tuple[str, tuple]:
    """``made`` from no tensor's values, ``operation``, ``view`` or ``other`` (unknown); arguments written over."""
    schema, name = func._schema, func._opname
    written = tuple(
        (place, a.name)
        for place, a in enumerate(schema.arguments)
        if a.alias_info and a.alias_info.is_write
    )
    is_view = not written and any(r.alias_info for r in schema.returns)
    if is_view and name != "lift_fresh":
        return "view", ()
    if func.namespace == "aten" and not written and (name in DRAWN or name in FILLED):
        return "made", ()
    is_seeded = torch.Tag.nondeterministic_seeded in func.tags
    if func.namespace != "aten" or is_seeded or "empty" in name or name in CHANGES_SIZE:
        return "other", written
    takes_tensors = any("Tensor" in str(argument.type) for argument in schema.arguments)
    return "operation" if takes_tensors else "made", written


class Assumptions:
    """What only values could say and a program says instead, by line: ``assume={"train.py:41": 128}``.

    The number answers whatever asks for values on that line, or below it in a library that the line calls.

    Raises: ValueError: a key that is no line, or a value that is no number of zero or more.
    """

    def __init__(self, numbers: Mapping[str, float]):
        for line, number in numbers.items():
            file, _, place = line.rpartition(":") if isinstance(line, str) else ("", "", "")
            if not file or not place.isdigit():
                raise ValueError(f"assume={{{line!r}: ...}} is no line such as 'train.py:41'")
            if not isinstance(number, (int, float)) or number < 0:
                raise ValueError(f"assume={{{line!r}: {number!r}}} is not a number of zero or more")
        self.numbers = dict(numbers)
        self.unused = set(numbers)

    def here(self) -> float | None:
        """The number for the innermost line of the call stack that has one."""
        frame = sys._getframe(1) if self.numbers else None
        while frame is not None:
            line = f"{source_name(frame.f_code.co_filename)}:{frame.f_lineno}"
            if line in self.numbers:
                self.unused.discard(line)
                return self.numbers[line]
            frame = frame.f_back
        return None

    def refuse_unused(self) -> None:
        """Raises: ValueError: a line asked for no values, so that its number may be meant for another."""
        if self.unused:
            raise ValueError(
                f"assume: nothing on {', '.join(sorted(self.unused))} asked for values in this trace"
            )


def result_of_size(func, args: tuple, kwargs: dict, number: float) -> tuple[object, int]:
    """The result of an operation that keeps ``number`` rows, and the bytes of scratch beside it."""
    tensor, name, size = args[0], func._opname, int(number)
    if name == "_local_scalar_dense":
        is_whole = not tensor.is_floating_point()
        return (bool(size) if tensor.dtype is torch.bool else size) if is_whole else number, 0
    if name in ("allclose", "equal"):
        return bool(number), 0
    if name == "nonzero":
        return tensor.new_empty((size, tensor.dim()), dtype=torch.int64), 0
    if name == "bincount":
        kind = torch.int64
        if len(args) > 1 and args[1] is not None:
            kind = torch.float32 if args[1].dtype is torch.float32 else torch.float64
        return tensor.new_empty((size,), dtype=kind), 0
    if name == "masked_select":
        return tensor.new_empty((size,)), INDEX_BYTES * size * tensor.dim()
    if name in UNIQUE:
        places = tensor.new_empty(tensor.shape, dtype=torch.int64)
        return (tensor.new_empty((size,)), places, tensor.new_empty((size,), dtype=torch.int64)), 0
    if name == "index":
        indices, scratch = [], 0
        for index in args[1]:
            num_axes = index.dim() if is_mask(index) else 0
            rows = [index.new_empty((size,), dtype=torch.int64) for _ in range(num_axes)]
            indices += rows if is_mask(index) else [index]
            scratch += INDEX_BYTES * size * num_axes
        return func(tensor, indices, *args[2:], **kwargs), scratch
    raise NotImplementedError(
        f"{func}: how many rows it keeps does not say what it returns; use measure_memory"
    )


MAX_STAND_IN_BYTES = 16 * MIB


def has_values(tensor: Tensor) -> bool:
    """Whether the tensor's values are known: it is a real one, or a fake copy of a constant."""
    if isinstance(tensor, FakeTensor):
        return tensor.constant is not None
    return not tensor.is_meta


def no_value(tensor: Tensor) -> float:
    """What stands for a value that nobody knows."""
    # finite: ``if isnan(loss): exit`` goes on
    return 1.0 if tensor.is_floating_point() or tensor.is_complex() else 0


def storage_of(tensor: Tensor) -> torch.UntypedStorage | None:
    """The storage; None where the tensor has none of its own (sparse, inside torch.func)."""
    is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return None if is_wrapped or tensor.layout is not torch.strided else tensor.untyped_storage()


UNKNOWN = object()
OF_A_NUMBER = {
    Tensor.item: lambda number: number,
    Tensor.__float__: float,
    Tensor.__bool__: bool,
    Tensor.__int__: int,
    Tensor.__index__: int,
}
"""Calls that one number answers, and what they make of it."""


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
        is_large = tensor.numel() * tensor.element_size() > MAX_STAND_IN_BYTES
        with _disable_current_modes():  # a large one is one value, seen everywhere
            shape = () if is_large else tensor.shape
            full = torch.full(shape, no_value(tensor), dtype=tensor.dtype, device="cpu")
            return full.expand(tensor.shape)

    def answered(self, func, args: tuple, kwargs: dict) -> object:
        """What a call returns whose values are known or assumed; ``UNKNOWN`` where they are neither."""
        self.known.num_questions += 1
        if has_values(args[0]):
            return func(*args, **kwargs)
        known = self.known.value_of(args[0])
        if known is not None:
            with _disable_current_modes():
                return func(known.clone(), *args[1:], **kwargs)
        number = self.known.assumptions.here() if func in OF_A_NUMBER else None
        return UNKNOWN if number is None else OF_A_NUMBER[func](number)

    def warn_once(self, about: str, text: str, in_torch: bool = False, in_report: bool = False):
        """Tell the program, at its own line; torch's own code only where asked. In a report it stands by the peak."""
        frame = calling_frame()
        frame = outside(frame, TORCH_HOME) if in_torch else frame
        if about not in self.warned and not frame.f_code.co_filename.startswith(TORCH_HOME):
            self.warned.add(about)
            self.about_number += [text] * in_report
            warnings.warn_explicit(text, UserWarning, frame.f_code.co_filename, frame.f_lineno)


def answer(mode: ShapesOnly, func, args, kwargs):
    """1.0 for the value that a program reads, 0 where it is a whole number."""
    known = mode.answered(func, args, kwargs)
    if known is not UNKNOWN:
        return known
    tensor = args[0]
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
    known = mode.answered(func, args, kwargs)
    if known is not UNKNOWN:
        return known
    frame = calling_frame()
    caller = frame.f_code.co_filename
    if caller == LBFGS and frame.f_locals.get("line_search_fn", "") is None:
        text = "LBFGS is traced as if it took every iteration and kept each update"
        mode.warn_once("lbfgs", text, in_torch=True)
        return "ys >" in linecache.getline(caller, frame.f_lineno)
    if caller.endswith(GENERATION):
        mode.warn_once("generate", LONGEST, in_torch=True)
        return False
    if caller == INITIALISERS:
        return next(mode.rejects)
    if caller == DISTRIBUTIONS:
        return True
    if func is Tensor.__bool__ and (holds := asserted(frame)) is not None:
        return holds
    raise NeedsValues(f"Tensor.{func.__name__}")


def asserted(frame: FrameType) -> bool | None:
    """What lets an ``assert`` that this frame is at go on; None where it is at none.

    The jump that asks for the value passes over the loading of ``AssertionError``.
    """
    code = dis.get_instructions(frame.f_code)
    left_out = "CACHE", "NOT_TAKEN", "TO_BOOL"
    ahead = (i for i in code if i.offset >= frame.f_lasti and i.opname not in left_out)
    jump, then = next(ahead), next(ahead, None)
    is_assert = then and "assertion" in f"{then.opname} {then.argrepr}".lower()
    return "TRUE" in jump.opname if is_assert else None


def pack(mode: ShapesOnly, func, args, kwargs):
    """Lengths are read in the host's memory, where a program makes them without ``device=``."""
    mode.known.num_questions += 1
    tensor, lengths, *rest = args
    lengths = mode.known.value_of(lengths)
    if lengths is None:
        raise not_followed(
            "pack_padded_sequence with lengths that it does not know", 'make them with device="cpu"'
        )
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
        mode.warn_once("generate", LONGEST, in_torch=True)
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
    as_finite: (
        torch.isnan,
        torch.isinf,
        torch.isfinite,
        Tensor.isnan,
        Tensor.isinf,
        Tensor.isfinite,
    ),
    add_in_place: (Tensor.add_,),
    next_token: (torch.multinomial, torch.argmax),
    one_hot: (torch._C._nn.one_hot,),
    pack: (torch._pack_padded_sequence, torch._VF._pack_padded_sequence),
}
"""Which calls each rule answers, on both devices."""
