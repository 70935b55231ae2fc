"""Stage by stage: what a reading of ``memory_allocated`` after each stage of a step is taken for, and what it is.

Many scripts read the counter after each stage and give the jump the stage's name. A timeline knows the parts.
"""

from dataclasses import dataclass

from memkit.timeline import MemoryTimeline
from memkit.units import aligned_table, format_bytes

LABELS = {
    "init": "weights",
    "forward": "activations",
    "backward": "gradients",
    "optimizer": "optimizer_states",
    "zero_grad": "nothing",
}
"""After which stage one reads, and the part that the jump is usually taken for."""


@dataclass(frozen=True, kw_only=True)
class Jump:
    """The counter after a stage, how far it moved, and by which parts."""

    stage: str
    reading_bytes: int
    jump_bytes: int
    label: str
    parts: dict[str, int]  # only those that moved


def stage_jumps(timeline: MemoryTimeline, step: int = 1) -> tuple[Jump, ...]:
    """The readings of one step, of its last micro-batch; parts must be known.

    Raises: ValueError: the timeline lacks the step, or does not know the parts.
    """
    jumps, before = [], None
    for stage, label in LABELS.items():
        if stage == "init" and step > 1:
            before = timeline.at("zero_grad", step - 1)
            continue
        now = timeline.at(stage, 1 if stage == "init" else step)
        if None in now.parts.values():
            raise ValueError(f"the parts at {stage!r} are not known in this {timeline.source} timeline")
        old = before.parts if before else dict.fromkeys(now.parts, 0)
        moved = {part: size - old[part] for part, size in now.parts.items() if size != old[part]}
        jumps.append(
            Jump(
                stage=stage,
                reading_bytes=now.total_bytes,
                jump_bytes=now.total_bytes - (before.total_bytes if before else 0),
                label=label,
                parts=moved,
            )
        )
        before = now
    return tuple(jumps)


def stage_table(timeline: MemoryTimeline, step: int = 1) -> str:
    """``stage_jumps`` as aligned text; parts that moved by less than a thousandth of the reading are left out."""
    rows = [["after", "reading", "jump", "usual label", "the jump in truth"]]
    for jump in stage_jumps(timeline, step):
        large = {part: n for part, n in jump.parts.items() if 1000 * abs(n) >= jump.reading_bytes}
        truth = ", ".join(f"{part.replace('_', ' ')} {format_bytes(n)}" for part, n in large.items())
        sizes = (format_bytes(jump.reading_bytes), format_bytes(jump.jump_bytes))
        rows.append([jump.stage, *sizes, jump.label.replace("_", " "), truth])
    return aligned_table(rows)
