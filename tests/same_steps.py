"""The formula against a trace of the same step: every instant, and what the optimizer makes, to the byte."""

from memkit.timeline import MemoryTimeline


def highest(timeline: MemoryTimeline) -> dict:
    """Bytes by part at each instant; of an instant that comes twice in a step, the larger."""
    found = {}
    for instant in timeline.instants:
        key = instant.name, instant.step
        if key not in found or instant.total_bytes > found[key].total_bytes:
            found[key] = instant
    return {key: instant.parts for key, instant in found.items()}


def made_by_optimizer(timeline: MemoryTimeline) -> list[int]:
    """Bytes of every tensor that the optimizer's second step makes, in their order."""
    return [
        e.num_bytes
        for e in timeline.events
        if (e.phase, e.step) == ("optimizer", 2) and e.num_bytes > 0
    ]


def assert_same(
    setup, played: MemoryTimeline, run: MemoryTimeline, steps_after_backward: bool = True
) -> None:
    """All instants of the formula, ``played``, are the trace's, ``run``.

    On a card the optimizer also makes the same tensors in the same order, those that no peak shows among them.

    What oneDNN packs for a product in 16 bits depends on the processor: a peak of the CPU's is at least the formula's.
    """
    if setup.device == "cuda" and steps_after_backward:
        assert made_by_optimizer(played) == made_by_optimizer(run)
        assert played.peak_bytes == run.peak_bytes
    formula, traced = highest(played), highest(run)
    is_packed = setup.device == "cpu" and setup.precision.compute_dtype != "float32"
    peaks = [key for key in formula if is_packed and key[0].endswith("peak")]
    for key in peaks:
        assert sum(formula.pop(key).values()) <= sum(traced[key].values())
    assert formula == {key: traced[key] for key in formula}
