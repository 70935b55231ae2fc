"""``trace_script``: the kit's tracer for programs that nobody here wrote, which knows values and several places."""

import functools
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor
from torch._subclasses import fake_tensor as fake
from torch.optim.optimizer import register_optimizer_step_pre_hook

from memkit.program.hooks import FindsItsSteps, OutsideBuild, run_steps, tensors_in
from memkit.program.log import timeline_of
from memkit.setup import DEVICES
from memkit.timeline import MAX_STEPS, MemoryTimeline
from memkit.tracing import trace as kit
from memkit.tracing.cuda import kernels_on_meta
from memkit.tracing.trace import VALUE_TAGS, Lines
from memkit.units import as_one_of, as_whole_number
from stepscope.program.threads import watching_threads
from stepscope.tracing.card import counted
from stepscope.tracing.devices import (
    ScriptCard,
    fake_cpu_for_script,
    four_bit_product,
    pretend_cuda_for_script,
)
from stepscope.tracing.evaluations import Evaluations
from stepscope.tracing.generation import Generations
from stepscope.tracing.host import META, Place, Places, place_named
from stepscope.tracing.log import (
    ABOUT_NUMBER,
    IS_COMPILED,
    KEPT_FOR_METRICS,
    OWN_LINE,
    Progress,
    ScriptLeftOut,
    ScriptLog,
    as_compiled,
)
from stepscope.tracing.patched import patching_libraries, replaced
from stepscope.tracing.refusals import NeedsValues, not_followed, refuse_dtypes, refuse_unseen
from stepscope.tracing.scratch_disk import REFUSED, on_scratch_disk
from stepscope.tracing.values import (
    ASSUMED,
    Assumptions,
    KnownValues,
    Unknown,
    has_values,
    result_of_size,
)

aten = torch.ops.aten
NO_KERNEL = NotImplementedError, fake.UnsupportedOperatorException
VALUE_ERRORS = (*NO_KERNEL, fake.DataDependentOutputException, fake.DynamicOutputShapeException)
NESTED = {aten._nested_tensor_from_tensor_list.default, aten._nested_view_from_jagged.default}
OWN_FILES = {str(path) for path in Path(__file__).parent.glob("*.py")}
OWN_FILES |= {str(path) for path in Path(__file__).parents[1].glob("tool/*.py")}


def trace_script(
    build: Callable[[], Callable[[], object]] | FindsItsSteps,
    *,
    device: str = "cuda",
    steps: int = 2,
    say: Callable[[str], None] | None = None,
    assume: Mapping[str, float] | None = None,
) -> MemoryTimeline:
    """The memory of ``steps`` training steps as CUDA or the CPU would allocate it, from the program itself.

    ``build()`` makes model and optimizer and returns the step, a function without arguments. Both are called
    here. Bytes of ``device="cuda"`` are rounded up to the allocator's blocks of 512; an event's ``num_bytes``
    is as asked. There a tensor made without ``device=`` counts as the card's from its birth; what is in the
    host's memory says ``device="cpu"``. A ``stepscope.Script`` runs in the place of both, and its tensors without
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
    >>> trace_script(build).at("backward").gradients  # no GPU needed: 1024 · 1024 · 4 B and 1024 · 4 B
    4198400
    """
    as_one_of("device", device, DEVICES)
    steps = as_whole_number("steps", steps, 1, MAX_STEPS)
    assumptions = Assumptions(assume or {})
    is_script = isinstance(build, FindsItsSteps)
    with on_scratch_disk() as disk:
        if is_script:
            build.import_libraries()
            disk.start_anew()
        with recording(device, starts_in_host=is_script) as tracer:
            tracer.progress = Progress(say, steps)
            tracer.known.assumptions = assumptions
            run_steps(build, steps, tracer)
    assumptions.refuse_unused()
    timeline = timeline_of(tracer.log, "traced", device)
    refused = [
        f"this was refused, and the program went on without it: {what}"
        for what in dict.fromkeys(REFUSED)
    ]
    about_number = [*refused, *tracer.about_number, *tracer.missing.values()]
    about_number += tracer.left_out.tell(timeline.peak_bytes)
    about_number += tracer.generations.said
    kept = tracer.evaluations.words(timeline.peak_bytes)
    about_number += kept
    said = {ABOUT_NUMBER: "\n".join(about_number)} if about_number else {}
    if kept and tracer.evaluations.keeps_for_metrics:
        said[KEPT_FOR_METRICS] = tracer.evaluations.keeper
    if "compiled" in tracer.warned:
        said[IS_COMPILED] = "yes"
    if timeline.events and (line := tracer.log.line_at(timeline.events.peak(timeline.granularity))):
        said[OWN_LINE] = line
    return replace(timeline, source_lines=tracer.lines.texts, provenance=timeline.provenance | said)


class ScriptTracer(kit.Tracer):
    """The kit's tracer, for a program that reads values, uses the host's memory, and writes over its own weights."""

    buffers_by_name: ClassVar = {"bitsandbytes.gemm_4bit.default": four_bit_product}

    def __init__(self, device_type: str):
        self.known, self.places = KnownValues(), Places()
        self.is_paused, self.progress = False, Progress()
        # a script's, which may write over its weights itself
        self.on_update: Callable[[], None] | None = None
        # told "save" or "load" where a file of tensors is written or read
        self.on_file: Callable[[str], None] = lambda phase: None
        super().__init__(device_type)

    def forget(self) -> None:
        super().forget()
        self.log, self.left_out = ScriptLog(), ScriptLeftOut()
        self.missing: dict[int, str] = {}  # by optimizer
        self.lines = Lines(trace_script.__code__)
        self.lines.foreign_files |= OWN_FILES

    def at_file(self, phase: str, call: Callable) -> Callable:
        """``call``, which writes or reads a file of tensors; ``on_file`` is told before."""

        def told(*args, **kwargs):
            self.on_file(phase)
            return call(*args, **kwargs)

        return told

    @property
    def is_empty(self) -> bool:
        """Whether nothing has come into the memory that is traced."""
        return not self.log.births

    def before(self, func, types, args, kwargs):
        if func in NESTED:
            raise not_followed("nested tensors", "pad them to one length")
        out = super().before(func, types, args, kwargs)
        if out is not kit.FOLLOWED:
            return out
        if self.is_paused:
            return func(*args, **kwargs)
        if isinstance(func, torch._ops.HigherOrderOperator):
            raise not_followed(func, "write it out, attention as F.scaled_dot_product_attention")
        self.progress.one_more(self.log)
        return out

    def run(self, func, args, kwargs, frame):
        """In inference mode a composite operation comes whole; what is of the host stays there."""
        # torch's own code may ask for the card below all rules
        if place_named(kwargs.get("device")) is Place.CARD:
            with self.places.makes(Place.CARD):
                return self.run(func, args, kwargs | {"device": META}, frame)
        if torch.is_inference_mode_enabled():
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        is_copy = func is aten.copy_.default and self.device_type == "meta"
        if is_copy and args[1].is_meta and not args[0].is_meta:
            return args[0]  # to the host: no values move
        if func._schema.is_mutable:
            self.before_write(args[0])
        self.place = place = self.places.of_result(args, kwargs)
        if place is Place.HOST:
            if func._schema.is_mutable and isinstance(args[0], Tensor) and not args[0].is_meta:
                return args[0]  # a small tensor of the host keeps the values that it had
            stacks = func is aten.stack.default
            args, kwargs = self.places.together((args, kwargs), with_numbers=stacks)
        return super().run(func, args, kwargs, frame)

    def called(self, func, args, kwargs, frame):
        try:
            out = func(*args, **kwargs)
        except VALUE_ERRORS as error:
            if isinstance(error, NO_KERNEL) and not VALUE_TAGS & set(func.tags):
                return self.decomposed(func, args, kwargs, error)
            out = self.from_values(func, args, kwargs, error, frame)
        except RuntimeError as error:
            is_read = func is aten._local_scalar_dense.default
            if is_read or "cannot be called on meta tensors" in str(error):
                out = self.from_values(func, args, kwargs, error, frame)
            else:
                is_trained = any(t.requires_grad for t in tensors_in(args))
                if "expected device meta" in str(error) and is_trained:
                    raise OutsideBuild from error
                raise
        refuse_dtypes(func, args)
        self.known.follow(func, args, kwargs, out)
        return out

    def decomposed(self, func, args, kwargs, error):
        """An operation without a kernel as those that it is made of; a DTensor hands on such (``to.dtype_layout``)."""
        with self:
            out = func.decompose(*args, **kwargs)
        if out is NotImplemented:
            instead = "give it a kernel without values by torch.library.register_fake"
            raise not_followed(func, instead) from error
        return out

    def from_values(self, func, args, kwargs, error, frame):
        """The result of an operation that looks at values, where they are known. Raises: NeedsValues."""
        self.known.num_questions += 1
        try:
            real = self.known.result_of(func, args, kwargs)
        except Unknown:
            number = self.known.assumptions.here()
            number = self.known.rows_kept(func, args) if number is None else number
            if number is None:
                raise NeedsValues(str(func), can_assume=func._opname in ASSUMED) from error
            out, scratch = result_of_size(func, args, kwargs, number)
            self.note_scratch([[scratch]] if scratch else [], func, frame)
            return out
        if not isinstance(real, Tensor):
            return real
        device = args[0].device
        out = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device=device)
        # torch's DeviceMesh puts the fake tensors' mode aside
        return real if has_values(out) else out

    def block_of(self, tensor: Tensor) -> int | None:
        """The block of a tensor; a sparse one, which has no storage, is refused."""
        if tensor.layout is not torch.strided:
            refuse_unseen([tensor])
        return super().block_of(tensor)

    def is_counted(self, tensor: Tensor) -> bool:
        if tensor.is_meta:
            return self.device_type == "meta" and self.places.of(tensor) is Place.CARD
        return tensor.device.type == self.device_type

    def note_scratch(self, stages, func, frame) -> None:
        if self.place is Place.CARD:
            super().note_scratch(stages, func, frame)

    place = Place.CARD

    def note(self, tensor: Tensor, op: str, frame, num_bytes: int | None = None) -> None:
        """Record the tensor's storage, if it is new: in the log, or as one that is not on the card."""
        if tensor.layout is not torch.strided:
            refuse_unseen([tensor])
        storage = tensor.untyped_storage()
        is_known = storage._cdata in self.blocks or storage in self.places.off_card
        if is_known or tensor.device.type != self.device_type:
            return
        if self.place is not Place.CARD:
            self.places.off_card[storage] = self.place
            return
        super().note(tensor, op, frame, num_bytes)

    def resize(self, storage: torch.UntypedStorage, num_bytes: int) -> torch.UntypedStorage:
        """``UntypedStorage.resize_``, by which FSDP frees and takes again what it gathers."""
        key = storage._cdata
        block = self.blocks.pop(key, None)
        if block is not None:
            self.log.free(block)
        elif key not in self.watches:
            return RESIZE(storage, num_bytes)
        if num_bytes:
            line = self.lines.of(sys._getframe(1))
            self.blocks[key] = self.log.allocate(num_bytes, "resize_", line)
        return RESIZE(storage, num_bytes)

    def before_write(self, written: object) -> None:
        """Say so if a weight is written over after its backward, or in it, by no optimizer of torch's."""
        log = self.log
        is_later = log.phase == "backward" or (log.phase == "forward" and log.micro_batch > 1)
        if not self.on_update or not is_later:
            return
        if any(self.block_of(t) in log.trained for t in tensors_in(written)):
            self.on_update()

    def before_optimizer(self, optimizer, *_) -> None:
        """Remember an optimizer of which weights have no gradient: what they would cost is not in the peak."""
        with torch._C.DisableTorchFunction():
            trained = (p for group in optimizer.param_groups for p in group["params"])
            wanted = [p for p in trained if p.requires_grad]
            num_missing = sum(p.grad is None for p in wanted)
        self.missing.pop(id(optimizer), None)
        if num_missing and optimizer.param_groups:
            self.missing[id(optimizer)] = (
                f"{num_missing:,} of the {len(wanted):,} tensors that {type(optimizer).__name__} trains have no "
                "gradient (a checkpoint with use_reentrant=True gives none if no input wants one), and so no states"
            )

    def now(self, change: str, *args: object) -> None:
        self.look()
        super().now(change, *args)

    def saw(self, part: str, tensors: list[Tensor]) -> None:
        with torch._C.DisableTorchFunction():
            refuse_unseen(tensors)
            tensors = list(tensors_in(tensors))
            if part == "trained":
                unseen = [t for t in tensors if self.is_counted(t) and self.block_of(t) is None]
                # FSDP's are empty between uses
                if any(t.untyped_storage().nbytes() for t in unseen):
                    raise OutsideBuild
            blocks = {self.block_of(tensor) for tensor in tensors}
        getattr(self.log, part).update(blocks - {None})


RESIZE = torch.UntypedStorage.resize_


@contextmanager
def recording(device: str, *, starts_in_host: bool = False):
    """Run the code inside on tensors without bytes, by the rules of ``device``; yields the ``ScriptTracer``."""
    with ExitStack() as stack:
        if device == "cuda":
            tracer = ScriptTracer("meta")
            mode = stack.enter_context(pretend_cuda_for_script(starts_in_host=starts_in_host))
            stack.enter_context(counted(tracer))
        else:
            tracer = ScriptTracer("cpu")
            mode = stack.enter_context(fake_cpu_for_script(tracer))
            stack.enter_context(kernels_on_meta(ScriptCard.kernels))
        # A real tensor is the host's, which the CPU's rules alone count.
        stack.enter_context(watching_threads(lambda tensor: device == "cpu" or tensor.is_meta))
        tracer.known, tracer.about_number = mode.known, mode.about_number
        tracer.warned = mode.warned
        # a CPU's mode has none: nothing moves
        tracer.places = getattr(mode, "places", tracer.places)
        mode.before_write = tracer.before_write
        tracer.evaluations = Evaluations(tracer)
        tracer.generations = Generations(tracer)
        mode.rules[torch.cat] = tracer.generations.cat
        called = tracer.evaluations.around(torch.nn.Module.__call__)
        changes = replaced(
            (torch, "compile", functools.partial(as_compiled, tracer, torch.compile)),
            (torch.UntypedStorage, "resize_", lambda *args: tracer.resize(*args)),
            (torch.nn.Module, "__call__", called),
            (torch, "save", tracer.at_file("save", torch.save)),
            (torch, "load", tracer.at_file("load", torch.load)),
        )
        stack.enter_context(changes)
        stack.callback(register_optimizer_step_pre_hook(tracer.before_optimizer).remove)
        tracer.look = patching_libraries(tracer, stack)
        tracer.look()
        stack.enter_context(tracer)
        tracer.calibrate()
        tracer.forget()
        stack.callback(tracer.watches.clear)  # first of all on exit: what dies later is in no log
        yield tracer
