"""How far a long trace has come, for whoever waits for it: the command line's ``memkit: step 1 of 2, forward: ...``."""

import time
from collections.abc import Callable
from contextvars import ContextVar

from stepscope.tracing.without_values import own_line

OPERATIONS_BETWEEN_LOOKS, SECONDS_BETWEEN_WORDS = 1000, 2.0
LISTENER: ContextVar[Callable[[str], object] | None] = ContextVar("listener", default=None)
"""Who is told of every trace that is given no ``say``, a planner's too: the line under a notebook's cell."""


class Progress:
    """Counts operations and tells ``say``, every two seconds, where the program is: phase, line and count."""

    def __init__(self, say: Callable[[str], object] | None = None, steps: int = 1):
        self.say, self.steps = say or LISTENER.get(), steps
        self.num_operations = 0
        self.said_at = time.monotonic()

    def one_more(self, log) -> None:
        """Another operation is about to run; the clock is read once in a thousand."""
        self.num_operations += 1
        if self.say is None or self.num_operations % OPERATIONS_BETWEEN_LOOKS:
            return
        if time.monotonic() - self.said_at >= SECONDS_BETWEEN_WORDS:
            where = "build" if log.phase == "init" else f"step {log.step} of {self.steps}, {log.phase}"
            self.say(f"{where}: {self.num_operations:,} operations so far, now {own_line()}")
            self.said_at = time.monotonic()
