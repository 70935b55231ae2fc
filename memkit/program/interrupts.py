"""A Ctrl-C that waits while torch is being patched, or put back, and then comes through."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class HeldBack:
    """Whether a Ctrl-C waits now (``is_held``), and whether one has come (``is_waiting``)."""

    def __init__(self):
        self.is_held, self.is_waiting = True, False

    @contextmanager
    def let_through(self) -> Iterator[None]:
        """Inside, a Ctrl-C ends the program at once, as ever; one that has waited comes now.

        One that comes between an ``__enter__`` and its ``with`` leaves autocast or ``no_grad`` on: it is put back.
        """
        self.is_held, before = False, switches()
        try:
            if self.is_waiting:
                raise KeyboardInterrupt
            yield
        except KeyboardInterrupt:
            self.is_held = True
            put_back(before)
            raise
        finally:
            self.is_held = True


def switches() -> tuple:
    """What a program's ``with`` turns on and off: autocast and its dtype by device, and gradients."""
    casts = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")]
    return casts, torch.is_grad_enabled()


def put_back(before: tuple) -> None:
    """Turn autocast and gradients as they were, and forget what autocast had cast."""
    casts, has_grad = before
    for device, is_on, dtype in casts:
        torch.set_autocast_enabled(device, is_on)
        torch.set_autocast_dtype(device, dtype)
    torch.set_grad_enabled(has_grad)
    torch.clear_autocast_cache()


@contextmanager
def interrupts_held_back() -> Iterator[HeldBack]:
    """A Ctrl-C waits for the end of the block, or for who asks ``is_waiting``; a second one does not."""
    held, before = HeldBack(), signal.getsignal(signal.SIGINT)
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
    finally:
        signal.signal(signal.SIGINT, before)
    if held.is_waiting:
        raise KeyboardInterrupt
