"""Follow a training program from outside: which phase it is in, which tensors are weights or states.

Any PyTorch code passes a few places that can be hooked: a module registers its parameters, ``backward`` calls the
autograd engine, ``Optimizer.step`` calls its hooks, a recomputation turns gradients on. ``watching`` hooks them while
the program runs, tells a recorder what passes, and leaves no trace in torch afterwards. The trace and the measurement
use the same hooks, so a part means the same in both. ``torch_as_before`` puts back what a program set for all of
torch.
"""

import functools
import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Protocol, runtime_checkable
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from memkit.setup import DEVICES

PLAIN = {Tensor, torch.nn.Parameter, FakeTensor}  # no tensor inside them


class Recorder(Protocol):
    """Whom ``watching`` tells what passes.

    ``is_empty``: the program has put nothing into the memory that is watched; False where nobody knows yet.
    """

    is_empty: bool

    def now(self, change: str, *arguments: object) -> None:
        """A method of ``Log`` of this name is to be called with these."""

    def saw(self, part: str, tensors: Iterable[Tensor]) -> None:
        """These are ``weights``, ``gradients`` or ``states``; or ``trained``, those that are about to be.

        Raises: OutsideBuild: one of those that are about to be trained was allocated where nobody watched.
        """


@runtime_checkable
class FindsItsSteps(Protocol):
    """A program that runs by itself, as a training script does, and tells where its steps begin and end."""

    def import_libraries(self) -> None: ...

    def run(self, steps: int, program: "Program", recorder: Recorder) -> None: ...


class OutsideBuild(ValueError):
    """A tensor is trained that was not allocated while the program was watched."""

    def __init__(self):
        super().__init__(
            "the step trains a tensor that was not allocated in build(): make model and optimizer inside "
            "build(), and copy what comes from NumPy or a mapped file (torch.tensor, clone)"
        )


def run_steps(
    build: Callable[[], Callable] | FindsItsSteps, steps: int, recorder: Recorder
) -> None:
    """Call ``build()`` and then its step ``steps`` times, and tell the recorder everything on the way.

    What finds its own steps runs in their place.

    Raises: ValueError: ``build``, or what it returns, is no function without arguments. OutsideBuild: the
    model was not made inside ``build()``.
    """
    with watching(recorder) as program:
        if isinstance(build, FindsItsSteps):
            return build.run(steps, program, recorder)
        # a model is callable too, but is neither of the two
        step = None if isinstance(build, torch.nn.Module) else build()
        if not callable(step) or isinstance(step, torch.nn.Module):
            words = (
                "a function without arguments that makes model and optimizer and returns the step"
            )
            raise ValueError(f"pass {words}, another function")
        program.report_weights()
        recorder.now("mark", "init")
        for number in range(1, steps + 1):
            recorder.now("start_step", number)
            refuse_unfinished(step())
            program.report_weights()
            recorder.now("end_step")


def refuse_unfinished(result: object) -> None:
    """Raises: ValueError: the step has returned something that has yet to run."""
    if inspect.isgenerator(result) or inspect.iscoroutine(result):
        result.close()
        raise ValueError(
            f"{result.__qualname__}: the step is a generator or a coroutine and has not run: "
            "return a function that runs it to its end"
        )


@functools.cache
def source_name(path: str) -> str:
    """A file's name; ``cell`` for a notebook's cell, whose file is named by a hash."""
    return "cell" if "ipykernel_" in path else Path(path).name


def line_of(frame: FrameType) -> str:
    """The line that a frame runs, as ``file.py:line function``."""
    return f"{source_name(frame.f_code.co_filename)}:{frame.f_lineno} {frame.f_code.co_qualname}"


def outside(frame: FrameType | None, *homes: str) -> FrameType | None:
    """The innermost frame, from this one on, whose file lies in none of these places; None where all do."""
    while frame is not None and frame.f_code.co_filename.startswith(homes):
        frame = frame.f_back
    return frame


class Program:
    """What is known of the program: its modules, the tensors it trains, and whether a backward is running."""

    def __init__(self, recorder: Recorder):
        self.recorder = recorder
        self.modules: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self.trained: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()
        self.is_in_backward = False

    def registered(self, module: torch.nn.Module, name: str, tensor: Tensor | None) -> None:
        self.modules.add(module)

    def tensors(self) -> list[Tensor]:
        """Every parameter and buffer, once each."""
        known = dict(self.trained)
        for module in list(self.modules):
            own = *module._parameters.values(), *module._buffers.values()
            known |= {id(tensor): tensor for tensor in own if tensor is not None}
        return list(known.values())

    def report_weights(self) -> None:
        self.recorder.saw("weights", self.tensors())

    def report_trained(self, tensors: Iterable[Tensor]) -> None:
        trained = [t for t in tensors if t.requires_grad and t.is_leaf and t.numel()]
        self.recorder.saw("trained", trained)

    def report_gradients(self, parameters: list[Tensor]) -> None:
        with torch._C.DisableTorchFunction():
            gradients = [p.grad for p in parameters if p.is_leaf and p.grad is not None]
            self.recorder.saw("gradients", gradients)

    def find_leaves(self, roots: Iterable[Tensor]) -> None:
        """Remember the leaves of the autograd graph: they are the weights of a program without any module."""
        waiting, seen = [root.grad_fn for root in roots], set()
        while waiting:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            leaf = getattr(node, "variable", None)
            if isinstance(leaf, Tensor):
                self.trained[id(leaf)] = leaf
            waiting.extend(following for following, _ in node.next_functions)

    def before_optimizer(self, optimizer, args, kwargs) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.trained.update((id(parameter), parameter) for parameter in parameters)
        self.report_trained(parameters)
        self.recorder.saw("weights", parameters)
        self.report_gradients(parameters)
        self.recorder.now("start_optimizer")

    def after_optimizer(self, optimizer, args, kwargs) -> None:
        self.recorder.saw("states", list(tensors_in(optimizer.state)))
        self.recorder.now("end_optimizer")


@contextmanager
def watching(recorder: Recorder) -> Iterator[Program]:
    """Hook and patch torch; both are gone on exit, whatever happened inside."""
    program = Program(recorder)
    run_backward, set_state = torch.autograd._engine_run_backward, torch.nn.Module.__setstate__
    enter_grad, exit_grad = torch.enable_grad.__enter__, torch.enable_grad.__exit__

    def backward(roots, *args, **kwargs):
        if program.is_in_backward or is_compiling():
            return run_backward(roots, *args, **kwargs)
        program.find_leaves(roots)
        program.report_trained(list(program.trained.values()))
        program.report_weights()
        recorder.now("start_backward")
        program.is_in_backward = True
        try:
            return run_backward(roots, *args, **kwargs)
        finally:
            program.is_in_backward = False
            program.report_gradients(program.tensors())
            recorder.now("end_backward")

    def enter(context):
        if program.is_in_backward and not torch.is_grad_enabled():
            context.is_recomputation = True
            recorder.now("start_recomputation")
        return enter_grad(context)

    def leave(context, *error):
        if getattr(context, "is_recomputation", False):
            recorder.now("end_recomputation")
        return exit_grad(context, *error)

    def copy(module, state):
        """``copy.deepcopy`` and pickle make a module without registering its parameters: an average of the weights."""
        set_state(module, state)
        program.modules.add(module)

    module_hooks = torch.nn.modules.module
    handles = (
        module_hooks.register_module_parameter_registration_hook(program.registered),
        module_hooks.register_module_buffer_registration_hook(program.registered),
        register_optimizer_step_pre_hook(program.before_optimizer),
        register_optimizer_step_post_hook(program.after_optimizer),
    )
    try:
        with (
            patch.object(torch.autograd, "_engine_run_backward", backward),
            patch.object(torch.nn.Module, "__setstate__", copy),
            patch.object(torch.enable_grad, "__enter__", enter),
            patch.object(torch.enable_grad, "__exit__", leave),
        ):
            yield program
    finally:
        for handle in handles:
            handle.remove()


def is_compiling() -> bool:
    """Whether torch.compile is at work, whose own backward on fake tensors is not the program's."""
    return torch._guards.TracingContext.try_get() is not None


def is_wrapper(value: object) -> bool:
    """Whether this is a tensor made of tensors: DTensor, a quantized one."""
    return type(value) not in PLAIN and is_traceable_wrapper_subclass(value)


def tensors_in(value: object) -> Iterator[Tensor]:
    """Every tensor inside nested dicts, lists and tuples; of one that is made of others (sparse, sharded,
    quantized, inside ``torch.func``) the inner ones.
    """
    if is_wrapper(value):
        for name in value.__tensor_flatten__()[0]:
            yield from tensors_in(getattr(value, name))
    elif isinstance(value, Tensor):
        while torch._C._functorch.is_functorch_wrapped_tensor(value):
            value = torch._C._functorch.get_unwrapped(value)
        yield from (
            (value._indices(), value._values()) if value.layout is torch.sparse_coo else (value,)
        )
    elif isinstance(value, dict):
        for item in list(value.values()):
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


SETTINGS = "default_dtype deterministic_debug_mode float32_matmul_precision num_threads".split()


def settings() -> list[Callable[[], object]]:
    """What a program may set for all of torch, as calls that put it back."""
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    calls = [
        torch.clear_autocast_cache,
        partial(torch.set_default_device, context and context.device),
        partial(torch.set_grad_enabled, torch.is_grad_enabled()),
        partial(torch.set_anomaly_enabled, torch.is_anomaly_enabled()),
    ]
    for name in SETTINGS:
        calls.append(partial(getattr(torch, f"set_{name}"), getattr(torch, f"get_{name}")()))
    for each in DEVICES:
        calls.append(partial(torch.set_autocast_enabled, each, torch.is_autocast_enabled(each)))
        calls.append(partial(torch.set_autocast_dtype, each, torch.get_autocast_dtype(each)))
    return calls


def stacks() -> tuple[int, int, tuple | None]:
    """How many modes stand, and the innermost ``saved_tensors_hooks`` (checkpointing's)."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack(), hooks


@contextmanager
def torch_as_before() -> Iterator[None]:
    """What a program sets for all of torch, or leaves on when it fails, is as before at the end."""
    to_put_back = settings()
    num_function_modes, num_dispatch_modes, hooks = stacks()
    try:
        yield
    finally:
        for put_back in to_put_back:
            put_back()
        while stacks()[0] > num_function_modes:
            torch.overrides._pop_mode()
        while stacks()[1] > num_dispatch_modes:
            torch.utils._python_dispatch._pop_mode()
        # A checkpoint whose function failed leaves its hooks on while somebody holds the error.
        while stacks()[2] not in (hooks, None):
            torch._C._autograd._pop_saved_tensors_default_hooks()
