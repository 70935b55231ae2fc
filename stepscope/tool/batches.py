"""The worst batch of a reader's own data, for ``stepscope report train.py --batches 500``: its loader runs alone.

A run is followed for two steps; what ends it may be the one long batch of its fortieth. A step is not traced for each
batch: at the first step the DataLoader that fed it hands out the rest alone, and only shapes are kept.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import prod
from unittest.mock import patch

from torch.utils.data.dataloader import _BaseDataLoaderIter

from memkit.program.hooks import tensors_in
from stepscope.tool.script import Script

MOST_TRACED = 4
"""Of batches none of which is the largest in every direction, so many are traced."""


@dataclass(frozen=True)
class Batch:
    """A batch of a loader: its number, counted from 1, and the shapes of its tensors."""

    number: int
    shapes: tuple[tuple[int, ...], ...]

    @property
    def num_values(self) -> int:
        """Numbers in all its tensors."""
        return sum(map(prod, self.shapes))

    def needs_no_more_than(self, other: "Batch") -> bool:
        """Whether no tensor of it is larger in any direction than the same one of the other batch."""
        if [len(shape) for shape in self.shapes] != [len(shape) for shape in other.shapes]:
            return self.shapes == ()
        pairs = zip(self.shapes, other.shapes, strict=True)
        return all(
            mine <= its for ours, theirs in pairs for mine, its in zip(ours, theirs, strict=True)
        )

    def __str__(self) -> str:
        return " × ".join(f"{size:,}" for size in max(self.shapes, key=prod, default=()))


class Scanned(BaseException):
    """Ends the script when its loader has been asked; passes the script's own ``except Exception``."""


class Loaders:
    """Sees what every DataLoader of a script hands out.

    ``num_batches``: so many of the loader that feeds the first step are asked for, and the script ends by ``Scanned``;
    with ``wanted``, the number of one of them, it trains on that one from then on.
    """

    def __init__(self, num_batches: int = 0, wanted: int = 0):
        self.num_batches, self.wanted = num_batches, wanted
        self.seen: list[Batch] = []

    @contextmanager
    def during_build(self) -> Iterator:
        """Around the whole script: its loaders are watched."""
        self.by_loader: dict[_BaseDataLoaderIter, list[Batch]] = {}
        self.kept: dict[_BaseDataLoaderIter, object] = {}
        self.ask, self.last, self.repeats = _BaseDataLoaderIter.__next__, None, None
        with patch.object(_BaseDataLoaderIter, "__next__", lambda loader: self.next_of(loader)):
            yield lambda: None

    def next_of(self, loader: _BaseDataLoaderIter) -> object:
        """What a loader hands out, or again the batch that is wanted of it."""
        if loader is self.repeats:
            return copy.deepcopy(self.kept[loader])
        self.last = loader
        batch = self.ask(loader)
        seen = self.by_loader.setdefault(loader, [])
        tensors = tensors_in(dict(batch) if isinstance(batch, Mapping) else batch)
        seen.append(Batch(len(seen) + 1, tuple(tuple(tensor.shape) for tensor in tensors)))
        if len(seen) == self.wanted:
            self.kept[loader] = copy.deepcopy(batch)
        return batch

    @property
    def rows_and_batch(self) -> tuple[int, int]:
        """Rows that the loader asked last has in all, and those of its batch; (0, 0) where it does not know them."""
        sampler = getattr(self.last, "_index_sampler", None)
        # a loader without batches of its own, or of data without a length
        with suppress(AttributeError, TypeError):
            return len(sampler.sampler), sampler.batch_size
        return 0, 0

    @contextmanager
    def during_step(self) -> Iterator[None]:
        """From the first step on. Raises: ValueError: no loader feeds it. Scanned: its batches are known."""
        self.seen = self.by_loader.get(self.last, [])
        if self.num_batches:
            if self.last is None:
                raise ValueError(
                    "--batches: no DataLoader of torch's hands out what the first step trains on"
                )
            while len(self.seen) < (self.wanted or self.num_batches):
                try:
                    self.next_of(self.last)
                except StopIteration:
                    break
            if not self.wanted:
                raise Scanned
            self.repeats = self.last
        yield


def watched(script: Script, loaders: Loaders) -> Script:
    """The script whose loaders are seen."""
    return script.also(loaders.during_build, loaders.during_step)


def largest_of(batches: list[Batch]) -> list[Batch]:
    """Those that no other one exceeds or equals in every direction, most values first."""
    found: list[Batch] = []
    for batch in sorted(batches, key=lambda batch: (-batch.num_values, batch.number)):
        if not any(batch.needs_no_more_than(larger) for larger in found):
            found.append(batch)
    return found


def on_its_worst(
    script: Script, num_batches: int, traced: Callable, say: Callable
) -> tuple[Script, str]:
    """The script that trains on the worst of its first batches, and which one that is.

    Raises: ValueError: no loader feeds its first step.
    """
    say(f"asking the loader for {num_batches:,} batches")
    loaders = Loaders(num_batches)
    with suppress(Scanned):
        traced(watched(script, loaders))
    largest, number = largest_of(loaders.seen), f"{len(loaders.seen):,}"
    tried = [
        (batch, watched(script, Loaders(num_batches, batch.number)))
        for batch in largest[:MOST_TRACED]
    ]
    if len(tried) > 1:
        say(f"tracing {len(tried)} batches, none of which is the largest in every direction")
        tried.sort(key=lambda one: traced(one[1]).peak_bytes, reverse=True)
    (worst, changed), left = tried[0], len(largest) - len(tried)
    words = f"Batch {worst.number:,} of {number} ({worst}) is the worst"
    return (
        changed,
        f"{words} of {len(tried)} traced; {left} smaller ones were not" if left else words,
    )


def difference(batches: list[Batch]) -> str:
    """That the first batches of a loader are not of one shape; nothing where they are."""
    shapes = list(dict.fromkeys(map(str, batches)))
    if len(shapes) < 2:
        return ""
    return f"The batches differ ({', '.join(shapes[:3])}): --batches 500 finds the worst of 500.\nWith these"
