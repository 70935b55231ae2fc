"""Every allocation of a training step, found without memory: the real PyTorch code runs on tensors that have no bytes.

``trace_memory(build)`` runs ``build()`` and then the step that it returns, on tensors with a shape and a dtype only.
A ``TorchDispatchMode`` sees every operation that torch runs, in the backward and in the optimizer too, and notes each
new storage; a weak reference to the storage tells when Python or autograd let it go. A model of 70 billion parameters
needs a laptop and seconds.
"""

import sys
import weakref
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from memkit.attribution import Log, timeline
from memkit.cuda_rules import NeedsValues, pretend_cuda
from memkit.timeline import MemoryTimeline
from memkit.training import DEVICES
from memkit.units import ALLOCATOR_BLOCK_BYTES, as_whole_number

aten = torch.ops.aten
TORCH_HOME = str(Path(torch.__file__).parent)
OWN_FILES = {__file__, str(Path(__file__).with_name("cuda_rules.py")), str(Path(__file__).with_name("attribution.py"))}


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
        step = build()
        tracer.end_build()
        for number in range(1, steps + 1):
            tracer.log.start_step(number)
            step()
            tracer.end_step()
        log = tracer.log
    granularity = ALLOCATOR_BLOCK_BYTES if device == "cuda" else 1
    return timeline(log, source="traced", device=device, granularity=granularity)


class Tracer(TorchDispatchMode):
    """Notes every storage that is born and dies; knows the parameters, gradients and optimizer states."""

    def __init__(self, device_type: str):
        super().__init__()
        self.log = Log()
        self.device_type = device_type
        self.blocks: dict[int, int] = {}
        self.watches: dict[int, weakref.ref] = {}
        self.modules: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self.parameters: dict[int, weakref.ref] = {}
        self.makes_storage: dict[object, bool] = {}
        self.recompute_start = -1

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunction():  # in a backward CudaRules would see the lines below
            return self.run(func, args, kwargs)

    def run(self, func, args, kwargs):
        """Run one operation and record what it allocated."""
        try:
            out = func(*args, **kwargs) if kwargs else func(*args)
        except (NotImplementedError, torch._subclasses.fake_tensor.DynamicOutputShapeException) as error:
            raise NeedsValues(str(func)) from error
        makes_storage = self.makes_storage.get(func)
        if makes_storage is None:
            returns = func._schema.returns
            makes_storage = self.makes_storage[func] = any(r.alias_info is None for r in returns)
        if makes_storage:
            if isinstance(out, Tensor):
                self.note(out, func)
            elif isinstance(out, (tuple, list)):
                for item in out:
                    if isinstance(item, Tensor):
                        self.note(item, func)
                    elif isinstance(item, (tuple, list)):
                        for tensor in item:
                            self.note(tensor, func)
        return out

    def note(self, tensor: Tensor, func: object) -> None:
        """Record the tensor's storage, if it is new."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.blocks or tensor.device.type != self.device_type:
            return
        num_bytes = storage.nbytes()
        if num_bytes == 0:
            return
        block = self.blocks[key] = self.log.allocate(num_bytes, func)

        def freed(_, key=key, block=block):
            del self.blocks[key], self.watches[key]
            self.log.free(block)

        self.watches[key] = weakref.ref(storage, freed)

    def block_of(self, tensor: Tensor) -> int | None:
        return self.blocks.get(tensor.untyped_storage()._cdata)

    def known_parameters(self):
        """Every parameter of the program that is alive."""
        for reference in list(self.parameters.values()):
            parameter = reference()
            if parameter is not None:
                yield parameter

    def find_weights(self) -> None:
        """Weights: parameters and buffers of every module, and what the optimizers update."""
        for module in list(self.modules):
            for tensor in (*module._parameters.values(), *module._buffers.values()):
                if tensor is not None:
                    self.add_weight(tensor)

    def add_weight(self, tensor: Tensor) -> None:
        if isinstance(tensor, Tensor) and (block := self.block_of(tensor)) is not None:
            self.log.weights.add(block)
            if tensor.requires_grad and id(tensor) not in self.parameters:
                self.parameters[id(tensor)] = weakref.ref(tensor, lambda _, key=id(tensor): self.parameters.pop(key))

    def find_gradients(self) -> None:
        for parameter in self.known_parameters():
            if parameter.grad is not None and (block := self.block_of(parameter.grad)) is not None:
                self.log.gradients.add(block)

    def end_build(self) -> None:
        self.find_weights()
        self.log.mark("init")

    def end_step(self) -> None:
        self.find_weights()
        self.log.end_step()

    def before_optimizer(self, optimizer, args, kwargs) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self.add_weight(parameter)
        self.find_gradients()
        self.outer_phase, self.log.phase = self.log.phase, "optimizer"

    def after_optimizer(self, optimizer, args, kwargs) -> None:
        for tensor in tensors_in(optimizer.state):
            if (block := self.block_of(tensor)) is not None:
                self.log.states.add(block)
        if self.outer_phase == "backward":
            self.log.phase = "backward"
        else:
            self.log.end_optimizer()

    @contextmanager
    def watching(self):
        """Hooks on modules, optimizers and the autograd engine; removed on exit, whatever happens."""
        run_backward = torch.autograd._engine_run_backward

        def backward(*args, **kwargs):
            if self.log.phase == "backward":
                return run_backward(*args, **kwargs)
            self.find_weights()
            self.log.start_backward()
            try:
                return run_backward(*args, **kwargs)
            finally:
                self.find_gradients()
                self.log.end_backward()

        def registered(module, name, tensor):
            self.modules.add(module)

        hooks = torch.nn.modules.module
        handles = (
            hooks.register_module_parameter_registration_hook(registered),
            hooks.register_module_buffer_registration_hook(registered),
            register_optimizer_step_pre_hook(self.before_optimizer),
            register_optimizer_step_post_hook(self.after_optimizer),
        )
        try:
            with patch.object(torch.autograd, "_engine_run_backward", backward):
                yield
        finally:
            for handle in handles:
                handle.remove()
            self.watches.clear()


def tensors_in(value: object):
    """Every tensor inside nested dicts, lists and tuples."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in list(value.values()):
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


@contextmanager
def recording(device: str):
    """Run the code inside on tensors without bytes, by the rules of ``device``; yields the ``Tracer``."""
    with ExitStack() as stack:
        if device == "cuda":
            stack.enter_context(pretend_cuda())
            tracer = Tracer("meta")
        else:
            fake = torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True)
            stack.enter_context(fake)
            tracer = Tracer("cpu")
        stack.enter_context(tracer.watching())
        stack.enter_context(tracer)
        yield tracer
