"""A program's own threads, whose memory no trace and no profiler sees: pools run at once, others are refused.

For a program that loads weights in a pool, or makes its batches ready in a thread beside the step.
"""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from memkit.program.doors import line_of, outside, tensors_in

TORCH = str(Path(torch.__file__).parent)
HOMES = TORCH, __file__
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
    """Stands in a thread and notes the lines whose memory is missed; all else there goes on as before."""

    def __init__(self, misses: Callable[[Tensor], bool], missed: list[str]):
        super().__init__()
        self.misses, self.missed = misses, missed

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = None
        try:
            out = func(*args, **(kwargs or {}))
        finally:
            if any(map(self.misses, tensors_in([args, kwargs, out]))):
                self.missed.append(line_of(outside(sys._getframe(1), *HOMES)))
        return out

    def __exit__(self, kind, error, traceback):
        super().__exit__(kind, error, traceback)
        if isinstance(error, RuntimeError):  # such as a card that only the trace's own thread has
            frames = [frame for frame, _ in walk_tb(traceback)]
            self.missed += [line_of(frame) for frame in frames if outside(frame, *HOMES) is frame][-1:]


@contextmanager
def watching_threads(misses: Callable[[Tensor], bool]) -> Iterator[None]:
    """Watch each thread that starts meanwhile; ``misses`` says of a tensor there whether it is counted here.

    Raises: ValueError: a thread has made memory that is counted, where nobody looks.
    """
    missed: list[str] = []
    start, watcher, is_over = threading.Thread.start, threading.current_thread(), threading.Event()
    can_interrupt = watcher is threading.main_thread() and hasattr(signal, "pthread_kill")

    def start_watched(thread: threading.Thread) -> None:
        run = thread.run

        def run_watched():
            try:
                with InAThread(misses, missed):  # dispatch modes are a thread's own
                    run()
            except BaseException:
                if missed and can_interrupt and not is_over.is_set():
                    # the program may be waiting for what will never come, and only a signal ends a wait
                    signal.pthread_kill(watcher.ident, signal.SIGINT)
                raise

        thread.run = run_watched
        start(thread)

    with (
        patch.object(threading.Thread, "start", start_watched),
        patch.object(ThreadPoolExecutor, "submit", run_at_once),
    ):
        try:
            yield
        finally:  # also where the program fails because the thread did
            is_over.set()
            if missed:
                raise ValueError(
                    f"{missed[0]}: torch runs in a thread of its own, where its memory is not seen: "
                    "call it in the thread that calls the step"
                )
