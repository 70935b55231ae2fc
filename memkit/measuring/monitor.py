"""Watch a training loop's memory: one line a step, and a warning while there is still time.

At the end of a step the activations are gone, so ``memory_allocated`` then is the *floor*. What decides
whether the job lives is the peak of ``memory_reserved``. A floor that rises step after step is a leak.
"""

from dataclasses import dataclass
from itertools import pairwise

from memkit.measuring.small_card import CudaCard, SimulatedCard
from memkit.units import aligned_table, format_bytes

RESERVED_SHARE, PATIENCE = 0.9, 3
"""The share of the card at which a warning begins, and the steps in which the floor has to rise."""


@dataclass(frozen=True, kw_only=True)
class StepMemory:
    """One step's bytes: allocated at its end, the peaks within it, and the retries so far."""

    floor_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    num_alloc_retries: int


class MemoryMonitor:
    """Call ``after_step()`` at the end of every step; it returns the warnings of this step, most often none.

    ``card`` is what ``capped_card`` gives. A floor that rises in so many steps in a row as ``PATIENCE`` says counts
    as a leak (not the first step: optimizer states are born in it).
    """

    def __init__(self, card: CudaCard | SimulatedCard):
        self.card = card
        self.steps: list[StepMemory] = []
        self.start_retries = card.num_alloc_retries
        card.reset_peak()

    def after_step(self) -> tuple[str, ...]:
        """Note the step, start the next one's peaks, and say what is wrong, if anything is."""
        card = self.card
        step = StepMemory(
            floor_bytes=card.allocated_bytes,
            peak_allocated_bytes=card.peak_allocated_bytes,
            peak_reserved_bytes=card.peak_reserved_bytes,
            num_alloc_retries=card.num_alloc_retries - self.start_retries,
        )
        card.reset_peak()
        retries_before = self.steps[-1].num_alloc_retries if self.steps else 0
        self.steps.append(step)
        warnings = []
        if step.peak_reserved_bytes > RESERVED_SHARE * card.capacity_bytes:
            share = step.peak_reserved_bytes / card.capacity_bytes
            warnings.append(f"{share:.0%} of the card was reserved: the next longer batch may fail")
        if step.num_alloc_retries > retries_before:
            warnings.append(
                "the cache was given back to find room: slow, and the last stage before the error"
            )
        if grown := self.growth_bytes:
            floors = f"{format_bytes(grown)} in {PATIENCE} steps"
            warnings.append(f"the floor rises, {floors}: something is kept from step to step")
        return tuple(f"step {len(self.steps)}: {warning}" for warning in warnings)

    @property
    def growth_bytes(self) -> int:
        """How far the floor rose over the last ``patience`` steps; 0 unless it rose in each of them."""
        floors = [step.floor_bytes for step in self.steps[1:]][-PATIENCE - 1 :]
        rises = all(before < after for before, after in pairwise(floors))
        return floors[-1] - floors[0] if len(floors) > PATIENCE and rises else 0

    def __str__(self) -> str:
        rows = [["step", "floor", "peak allocated", "peak reserved", "retries"]]
        for number, step in enumerate(self.steps, start=1):
            sizes = (step.floor_bytes, step.peak_allocated_bytes, step.peak_reserved_bytes)
            rows.append([str(number), *map(format_bytes, sizes), str(step.num_alloc_retries)])
        return aligned_table(rows)
