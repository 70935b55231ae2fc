"""A Ctrl-C that waits while torch is being patched, or put back, and then comes through."""

import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch


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


def switches() -> tuple:
    """What a program's ``with`` turns on and off: autocast and its dtype by device, gradients, hooks and modes."""
    casts = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")]
    modes = torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()
    return casts, torch.is_grad_enabled(), top_hooks(), modes


def top_hooks() -> tuple | None:
    """The innermost ``saved_tensors_hooks``, as checkpointing sets them."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def put_back(before: tuple) -> None:
    """Turn all of ``switches()`` as they were, and forget what autocast had cast."""
    casts, has_grad, hooks, (num_function_modes, num_dispatch_modes) = before
    while torch._C._len_torch_function_stack() > num_function_modes:
        torch.overrides._pop_mode()
    while torch._C._len_torch_dispatch_stack() > num_dispatch_modes:
        torch.utils._python_dispatch._pop_mode()
    while top_hooks() not in (hooks, None):
        torch._C._autograd._pop_saved_tensors_default_hooks()
    for device, is_on, dtype in casts:
        torch.set_autocast_enabled(device, is_on)
        torch.set_autocast_dtype(device, dtype)
    torch.set_grad_enabled(has_grad)
    torch.clear_autocast_cache()


def unwind(error: BaseException | None) -> None:
    """Let go of what the frames of an error hold: a generator waiting there, as checkpointing's, ends its ``with``."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__


@contextmanager
def interrupts_held_back() -> Iterator[HeldBack]:
    """A Ctrl-C waits for the end of the block, or for who asks ``is_waiting``; a second one does not.

    One that comes inside an ``__enter__``, before its ``with``, leaves what that turned on: it is put back.
    """
    held, before, switched = HeldBack(), signal.getsignal(signal.SIGINT), switches()
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield held
        return

    def wait(*signal_and_frame):
        if held.is_waiting or not held.is_held:
            before(*signal_and_frame)
        held.is_waiting = held.is_held

    signal.signal(signal.SIGINT, wait)
    try:
        yield held
    except KeyboardInterrupt as interrupt:
        unwind(interrupt)
        put_back(switched)
        raise
    finally:
        signal.signal(signal.SIGINT, before)
    if held.is_waiting:
        raise KeyboardInterrupt
