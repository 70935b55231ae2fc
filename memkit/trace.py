"""Every allocation of a training step, found without memory: the real PyTorch code runs on tensors that have no bytes.

``trace_memory(build)`` runs ``build()`` and then the step that it returns, on tensors with a shape and a dtype only.
A ``TorchDispatchMode`` sees every operation that torch runs, in the backward and in the optimizer too, and notes each
new storage; a weak reference to the storage tells when Python or autograd let it go. A model of 70 billion parameters
needs a laptop and seconds.
"""

import contextlib
import sys
import weakref
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from memkit.attribution import Log, timeline
from memkit.cuda_attention import BUFFERS, HOST_OUTPUTS
from memkit.cuda_rules import pretend_cuda
from memkit.shapes_only import NeedsValues, ShapesOnly, shapes_only
from memkit.timeline import MemoryTimeline
from memkit.training import DEVICES
from memkit.units import ALLOCATOR_BLOCK_BYTES, as_whole_number
from memkit.watch import run_steps, tensors_in

aten = torch.ops.aten
VALUE_ERRORS = (NotImplementedError, DataDependentOutputException, DynamicOutputShapeException)
ENGINE = torch.autograd.graph._engine_run_backward.__code__
REUSES_FIRST_ARGUMENT = {
    aten.add.Tensor, aten.scatter.src, aten.scatter.value, aten.scatter_add.default, aten.index_put.default,
    aten.masked_scatter.default, aten.index_fill.int_Scalar, aten.index_fill.int_Tensor, aten.logical_and.default,
}  # fmt: skip
PRODUCTS = {"aten.mm.default", "aten.bmm.default"}
FOREIGN = (str(Path(torch.__file__).parent), contextlib.__file__, "<")
OWN_FILES = {str(Path(__file__).with_name(f"{name}.py")) for name in ("trace", "watch", "cuda_rules", "cuda_attention", "shapes_only")}


def trace_memory(build: Callable[[], Callable[[], object]], *, device: str = "cuda", steps: int = 2) -> MemoryTimeline:
    """The memory of ``steps`` training steps, as CUDA or the CPU would allocate it, from the program's own code.

    ``build()`` makes model and optimizer and returns the step, a function without arguments. Both are called here.
    Bytes of ``device="cuda"`` are rounded up to the allocator's blocks of 512; an event's ``num_bytes`` is as asked.

    Raises: ValueError: an unknown device, or steps that are not a positive number. NeedsValues: the program looks at
    a tensor's values. Whatever the program itself raises.
    """
    if device not in DEVICES:
        raise ValueError(f"device={device!r} is not one of {', '.join(DEVICES)}")
    steps = as_whole_number("steps", steps, 1)
    with recording(device) as tracer:
        run_steps(build, steps, tracer)
        log = tracer.log
    granularity = ALLOCATOR_BLOCK_BYTES if device == "cuda" else 1
    return timeline(log, source="traced", device=device, granularity=granularity)


class Tracer(TorchDispatchMode):
    """Notes every storage that is born and dies; knows the parameters, gradients and optimizer states."""

    def __init__(self, device_type: str):
        super().__init__()
        self.device_type = device_type
        self.names: dict[object, str] = {}
        self.buffers, self.host_outputs = (BUFFERS, HOST_OUTPUTS) if device_type == "meta" else ({}, {})
        self.sole_owner = (0, 0, 0)
        self.foreign_files = set(OWN_FILES)
        self.forget()

    def forget(self) -> None:
        """Start with an empty log."""
        self.log = Log()
        self.blocks: dict[int, int] = {}
        self.watches: dict[int, weakref.ref] = {}
        self.forward_lines: dict[int, str] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunction():  # in a backward CudaRules would see the lines below
            if func in REUSES_FIRST_ARGUMENT and self.runs_in_place(func, args, sys._getframe(1).f_code):
                return args[0]
            return self.run(func, args, kwargs)

    def run(self, func, args, kwargs):
        """Run one operation and record what it allocated."""
        try:
            out = func(*args, **kwargs) if kwargs else func(*args)
        except VALUE_ERRORS as error:
            raise NeedsValues(str(func)) from error
        op = self.names.get(func)
        if op is None:
            makes_storage = func is aten.lift_fresh.default or any(r.alias_info is None for r in func._schema.returns)
            op = self.names[func] = str(func) if makes_storage else ""
        if op:
            in_host = self.host_outputs.get(func, ())
            for number, item in enumerate(out if isinstance(out, (tuple, list)) else (out,)):
                for tensor in (item,) if isinstance(item, Tensor) else tensors_in(item):
                    if number not in in_host:
                        self.note(tensor, op)
            if func in self.buffers:
                self.note_buffers(self.buffers[func](*args, **(kwargs or {})), op)
            if func is aten._to_copy.default and self.block_of(args[0]) in self.log.weights:
                self.log.weight_casts.add(self.block_of(out))
        return out

    def note_buffers(self, stages: list[list[int]], op: str) -> None:
        """Record what a kernel takes and gives back before it returns."""
        place = self.place(sys._getframe(3))
        for sizes in stages:
            blocks = [self.log.allocate(size, op, place) for size in sizes]
            self.log.scratch.update(blocks)
            for block in blocks:
                self.log.free(block)

    def runs_in_place(self, func, args, caller) -> bool:
        """Whether torch would write over the first argument if nobody watched.

        Its backward reuses a gradient that nobody else holds (``can_accumulate_inplace`` in input_buffer.cpp,
        ``areAnyTensorSubclassLike`` in FunctionsManual.cpp), and ``linear`` adds its bias to the product in place, but
        neither while a dispatch mode is active or on meta.
        """
        if not isinstance(args[0], Tensor):
            return False
        owners = self.ownership(args)
        if caller is ENGINE and not torch.is_grad_enabled():
            if func is not aten.add.Tensor:  # a formula's own new tensor, which it may hold under two names
                return owners[1:] == self.sole_owner[1:]
            return owners == self.sole_owner and is_dense(args[0])
        return func is aten.add.Tensor and owners == self.sole_owner and self.made_by(args[0]) in PRODUCTS

    def made_by(self, tensor: Tensor) -> str | None:
        block = self.block_of(tensor)
        return None if block is None else self.log.ops[block]

    def ownership(self, args) -> tuple[int, int, int]:
        """How many hold the first argument: its tensor in C++, its storage, its Python object."""
        first = args[0]
        return first._use_count(), torch._C._storage_Use_Count(first.untyped_storage()._cdata), sys.getrefcount(first)

    def calibrate(self) -> None:
        """Learn what ``ownership`` says of a gradient that only the engine holds, from the smallest such sum."""
        seen = []
        ownership = self.ownership
        self.ownership = lambda args: seen.append(ownership(args))
        with torch._C.DisableTorchFunction():
            y = torch.empty(1, device=self.device_type, requires_grad=True) * 2
            torch.autograd.backward((y * 2, y * 3), (torch.empty_like(y), torch.empty_like(y)))
        del self.ownership
        (self.sole_owner,) = seen

    def note(self, tensor: Tensor, op: str) -> None:
        """Record the tensor's storage, if it is new."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.blocks or tensor.device.type != self.device_type:
            return
        num_bytes = storage.nbytes()
        if num_bytes == 0:
            return
        block = self.blocks[key] = self.log.allocate(num_bytes, op, self.place(sys._getframe(3)))

        def freed(_, key=key, block=block):
            if self.blocks.pop(key, None) is not None:
                del self.watches[key]
                self.log.free(block)

        self.watches[key] = weakref.ref(storage, freed)

    def place(self, frame) -> str:
        """The program's own line that asked; in a backward, the line of the forward that it belongs to."""
        if frame.f_code is ENGINE:
            number = torch._C._current_autograd_node()._sequence_nr()
            lines = (self.forward_lines.get(number - back) for back in range(8))  # views have no line of their own
            return next((f"{line} (backward)" for line in lines if line), "backward")
        while frame is not None and frame.f_code is not TRACE:
            code = frame.f_code
            if code.co_filename not in self.foreign_files:
                if not code.co_filename.startswith(FOREIGN):
                    line = f"{source_name(code.co_filename)}:{frame.f_lineno} {code.co_qualname}"
                    if torch.is_grad_enabled():
                        self.forward_lines.setdefault(torch._C._autograd._get_sequence_nr() - 1, line)
                    return line
                self.foreign_files.add(code.co_filename)
            frame = frame.f_back
        return ""

    def block_of(self, tensor: Tensor) -> int | None:
        return self.blocks.get(tensor.untyped_storage()._cdata)

    def now(self, change: str, *args: object) -> None:
        getattr(self.log, change)(*args)

    def saw(self, part: str, tensors: list[Tensor]) -> None:
        with torch._C.DisableTorchFunction():
            blocks = {self.block_of(tensor) for tensor in tensors}
        getattr(self.log, part).update(blocks - {None})


def source_name(path: str) -> str:
    """A file's name; ``cell`` for a notebook's cell, whose file is named by a hash."""
    return "cell" if "ipykernel_" in path else Path(path).name


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill their storage without gaps or overlaps."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def apply_to_data(module: torch.nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> torch.nn.Module:
    """``Module._apply`` as it treats real tensors; it treats fake ones otherwise, and fails."""
    if recurse:
        for child in module.children():
            child._apply(fn)
    with torch.no_grad():
        for parameter in filter(lambda p: p is not None, module._parameters.values()):
            parameter.data = fn(parameter)
            if parameter.grad is not None:
                parameter.grad.data = fn(parameter.grad)
        module._buffers.update((name, fn(buffer)) for name, buffer in module._buffers.items() if buffer is not None)
    return module


@contextmanager
def noting_rng_states(tracer: Tracer):
    """The CPU generator's state, which checkpointing keeps for each segment, is made below every dispatch mode."""
    get_rng_state = torch.get_rng_state

    def noted():
        state = get_rng_state()
        tracer.note(state, "get_rng_state")
        return state

    with patch.object(torch, "get_rng_state", noted), patch.object(torch.random, "get_rng_state", noted):
        yield


TRACE = trace_memory.__code__


@contextmanager
def recording(device: str):
    """Run the code inside on tensors without bytes, by the rules of ``device``; yields the ``Tracer``."""
    with ExitStack() as stack:
        if device == "cuda":
            stack.enter_context(pretend_cuda())
            tracer = Tracer("meta")
        else:
            fake = FakeTensorMode(allow_non_fake_inputs=True)
            stack.enter_context(fake)
            stack.enter_context(shapes_only(ShapesOnly()))
            tracer = Tracer("cpu")
            stack.enter_context(noting_rng_states(tracer))
            stack.enter_context(patch.object(torch.nn.Module, "_apply", apply_to_data))
        stack.enter_context(tracer)
        tracer.calibrate()
        tracer.forget()
        stack.callback(tracer.watches.clear)
        yield tracer
