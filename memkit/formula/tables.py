"""A step as tables: its operations, with what becomes of what each makes, and how bytes come and go meanwhile."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from memkit.formula.liveness import BORN, Block, Segment, Walk
from memkit.formula.operations import Graph


def operations_table(graph: Graph, unit: int | None = None) -> str:
    """The operations of a unit, or of all. Views, which make nothing, are left out.

    ``gone``: in the backward of that line, whose operation is the last to need it, or after it in the forward; a cast
    that autocast remembers and nobody keeps goes when autocast is left.
    """
    graph.find_last_uses()
    number, numbers, last, keeper = 0, {}, {}, {}
    for op in graph.operations:
        if unit in (None, op.unit):
            number += not op.is_view
            numbers[op] = number
            last |= dict.fromkeys(op.last_uses, number)
            for x in op.keeps if op.region is None else ():
                keeper.setdefault(x.base, number)
    rows = [["", "module", "operation", "reads", "makes", "bytes", "keeps", "gone"]]
    for op, number in numbers.items():
        if not op.is_view:
            last_line = "with autocast" if op.is_remembered else "after {}"
            gone = [f"backward of {keeper[x]}" if x in keeper else last_line.format(last.get(x, "…")) for x in op.makes]
            reads, makes, *more = (", ".join(dict.fromkeys(map(str, x))) for x in (op.reads, op.makes, op.keeps, gone))
            size = f"{sum(x.num_bytes for x in op.makes):,}"
            rows.append([str(number), op.where, op.kind, reads, makes, size, *more])
    return in_columns(rows, "<<<<<><<")


def walk_table(walk: Walk, unit: int) -> str:
    """What each operation of a unit makes and frees, and what is there meanwhile, weights left out."""
    level, rows = 0, [["", "module", "operation", "makes", "frees", "highest", "after it"]]
    for way, segments in (("→", walk.forward), ("←", walk.backward)):
        for segment in segments:
            for (op, where), steps in groupby(by_operation(segment), lambda step: step[:2]):
                made = freed = 0
                highest = level
                for *_, block, sign in steps:
                    level += sign * block.num_bytes
                    highest = max(highest, level)
                    made += block.num_bytes * (sign == BORN)
                    freed += block.num_bytes * (sign < 0)
                if segment.unit == unit and made + freed:
                    rows.append([way, where, op, *(f"{each:,}" for each in (made, freed, highest, level))])
    return in_columns(rows, "<<<>>>>")


def by_operation(segment: Segment) -> Iterator[tuple[str, str, Block, int]]:
    """Events, each with the operation that was the last to make something."""
    op = where = ""
    for block, sign in segment.events:
        if sign == BORN:
            op, where = block.op, block.where
        yield op, where, block, sign


def in_columns(rows: Sequence[Sequence[str]], sides: str) -> str:
    """Rows of text, each column flush left (``<``) or right; the first row is the header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    formats = [f"{side}{width}" for side, width in zip(sides, widths, strict=True)]
    lines = ["  ".join(map(format, row, formats)).rstrip() for row in rows]
    return "\n".join([lines[0], "─" * max(map(len, lines)), *lines[1:]])
