"""What becomes of a finished gradient: a choice made after the walk, by rewriting its events.

The walk marks the moment in which the backward is done with a parameter's gradient. ``added``: an earlier micro-batch
left one, the new one is added to it and freed. ``kept``: it stays, in the dtypes that the recipe keeps gradients in, or
``use`` does something with it at once: send it to the host, let the optimizer step.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from memkit.formats.dtypes import tensor_bytes
from memkit.formula.liveness import BORN, FINISHED, FREED, Block, Recorder, Segment


def added(segments: Iterable[Segment]) -> list[Segment]:
    """Each finished gradient is added to one that is there, and freed."""
    return [
        Segment(each.times, each.unit, [(block, sign or FREED) for block, sign in each.events]) for each in segments
    ]


def kept(
    segments: Sequence[Segment], block_bytes: int, dtypes: Sequence[str] = (),
    use: Callable[[Recorder, Block], bool] | None = None,
) -> list[Segment]:
    """Each finished gradient stays, in ``dtypes`` (left out: its own), unless ``use`` returns that it may go."""
    own = {
        block: replace(block, part="gradients")
        for segment in segments
        for block, sign in segment.events
        if sign == FINISHED and (not dtypes or block.gradient_of.dtype in dtypes)
    }
    out = []
    for segment in segments:
        record = Recorder(block_bytes)
        for block, sign in segment.events:
            mine = own.get(block, block)
            if sign != FINISHED:
                record.events.append((mine, sign))
                continue
            x, goes = block.gradient_of, [] if block in own else [mine]
            for dtype in dtypes or (x.dtype,):
                one = mine
                if dtype != x.dtype:
                    one = record.new(tensor_bytes(x.count, dtype), *block.finished_by, "gradients")
                    one.gradient_of = x
                if use is not None and use(record, block):
                    goes.append(one)
            record.events += [(one, FREED) for one in goes]
        out.append(Segment(segment.times, segment.unit, record.events))
    return out


def freed(segments: Sequence[Segment]) -> list[Segment]:
    """What ``zero_grad`` frees: the gradients that these segments have left."""
    gone, out = {block for segment in segments for block, sign in segment.events if sign == FREED}, []
    for segment in segments:
        left = [b for b, sign in segment.events if sign == BORN and b.part == "gradients" and b not in gone]
        out.append(Segment(segment.times, segment.unit, [(block, FREED) for block in left]))
    return out
