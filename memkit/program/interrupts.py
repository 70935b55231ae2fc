"""A program ends, or fails, or is stopped by Ctrl-C, and torch is as it was before it.

A Ctrl-C waits while torch is being patched, or put back, and then comes through.
"""

import inspect
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import torch

from memkit.setup.training import DEVICES


class HeldBack:
    """Whether a Ctrl-C waits now (``is_held``), and whether one has come (``is_waiting``)."""

    def __init__(self):
        self.is_held, self.is_waiting = True, False

    @contextmanager
    def let_through(self) -> Iterator[None]:
        """Inside, a Ctrl-C ends the program at once, as ever; one that has waited comes now."""
        self.is_held = False
        try:
            if self.is_waiting:
                raise KeyboardInterrupt
            yield
        finally:
            self.is_held = True


def settings() -> tuple[Callable[[], object], ...]:
    """What a program may set for all of torch, as calls that put it back."""
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return (
        partial(torch.set_default_device, context and context.device),
        partial(torch.set_default_dtype, torch.get_default_dtype()),
        partial(torch.set_grad_enabled, torch.is_grad_enabled()),
        partial(torch.set_deterministic_debug_mode, torch.get_deterministic_debug_mode()),
        partial(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision()),
        partial(torch.set_num_threads, torch.get_num_threads()),
        partial(torch.set_anomaly_enabled, torch.is_anomaly_enabled()),
        *(partial(torch.set_autocast_enabled, each, torch.is_autocast_enabled(each)) for each in DEVICES),
        *(partial(torch.set_autocast_dtype, each, torch.get_autocast_dtype(each)) for each in DEVICES),
        torch.clear_autocast_cache,
    )


def stacks() -> tuple[int, int, tuple | None]:
    """How many modes stand, and the innermost ``saved_tensors_hooks``, as checkpointing sets them."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack(), hooks


def cut(before: tuple[int, int, tuple | None]) -> None:
    """Take off what stands on the stacks since."""
    num_function_modes, num_dispatch_modes, hooks = before
    while stacks()[0] > num_function_modes:
        torch.overrides._pop_mode()
    while stacks()[1] > num_dispatch_modes:
        torch.utils._python_dispatch._pop_mode()
    while stacks()[2] not in (hooks, None):
        torch._C._autograd._pop_saved_tensors_default_hooks()


def unwind(error: BaseException | None) -> None:
    """Close the generators that wait in an error's frames, as checkpointing's: each ends its ``with``."""
    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            for each in list(frame.f_locals.values()):
                value = inspect.getattr_static(each, "gen", each)
                if inspect.isgenerator(value) and not value.gi_running:
                    with suppress(Exception):
                        value.close()
        error = error.__context__


@contextmanager
def interrupts_held_back() -> Iterator[HeldBack]:
    """A Ctrl-C waits for the end of the block, or for who asks ``is_waiting``; a second one does not."""
    interrupts, before = HeldBack(), signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield interrupts
        return

    def wait(*signal_and_frame):
        if interrupts.is_waiting or not interrupts.is_held:
            before(*signal_and_frame)
        interrupts.is_waiting = interrupts.is_held

    signal.signal(signal.SIGINT, wait)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupts.is_waiting:
        raise KeyboardInterrupt


@contextmanager
def torch_as_before() -> Iterator[HeldBack]:
    """What a program sets for all of torch, or leaves on, is afterwards as it was; a Ctrl-C is held back meanwhile.

    One that comes inside an ``__enter__``, before its ``with``, leaves on what that turned on.
    """
    to_put_back, stood = settings(), stacks()
    with interrupts_held_back() as interrupts:
        try:
            yield interrupts
        except BaseException as error:
            unwind(error)
            raise
        finally:
            for put_back in to_put_back:
                put_back()
            cut(stood)
