"""One line under a cell that takes long: how far it is. Where the cell is a loop, ``tqdm`` around the loop says it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from tqdm import tqdm


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Inside, every trace writes how far it is into one line, which goes at the end; the line's writer, for others.

    The planner traces too. ``run_on_ranks`` is given the writer as ``say``.
    """
    with tqdm(bar_format="{desc}", leave=False, delay=1e-9, mininterval=0) as line:

        def write(words: str) -> None:
            line.set_description_str(words, refresh=False)
            line.update(0)  # a bar that was never updated is not cleared at its end

        with _told_of_traces(write):
            yield write


@contextmanager
def _telling(listener, write: Callable[[str], None]) -> Iterator[None]:
    token = listener.set(write)
    try:
        yield
    finally:
        listener.reset(token)


def _told_of_traces(write: Callable[[str], None]):
    """``stepscope``'s traces tell ``write`` how far they are; chapters 00 to 06 do without them."""
    try:
        from stepscope.tracing.log import LISTENER
    except ImportError:
        return nullcontext()
    return _telling(LISTENER, write)
