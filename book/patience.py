"""One line under a cell that takes long: how far it is. Where the cell is a loop, ``tqdm`` around the loop says it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

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

        yield write
