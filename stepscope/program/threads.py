"""A program's own threads, whose memory no trace and no profiler sees: pools run at once, others are refused.

For a program that loads weights in a pool, or makes its batches ready in a thread beside the step.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from memkit.program.hooks import line_of, outside, tensors_in

TORCH = str(Path(torch.__file__).parent)
SUBMIT = ThreadPoolExecutor.submit


def run_at_once(pool, function, /, *args, **kwargs) -> Future:
    """In place of ``ThreadPoolExecutor.submit``: a pool that loads weights does so where it is seen."""
    if sys._getframe(1).f_code.co_filename.startswith(TORCH):
        # torch.compile's own pool compiles code, and its caller holds the lock that the work waits for
        return SUBMIT(pool, function, *args, **kwargs)
    future = Future()
    try:
        future.set_result(function(*args, **kwargs))
    except Exception as error:  # noqa: BLE001 - whoever asks for the result gets it
        future.set_exception(error)
    return future


class InAThread(TorchDispatchMode):
    """Stands in a thread, where no other mode does, and notes whether memory is missed there."""

    def __init__(self, misses: Callable[[Tensor], bool]):
        super().__init__()
        self.misses, self.has_missed = misses, False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.has_missed |= any(map(self.misses, tensors_in([args, kwargs, out])))
        return out


@contextmanager
def watching_threads(misses: Callable[[Tensor], bool]) -> Iterator[None]:
    """Watch each thread that starts meanwhile; ``misses`` says of a tensor there whether it is counted here.

    Raises: ValueError: a thread has made memory that is counted, where nobody looks.
    """
    missed: list[str] = []
    start = threading.Thread.start

    def start_watched(thread: threading.Thread) -> None:
        run, place = thread.run, line_of(outside(sys._getframe(1), TORCH))

        def run_watched():
            mode = InAThread(misses)
            try:
                with mode:
                    run()
            except RuntimeError:  # such as a card that only the trace's own thread has
                mode.has_missed = True
                raise
            finally:
                missed.extend([place] * mode.has_missed)

        thread.run = run_watched
        start(thread)

    with (
        patch.object(threading.Thread, "start", start_watched),
        patch.object(ThreadPoolExecutor, "submit", run_at_once),
    ):
        try:
            yield
        finally:  # also where the program fails because the thread did
            if missed:
                raise ValueError(
                    f"{missed[0]}: torch runs in a thread of its own, where its memory is not seen: "
                    "call it in the thread that calls the step"
                )
