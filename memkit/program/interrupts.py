"""A Ctrl-C that waits while torch is being patched, or put back, and then comes through."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


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
