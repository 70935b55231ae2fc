"""What a training step's operations allocate, found without memory: the real code on tensors without bytes.

``trace_memory(build)`` runs ``build()`` and then the step that it returns, on tensors with a shape and a
dtype only. A ``TorchDispatchMode`` sees every operation that torch runs, in the backward and in the optimizer
too, and notes each new storage; a weak reference to the storage tells when Python or autograd let it go. So what
is kept for the backward is decided by autograd itself. A model of 70 billion parameters needs a laptop and seconds.

A dispatch mode sees no scratch, which a kernel takes and gives back inside one operation. ``SCRATCH`` knows
CUDA's, ``cpu`` what a transformer's step copies on a CPU; warnings name the operations of which neither is known.
"""

import functools
import sys
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses import fake_tensor as fake
from torch.utils._python_dispatch import TorchDispatchMode

from memkit.program.doors import PLAIN, FindsItsSteps, OutsideBuild, run_steps, tensors_in
from memkit.program.log import Log, timeline_of
from memkit.program.threads import watching_threads
from memkit.setup.training import DEVICES
from memkit.timeline import MAX_STEPS, MemoryTimeline
from memkit.tracing.cpu import as_laid_out, fake_cpu
from memkit.tracing.cuda import pretend_cuda
from memkit.tracing.cuda_kernels import HOST_OUTPUTS, kernels_on_meta
from memkit.tracing.evaluations import Evaluations
from memkit.tracing.host import Place, Places
from memkit.tracing.in_place import REUSES_FIRST_ARGUMENT, holds_bytes, is_dense, is_engines_sum
from memkit.tracing.known import ASSUMED, Assumptions, KnownValues, Unknown, result_of_size
from memkit.tracing.libraries import CUDA_LIBRARIES, Besides, as_compiled
from memkit.tracing.lines import ENGINE, Lines
from memkit.tracing.patched import Patches
from memkit.tracing.refusals import NeedsValues, not_followed, refuse_dtypes, refuse_unseen
from memkit.tracing.scratch import BY_NAME, SCRATCH, bytes_of_loss
from memkit.tracing.waiting import Progress
from memkit.tracing.without_values import has_values
from memkit.units import ALLOCATOR_BLOCK_BYTES, as_one_of, as_whole_number

aten = torch.ops.aten
NO_KERNEL = NotImplementedError, fake.UnsupportedOperatorException
VALUE_ERRORS = (*NO_KERNEL, fake.DataDependentOutputException, fake.DynamicOutputShapeException)
VALUE_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
NESTED = {aten._nested_tensor_from_tensor_list.default, aten._nested_view_from_jagged.default}
PRODUCTS, ASKS_DEVICE = {"aten.mm.default", "aten.bmm.default"}, torch.ops.prim.device.default


def trace_memory(
    build: Callable[[], Callable[[], object]] | FindsItsSteps, *, device: str = "cuda", steps: int = 2,
    say: Callable[[str], None] | None = None, assume: Mapping[str, float] | None = None,
) -> MemoryTimeline:
    """The memory of ``steps`` training steps as CUDA or the CPU would allocate it, from the program itself.

    ``build()`` makes model and optimizer and returns the step, a function without arguments. Both are called
    here. Bytes of ``device="cuda"`` are rounded up to the allocator's blocks of 512; an event's ``num_bytes``
    is as asked. There a tensor made without ``device=`` counts as the card's from its birth; what is in the
    host's memory says ``device="cpu"``. A ``memkit.tool.Script`` runs in the place of both, and its tensors without
    ``device=`` are the host's, as torch makes them. ``say`` is told every two seconds how far a long trace has come.
    What ``randint`` and ``randperm`` draw is drawn from a seed of the trace's own. A thread
    pool's work is done at once; a thread of the program's own that makes memory is refused. A model that is evaluated
    again and again without gradients is followed once where every call allocates the same.
    ``assume`` answers, by line, what only values could say: ``{"train.py:41": 128}`` lets a mask or ``nonzero`` on that
    line keep 128 rows, or a value that is read or tested there be 128. A line that calls the one that asks will do.

    Raises: ValueError: an unknown device, steps that are not a positive number, no function as ``build``, a
    model made outside it, or memory made in another thread. NeedsValues: the program looks at a tensor's
    values. Whatever the program itself raises.

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
    assumptions = Assumptions(assume or {})
    is_script = isinstance(build, FindsItsSteps)
    if is_script:
        build.import_libraries()
    with recording(device, starts_in_host=is_script) as tracer:
        tracer.progress = Progress(say, steps)
        tracer.known.assumptions = assumptions
        run_steps(build, steps, tracer)
    assumptions.refuse_unused()
    granularity = ALLOCATOR_BLOCK_BYTES if device == "cuda" else 1
    timeline = timeline_of(tracer.log, source="traced", device=device, granularity=granularity)
    timeline = replace(timeline, source_lines=tracer.lines.texts)
    tracer.besides.tell(timeline.peak_bytes)
    return timeline


class Tracer(TorchDispatchMode):
    """Notes when each storage is allocated and freed, and which ones are parameters, gradients and optimizer states."""

    supports_higher_order_operators = True

    def __init__(self, device_type: str):
        super().__init__()
        self.device_type = device_type
        self.known = KnownValues()
        self.places = Places()
        self.names: dict[object, str] = {}
        is_cuda = device_type == "meta"
        self.buffers = SCRATCH if is_cuda else {}
        self.host_outputs = HOST_OUTPUTS if is_cuda else {}
        self.is_paused = False
        self.progress = Progress()
        self.sole_owner = (0, 0, 0)  # until ``calibrate`` knows it
        self.on_update: Callable[[], None] | None = None  # a script's, which may write over its weights itself
        self.forget()

    def forget(self) -> None:
        """Start with an empty log: what was allocated before is no part of the trace."""
        self.log = Log()
        self.besides = Besides()
        self.blocks: dict[int, int] = {}  # this and the next two by the storage's address in C++
        self.watches: dict[int, weakref.ref] = {}
        self.lines = Lines(trace_memory.__code__)
        self.makers: dict[int, int] = {}  # sequence number of the autograd node that ran

    @property
    def is_empty(self) -> bool:
        """Whether nothing has come into the memory that is traced."""
        return not self.log.births

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is ASKS_DEVICE and type(args[0]) is fake.FakeTensor:
            return fake.FakeTensor.__torch_dispatch__(func, types, args)  # torch's short way, past its own mode
        if func in NESTED:
            raise not_followed("nested tensors", "pad them to one length")
        if any(kind not in PLAIN and hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # a tensor made of tensors: it calls again, with the inner ones
        if self.is_paused or func is ASKS_DEVICE:
            return func(*args, **(kwargs or {}))
        if isinstance(func, torch._ops.HigherOrderOperator):
            raise not_followed(func, "write it out, attention as F.scaled_dot_product_attention")
        self.progress.one_more(self.log)
        with torch._C.DisableTorchFunction():  # in a backward CudaRules would see the lines below
            # Frame 1 called the operation, the engine or not: a function between here and it would move bytes.
            if func in REUSES_FIRST_ARGUMENT and self.runs_in_place(func, args, sys._getframe(1).f_code):
                out = args[0]
            else:
                out = self.run(func, args, kwargs)
            self.note_buffers(func, args, kwargs)
            return out

    def run(self, func, args, kwargs):
        """Run one operation and record what it allocated; in inference mode a composite one comes whole."""
        if torch.is_inference_mode_enabled():
            with self:
                out = func.decompose(*args, **(kwargs or {}))
            if out is not NotImplemented:
                return out
        if func is aten.copy_.default and self.device_type == "meta" and args[1].is_meta and not args[0].is_meta:
            return args[0]  # to the host: no values move
        if func._schema.is_mutable:
            self.before_write(args[0])
        place = self.places.of_result(args, kwargs)
        if place is Place.HOST:
            if func._schema.is_mutable and isinstance(args[0], Tensor) and not args[0].is_meta:
                return args[0]  # a small tensor of the host keeps the values that it had
            args, kwargs = self.places.together((args, kwargs))
        try:
            out = func(*args, **kwargs) if kwargs else func(*args)
        except VALUE_ERRORS as error:
            if isinstance(error, NO_KERNEL) and not VALUE_TAGS & set(func.tags):
                raise not_followed(func, "give it a kernel without values by torch.library.register_fake") from error
            out = self.from_values(func, args, kwargs, error)
        except RuntimeError as error:
            if func is aten._local_scalar_dense.default or "cannot be called on meta tensors" in str(error):
                out = self.from_values(func, args, kwargs, error)
            elif "expected device meta" in str(error) and any(t.requires_grad for t in tensors_in(args)):
                raise OutsideBuild from error
            else:
                raise
        refuse_dtypes(func, args)
        self.known.follow(func, args, kwargs, out)
        op = self.names.get(func)
        if op is None:
            makes_storage = func is aten.lift_fresh.default or any(not r.alias_info for r in func._schema.returns)
            op = self.names[func] = str(func) if makes_storage else ""
        copies: list[int] = []
        if self.device_type == "cpu":
            out, copies = as_laid_out(func, args, out)
            self.besides.meet_on_cpu(func, args, out, self.log)
        elif func in CUDA_LIBRARIES:
            self.besides.meet(func, self.lines.of(sys._getframe(2)))  # past __torch_dispatch__: the program's
        held_bytes, beside_bytes = bytes_of_loss(func, args, kwargs)
        if beside_bytes:
            copies = [beside_bytes]
        if op and holds_bytes(func, args):
            self.note_results(func, out, op, held_bytes, place)
            if func is aten._to_copy.default and self.block_of(args[0]) in self.log.weights:
                self.log.weight_casts.add(self.block_of(out))
        if copies and place is Place.CARD and any(self.is_here(tensor) for tensor in tensors_in(args)):
            self.note_scratch([copies], func, self.lines.of(sys._getframe(2)))
        return out

    def note_results(self, func, out, op: str, held_bytes: int | None, place: Place) -> None:
        """Record what an operation returns, but for what it leaves in the host's memory."""
        in_host = self.host_outputs.get(func, ())
        for number, item in enumerate(out if isinstance(out, (tuple, list)) else (out,)):
            for tensor in (item,) if isinstance(item, Tensor) else tensors_in(item):
                if tensor.layout is not torch.strided:
                    refuse_unseen([tensor])
                if number not in in_host:
                    self.note(tensor, op, held_bytes, place, depth=4)

    def from_values(self, func, args, kwargs, error):
        """The result of an operation that looks at values, where they are known. Raises: NeedsValues."""
        self.known.num_questions += 1
        try:
            real = self.known.result_of(func, args, kwargs)
        except Unknown:
            number = self.known.assumptions.here()
            number = self.known.rows_kept(func, args) if number is None else number
            if number is None:
                raise NeedsValues(str(func), can_assume=func._opname in ASSUMED) from error
            out, scratch = result_of_size(func, args, kwargs or {}, number)
            self.note_scratch([[scratch]] if scratch else [], func, self.lines.of(sys._getframe(3)))
            return out
        if not isinstance(real, Tensor):
            return real
        out = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device=args[0].device)
        return real if has_values(out) else out  # torch's DeviceMesh puts the fake tensors' mode aside

    def note_buffers(self, func, args, kwargs) -> None:
        """Record what a kernel takes and gives back before it returns."""
        size_of = self.buffers.get(func) or BY_NAME.get(self.names.get(func))
        if size_of and any(self.is_here(tensor) for tensor in tensors_in(args)):
            self.note_scratch(size_of(*args, **(kwargs or {})), func, self.lines.of(sys._getframe(2)))

    def is_here(self, tensor: Tensor) -> bool:
        """Whether a tensor is in the memory that is traced."""
        if tensor.is_meta:
            return self.device_type == "meta" and self.places.of(tensor) is Place.CARD
        return tensor.device.type == self.device_type

    def note_scratch(self, stages, func, place: str) -> None:
        """Record scratch: the blocks of a stage are taken together, and given back before the next stage."""
        for sizes in stages:
            blocks = [self.log.allocate(size, str(func), place) for size in sizes]
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
            if func is not aten.add.Tensor:  # a formula's own new tensor, which it may hold under two names
                return owners[1:] == self.sole_owner[1:]
            maker = self.makers.get(args[0].untyped_storage()._cdata)
            return owners == self.sole_owner and is_dense(args[0]) and is_engines_sum(maker)
        block = self.block_of(args[0])
        is_product = block is not None and self.log.births[block][0] in PRODUCTS
        return func is aten.add.Tensor and owners == self.sole_owner and is_product

    def ownership(self, args) -> tuple[int, int, int]:
        """How many hold the first argument: its tensor in C++, its storage, its Python object."""
        first = args[0]
        in_storage = torch._C._storage_Use_Count(first.untyped_storage()._cdata)
        return first._use_count(), in_storage, sys.getrefcount(first)

    def calibrate(self) -> None:
        """Learn what ``ownership`` says of a gradient that only the engine holds."""
        seen = []
        ownership = self.ownership
        self.ownership = lambda args: seen.append(ownership(args))
        with torch._C.DisableTorchFunction():
            y = torch.empty(1, device=self.device_type, requires_grad=True) * 2
            torch.autograd.backward((y * 2, y * 3), (torch.empty_like(y), torch.empty_like(y)))
        del self.ownership  # the class's own again
        (self.sole_owner,) = seen

    def note(self, tensor: Tensor, op: str, num_bytes: int | None = None, place: Place = Place.CARD, depth=3) -> None:
        """Record the tensor's storage, if it is new. ``num_bytes``: its real size, where the fake one is smaller.

        ``depth`` is how many frames above this one the operation was called.
        """
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.blocks or key in self.places.off_card or tensor.device.type != self.device_type:
            return
        if place is not Place.CARD:
            self.places.put(storage, place)
            return
        num_bytes = storage.nbytes() if num_bytes is None else num_bytes
        if num_bytes == 0:
            return
        frame = sys._getframe(depth)
        self.blocks[key] = self.log.allocate(num_bytes, op, self.lines.of(frame))
        node = torch._C._current_autograd_node()
        if frame.f_code is ENGINE and node is not None:  # none runs where the engine casts a root's gradient
            self.makers[key] = node._sequence_nr()

        def freed(_, key=key):
            for by_storage in (self.watches, self.makers):
                by_storage.pop(key, None)
            if key in self.blocks:
                self.log.free(self.blocks.pop(key))

        self.watches[key] = weakref.ref(storage, freed)

    def resize(self, storage: torch.UntypedStorage, num_bytes: int) -> torch.UntypedStorage:
        """``UntypedStorage.resize_``, by which FSDP frees and takes again what it gathers."""
        key = storage._cdata
        block = self.blocks.pop(key, None)
        if block is not None:
            self.log.free(block)
        elif key not in self.watches:
            return RESIZE(storage, num_bytes)
        if num_bytes:
            self.blocks[key] = self.log.allocate(num_bytes, "resize_", self.lines.of(sys._getframe(1)))
        return RESIZE(storage, num_bytes)

    def before_write(self, written: object) -> None:
        """Say so if a weight is written over after its backward, or in it, by no optimizer of torch's."""
        log = self.log
        is_later = log.phase == "backward" or (log.phase == "forward" and log.micro_batch > 1)
        if self.on_update and is_later and any(self.block_of(t) in log.trained for t in tensors_in(written)):
            self.on_update()

    def block_of(self, tensor: Tensor) -> int | None:
        return self.blocks.get(tensor.untyped_storage()._cdata)

    def now(self, change: str, *args: object) -> None:
        self.patches.look()
        getattr(self.log, change)(*args)

    def saw(self, part: str, tensors: list[Tensor]) -> None:
        with torch._C.DisableTorchFunction():
            refuse_unseen(tensors)
            tensors = list(tensors_in(tensors))
            if part == "trained":
                unseen = [t for t in tensors if self.is_here(t) and self.block_of(t) is None]
                if any(t.untyped_storage().nbytes() for t in unseen):  # FSDP's are empty between uses
                    raise OutsideBuild
                self.log.trained |= {self.block_of(t) for t in tensors} - {None}
                return
            blocks = {self.block_of(tensor) for tensor in tensors}
        getattr(self.log, part).update(blocks - {None})


RESIZE = torch.UntypedStorage.resize_


@contextmanager
def recording(device: str, *, starts_in_host: bool = False):
    """Run the code inside on tensors without bytes, by the rules of ``device``; yields the ``Tracer``."""
    with ExitStack() as stack:
        if device == "cuda":
            tracer = Tracer("meta")
            mode = stack.enter_context(pretend_cuda(starts_in_host=starts_in_host))
        else:
            tracer = Tracer("cpu")
            mode = stack.enter_context(fake_cpu(tracer.note))
            stack.enter_context(kernels_on_meta("cpu"))
        # A real tensor is the host's, which the CPU's rules alone count.
        stack.enter_context(watching_threads(lambda tensor: device == "cpu" or tensor.is_meta))
        tracer.known = mode.known
        tracer.places = getattr(mode, "places", tracer.places)  # a CPU's mode has none: nothing moves
        mode.before_write = tracer.before_write
        stack.enter_context(patch.object(torch, "compile", functools.partial(as_compiled, tracer)))
        resize = patch.object(torch.UntypedStorage, "resize_", lambda storage, size: tracer.resize(storage, size))
        stack.enter_context(resize)
        called = Evaluations(tracer).around(torch.nn.Module.__call__)
        stack.enter_context(patch.object(torch.nn.Module, "__call__", called))
        tracer.patches = Patches(tracer, stack)
        stack.enter_context(tracer)
        tracer.calibrate()
        tracer.forget()
        stack.callback(tracer.watches.clear)  # first of all on exit: what dies later is in no log
        yield tracer
