"""The peak of a training step under any strategy, by formula: what is allocated, and what the allocator must hold.

The events of ``estimate_memory`` go through the model of CUDA's caching allocator, which says what the card
must give: the reserved peak.
"""

from dataclasses import dataclass

from memkit.allocator.config import AllocatorConfig
from memkit.allocator.trace_replay import replay_trace
from memkit.formula.estimate import estimate_memory
from memkit.setup.strategies import Strategy
from memkit.setup.training import TrainingSetup
from memkit.units import as_kind


@dataclass(frozen=True, kw_only=True)
class PeakPrediction:
    """The highest bytes of two training steps: in tensors and workspaces, and in segments of the allocator."""

    allocated_bytes: int
    reserved_bytes: int


def predict_peak(
    setup: TrainingSetup,
    strategy: Strategy | None = None,
    *,
    room_bytes: int | None = None,
    outside_bytes: int = 0,
    config: AllocatorConfig | None = None,
    compute_capability: tuple[int, int] = (8, 0),
    steps: int = 2,
) -> PeakPrediction:
    """Peak of ``steps`` training steps on a CUDA card, cuBLAS's workspaces included, its context not.

    ``strategy`` is a shorter way to a setup with that recomputation. With ``room_bytes`` the allocator runs on
    a card of so many, of which ``outside_bytes`` are others'. It gives unused segments back before it asks for
    more than the rest, as PyTorch's does: a smaller card makes it tidy. An expandable segment has addresses
    for 9/8 of the card, so that the two are not the same as their difference.

    Raises: OutOfMemory: the room does not suffice. ValueError: a strategy that has no formula (reentrant,
    offload), a CPU, a setup with another recomputation than ``strategy``.

    >>> from memkit import TrainingSetup, models, recipes, strategies
    >>> setup = TrainingSetup(model=models.LLAMA_32_1B, precision=recipes.PURE_BF16, seq_len=4096)
    >>> for strategy in (strategies.NONE, strategies.FULL):
    ...     print(strategy.name, predict_peak(setup, strategy).allocated_bytes)
    none 16669291520
    full 12380426752
    """
    if as_kind("setup", setup, TrainingSetup).device != "cuda":
        raise ValueError(f"device={setup.device!r}: the allocator is that of 'cuda'")
    replayed = replay_trace(
        estimate_memory(setup.under(strategy), steps), config, capacity_bytes=room_bytes,
        outside_bytes=outside_bytes, compute_capability=compute_capability,
    )  # fmt: skip
    if replayed.failure is not None:
        replayed.allocator.malloc(replayed.failure.requested_bytes)  # raises once more
    return PeakPrediction(
        allocated_bytes=replayed.peak_allocated_bytes, reserved_bytes=replayed.peak_reserved_bytes
    )
