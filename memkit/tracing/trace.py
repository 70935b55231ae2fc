"""What a training step's operations allocate, found without memory: the real code on tensors without bytes.

``trace_memory(build)`` runs ``build()`` and then the step that it returns, on tensors with a shape and a
dtype only. A ``TorchDispatchMode`` sees every operation that torch runs, in the backward and in the optimizer
too, and notes each new storage; a weak reference to the storage tells when Python or autograd let it go. So what
is kept for the backward is decided by autograd itself. A model of 70 billion parameters needs a laptop and seconds.

A dispatch mode sees no scratch, which a kernel takes and gives back inside one operation. ``SCRATCH`` knows CUDA's,
``cpu`` what a transformer's step copies on a CPU. ``LeftOut`` names the operations that take more than is known of
them: on a card a library decides by itself, by card and version, what it takes beside an operation's results. Its
words stand beside the number. ``Lines`` finds the program's line that asked for memory, the ``where`` of each event.
"""

import contextlib
import linecache
import sys
import weakref
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import CodeType
from typing import ClassVar

import torch
from torch import Tensor
from torch._subclasses import fake_tensor as fake
from torch.utils._python_dispatch import TorchDispatchMode

from memkit.formula.kernels import merged
from memkit.program import hooks
from memkit.program.hooks import PLAIN, OutsideBuild, line_of, run_steps, tensors_in
from memkit.program.log import Log, timeline_of
from memkit.setup import DEVICES
from memkit.timeline import MAX_STEPS, MemoryTimeline
from memkit.tracing.cpu import PRODUCTS, as_laid_out, fake_cpu, is_of_a_transformer
from memkit.tracing.cuda import HOST_OUTPUTS, SCRATCH, bytes_of_loss, pretend_cuda
from memkit.tracing.shapes import NeedsValues
from memkit.units import as_one_of, as_whole_number

ENGINE = torch.autograd.graph._engine_run_backward.__code__
"""The frame below a backward's operations, which have no line: they belong to a line of the forward."""

FOREIGN = (str(Path(torch.__file__).parent), contextlib.__file__, "<")
OWN_FILES = {str(path) for path in Path(__file__).parent.glob("*.py")} | {hooks.__file__}


class Lines:
    """The program's lines by the number that autograd gave their operation; ``top`` is where the program is called.

    ``texts`` has what stands on each line, for the film of a step.
    """

    def __init__(self, top: CodeType):
        self.top = top
        self.of_forward: dict[int, str] = {}
        self.texts: dict[str, str] = {}
        self.foreign_files = set(OWN_FILES)

    def of(self, frame) -> str:
        """The program's own line that asked; in a backward, the line of the forward that it belongs to."""
        if frame.f_code is ENGINE:
            node = torch._C._current_autograd_node()
            if node is None:  # the engine casts the gradient that the program gave
                return "backward"
            # A view allocates nothing and has no line: take the one before.
            lines = (self.of_forward.get(node._sequence_nr() - back) for back in range(8))
            return next((f"{line} (backward)" for line in lines if line), "backward")
        while frame is not None and frame.f_code is not self.top:
            file = frame.f_code.co_filename
            if file not in self.foreign_files:
                if not file.startswith(FOREIGN):
                    line = line_of(frame)
                    if line not in self.texts:
                        self.texts[line] = linecache.getline(file, frame.f_lineno).rstrip()
                    if torch.is_grad_enabled():
                        self.of_forward.setdefault(torch._C._autograd._get_sequence_nr() - 1, line)
                    return line
                self.foreign_files.add(file)
            frame = frame.f_back
        return ""


aten = torch.ops.aten
OF_LIBRARIES = {
    "cuDNN": "convolution convolution_backward",
    "cuSOLVER": "_linalg_eigh _linalg_svd linalg_qr linalg_cholesky_ex linalg_inv_ex _linalg_solve_ex",
    "cuFFT": "_fft_c2c _fft_r2c _fft_c2r",
}
CUDA_LIBRARIES = {
    getattr(aten, name).default: each
    for each, names in OF_LIBRARIES.items()
    for name in names.split()
}
"""Operations whose library takes a workspace on a card, of a size that only the card knows."""


class LeftOut:
    """What is said once of a trace: each library with its first call's place, and operations to measure on a CPU."""

    def __init__(self):
        self.of_libraries: dict[str, str] = {}
        self.highest_packed = (0, "")
        self.to_measure: dict[str, None] = {}  # a dict, for the order in which they were met

    def meet(self, func, place: str) -> None:
        """Remember the first call of each library that takes what nobody knows."""
        library = CUDA_LIBRARIES[func]
        text = f"{place}: {func}: the workspace that {library} takes is not in the trace"
        self.of_libraries.setdefault(library, text)

    def meet_on_cpu(self, func, args: tuple, out: object, log: Log) -> None:
        """Remember an operation on the CPU's rules, if it may take what they do not know."""
        if not is_of_a_transformer(func):
            self.to_measure[str(func.overloadpacket)] = None
        num_bytes, name = 0, str(func.overloadpacket)
        if func in PRODUCTS and out.dtype.itemsize == 2:
            # oneDNN packs the factors and makes the result in float32 first, where the processor wants it
            num_bytes = sum(factor.nbytes for factor in args[-2:]) + 4 * out.numel()
            name += " in 16 bits"
        elif scratch := scratch_of_attention(func, args):
            num_bytes = scratch + sum(tensor.nbytes for tensor in out)
        if num_bytes:
            num_bytes += sum(log.sizes[block] for block in log.live)
            self.highest_packed = max(self.highest_packed, (num_bytes, name))

    def texts(self, peak_bytes: int) -> list[str]:
        """A sentence for each library, and one for the CPU."""
        texts = list(self.of_libraries.values())
        if self.highest_packed[0] > peak_bytes:
            self.to_measure[self.highest_packed[1]] = None
        if self.to_measure:
            texts.append(
                f"measure it there: {', '.join(self.to_measure)}. On the CPU's rules a trace knows what a "
                "transformer's step takes; these may take more than their results, which measure_memory sees"
            )
        return texts


def scratch_of_attention(func, args: tuple) -> int:
    """Bytes that the CPU's attention takes at most and gives back: in each thread a tile of scores, a gradient's copy.

    A step whose peak is elsewhere never shows them. Source: ATen/native/cpu/FlashAttentionKernel.cpp of torch 2.13.
    """
    forward = func._opname == "_scaled_dot_product_flash_attention_for_cpu"
    if not forward and func._opname != "_scaled_dot_product_flash_attention_for_cpu_backward":
        return 0
    query, key = args[:2] if forward else args[1:3]
    length, head_size = query.shape[2:]
    rows = min(length, 256 if length >= 768 else 64 if length >= 192 else 32)
    columns = min(key.shape[2], 512)
    values = rows * (columns + 2 + head_size) if forward else rows * (2 * columns + 1)
    return torch.get_num_threads() * 4 * values + (0 if forward else args[0].nbytes)


REUSES_FIRST_ARGUMENT = {
    f"aten::{name}"
    for name in "add.Tensor scatter.src scatter.value scatter_add index_put masked_scatter "
    "index_fill.int_Scalar index_fill.int_Tensor logical_and".split()
}


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill their storage without gaps or overlaps."""
    walks = merged(list(zip(tensor.shape, tensor.stride(), strict=True)))
    return [stride for _, stride in walks] in ([], [1])


def is_engines_sum(maker: int | None) -> bool:
    """Whether the node that runs adds up gradients for the next one, and is no formula that adds two terms.

    ``maker`` is the number of the node that made the first summand. The engine adds to what an earlier node made; to
    what this one made only if two of its gradients go to the same place.
    """
    node = torch._C._current_autograd_node()
    goals = [edge for edge in node.next_functions if edge[0] is not None]
    return maker != node._sequence_nr() or len(set(goals)) < len(goals)


def makes_bytes(func, args: tuple) -> bool:
    """Whether torch allocates what comes out: zeros of forward mode have no memory, numpy's arrays have their own."""
    if func is aten.lift_fresh.default:
        return args[0].untyped_storage().resizable()
    makes_storage = any(not result.alias_info for result in func._schema.returns)
    return makes_storage and func is not aten._efficientzerotensor.default


PRODUCT_NAMES, ASKS_DEVICE = {"aten.mm.default", "aten.bmm.default"}, torch.ops.prim.device.default
FOLLOWED = object()
NEEDS_VALUES = (fake.DataDependentOutputException, fake.DynamicOutputShapeException)
VALUE_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
"""Of an operation that looks at values: it has no kernel for meta tensors."""


def trace_memory(
    build: Callable[[], Callable[[], object]], *, device: str = "cuda", steps: int = 2
) -> MemoryTimeline:
    """The memory of ``steps`` training steps as CUDA or the CPU would allocate it, from the program itself.

    ``build()`` makes model and optimizer and returns the step, a function without arguments. Both are called
    here. Bytes of ``device="cuda"`` are rounded up to the allocator's blocks of 512; an event's ``num_bytes``
    is as asked. There a tensor made without ``device=`` counts as the card's. The program branches on no tensor's value
    and starts no thread; one that does wants ``stepscope.trace_script``. Where an operation takes what no trace knows,
    a sentence in the timeline's ``left_out`` says so, and its peak is "at least".

    Raises: ValueError: an unknown device, steps that are not a positive number, no function as ``build``, or a
    model made outside it. NeedsValues: the program looks at a tensor's values. Whatever the program itself raises.

    >>> import torch
    >>> def build():
    ...     model = torch.nn.Linear(1024, 1024, device="cuda")
    ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ...     def step():
    ...         model(torch.ones(8, 1024, device="cuda")).sum().backward()
    ...         optimizer.step()
    ...         optimizer.zero_grad()
    ...     return step
    >>> trace_memory(build).at("backward").gradients  # no GPU needed: 1024 · 1024 · 4 B and 1024 · 4 B
    4198400
    """
    as_one_of("device", device, DEVICES)
    steps = as_whole_number("steps", steps, 1, MAX_STEPS)
    with recording(device) as tracer:
        run_steps(build, steps, tracer)
    timeline = timeline_of(tracer.log, "traced", device)
    left_out = "; ".join(tracer.left_out.texts(timeline.peak_bytes))
    return replace(timeline, source_lines=tracer.lines.texts, left_out=left_out)


class Tracer(TorchDispatchMode):
    """Notes when each storage is allocated and freed, and which ones are parameters, gradients and optimizer states.

    ``before`` may answer an operation, ``called`` runs it, ``is_counted`` says which memory is watched: a subclass that
    knows values, or several places, has its own. A frame is the one that called the operation: the program's, or the
    engine's.
    """

    supports_higher_order_operators = True
    is_empty = False
    buffers_by_name: ClassVar = {}  # the same on both devices, of libraries that may not be there

    def __init__(self, device_type: str):
        super().__init__()
        self.device_type = device_type
        is_cuda = device_type == "meta"
        self.buffers = SCRATCH if is_cuda else {}
        self.host_outputs = HOST_OUTPUTS if is_cuda else {}
        self.sole_owner = (0, 0, 0)  # until ``calibrate`` knows it
        self.forget()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch puts a frame of its own in between

    def forget(self) -> None:
        """Start with an empty log: what was allocated before is no part of the trace."""
        self.log = Log()
        self.blocks: dict[int, int] = {}  # this and the next two by the storage's address in C++
        self.watches: dict[int, weakref.ref] = {}
        self.lines = Lines(trace_memory.__code__)
        self.left_out = LeftOut()
        self.makers: dict[int, int] = {}  # sequence number of the autograd node that ran

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = self.before(func, types, args, kwargs)
        if out is not FOLLOWED:
            return out
        with torch._C.DisableTorchFunction():  # in a backward ``Card`` would see the lines below
            # taken here once: a function between here and it would move bytes
            frame = sys._getframe(1)
            may_reuse = func.name() in REUSES_FIRST_ARGUMENT
            if may_reuse and self.runs_in_place(func, args, frame.f_code):
                out = args[0]
            else:
                out = self.run(func, args, kwargs, frame)
            size_of = self.buffers.get(func) or self.buffers_by_name.get(str(func))
            if size_of and any(self.is_counted(tensor) for tensor in tensors_in(args)):
                self.note_scratch(size_of(*args, **kwargs), func, frame)
            return out

    def before(self, func, types, args, kwargs):
        """``FOLLOWED``, or what is returned at once in the place of an operation that is no part of the trace."""
        if func is ASKS_DEVICE:
            if type(args[0]) is fake.FakeTensor:
                return fake.FakeTensor.__torch_dispatch__(func, types, args)
            return func(*args, **kwargs)
        if any(kind not in PLAIN and hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # a tensor made of tensors: it calls again, with the inner ones
        return FOLLOWED

    def run(self, func, args, kwargs, frame):
        """Run one operation and record what it allocated."""
        out = self.called(func, args, kwargs, frame)
        copies: list[int] = []
        if self.device_type == "cpu":
            self.left_out.meet_on_cpu(func, args, out, self.log)
            out, copies = as_laid_out(func, args, out)
        elif func in CUDA_LIBRARIES:
            self.left_out.meet(func, self.lines.of(frame))
        held_bytes, beside_bytes = bytes_of_loss(func, args, kwargs)
        copies = [beside_bytes] if beside_bytes else copies
        if makes_bytes(func, args):
            in_host = self.host_outputs.get(func, ())
            for number, item in enumerate(out if isinstance(out, (tuple, list)) else (out,)):
                for tensor in tensors_in(item) if number not in in_host else ():
                    self.note(tensor, str(func), frame, held_bytes)
            if func is aten._to_copy.default and self.block_of(args[0]) in self.log.weights:
                self.log.weight_casts.add(self.block_of(out))
        if copies and any(self.is_counted(tensor) for tensor in tensors_in(args)):
            self.note_scratch([copies], func, frame)
        return out

    def called(self, func, args, kwargs, frame):
        """What an operation returns. Raises: NeedsValues, OutsideBuild."""
        try:
            return func(*args, **kwargs)
        except RuntimeError as error:
            has_no_kernel = isinstance(error, NotImplementedError) and VALUE_TAGS & set(func.tags)
            is_on_meta = "cannot be called on meta tensors" in str(error)
            if isinstance(error, NEEDS_VALUES) or is_on_meta or has_no_kernel:
                raise NeedsValues(str(func)) from error
            is_outside = "expected device meta" in str(error)
            if is_outside and any(t.requires_grad for t in tensors_in(args)):
                raise OutsideBuild from error
            raise

    def is_counted(self, tensor: Tensor) -> bool:
        """Whether a tensor is in the memory that is traced."""
        return tensor.device.type == self.device_type

    def note(self, tensor: Tensor, op: str, frame, num_bytes: int | None = None) -> None:
        """Record the tensor's storage, if it is new. ``num_bytes``: its real size, where the fake one is smaller."""
        storage = tensor.untyped_storage()
        key, num_bytes = storage._cdata, storage.nbytes() if num_bytes is None else num_bytes
        if key in self.blocks or not num_bytes or not self.is_counted(tensor):
            return
        self.blocks[key] = self.log.allocate(num_bytes, op, self.lines.of(frame))
        node = torch._C._current_autograd_node()
        # none runs where the engine casts a root's gradient
        if frame.f_code is ENGINE and node is not None:
            self.makers[key] = node._sequence_nr()

        def freed(_, key=key):
            self.watches.pop(key, None)
            self.makers.pop(key, None)
            if key in self.blocks:
                self.log.free(self.blocks.pop(key))

        self.watches[key] = weakref.ref(storage, freed)

    def note_scratch(self, stages, func, frame) -> None:
        """Record scratch: the blocks of a stage are taken together, and given back before the next stage."""
        for sizes in stages:
            blocks = [self.log.allocate(size, str(func), self.lines.of(frame)) for size in sizes]
            self.log.scratch.update(blocks)
            for block in blocks:
                self.log.free(block)

    def runs_in_place(self, func, args, caller) -> bool:
        """Whether torch would write over the first argument if nobody watched.

        Its backward reuses a gradient that nobody else holds (``can_accumulate_inplace`` in input_buffer.cpp,
        ``areAnyTensorSubclassLike`` in FunctionsManual.cpp), and ``linear`` adds its bias to the product in
        place, but neither while a dispatch mode is active or on meta.
        """
        if not isinstance(args[0], Tensor):
            return False
        owners = self.ownership(args)
        if caller is ENGINE and not torch.is_grad_enabled():
            # a formula's own new tensor, which it may hold under two names
            if func is not aten.add.Tensor:
                return owners[1:] == self.sole_owner[1:]
            maker = self.makers.get(args[0].untyped_storage()._cdata)
            return owners == self.sole_owner and is_dense(args[0]) and is_engines_sum(maker)
        block = self.block_of(args[0])
        is_product = block is not None and self.log.births[block].op in PRODUCT_NAMES
        return func is aten.add.Tensor and owners == self.sole_owner and is_product

    def ownership(self, args) -> tuple[int, int, int]:
        """How many hold the first argument: its tensor in C++, its storage, its Python object."""
        first = args[0]
        in_storage = torch._C._storage_Use_Count(first.untyped_storage()._cdata)
        return first._use_count(), in_storage, sys.getrefcount(first)

    def calibrate(self) -> None:
        """Learn what ``ownership`` says of a gradient that only the engine holds."""
        seen, ownership = [], self.ownership
        self.ownership = lambda args: seen.append(ownership(args))
        with torch._C.DisableTorchFunction():
            y = torch.empty(1, device=self.device_type, requires_grad=True) * 2
            torch.autograd.backward((y * 2, y * 3), (torch.empty_like(y), torch.empty_like(y)))
        del self.ownership  # the class's own again
        (self.sole_owner,) = seen
        self.forget()

    def block_of(self, tensor: Tensor) -> int | None:
        return self.blocks.get(tensor.untyped_storage()._cdata)

    def now(self, change: str, *args: object) -> None:
        getattr(self.log, change)(*args)

    def saw(self, part: str, tensors: list[Tensor]) -> None:
        with torch._C.DisableTorchFunction():
            tensors = list(tensors_in(tensors))
            blocks = {self.block_of(tensor) for tensor in tensors if self.is_counted(tensor)}
            if part == "trained" and None in blocks:
                raise OutsideBuild
            getattr(self.log, part).update(blocks - {None})


@contextmanager
def recording(device: str):
    """Run the code inside on tensors without bytes, by the rules of ``device``; yields the ``Tracer``."""
    tracer = Tracer("meta" if device == "cuda" else "cpu")
    rules = pretend_cuda() if device == "cuda" else fake_cpu(tracer)
    with rules, tracer:
        tracer.calibrate()
        try:
            yield tracer
        finally:
            tracer.watches.clear()  # first of all on exit: what dies later is in no log
