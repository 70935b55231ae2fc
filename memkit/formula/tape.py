"""Allocations that are held and released by hand, as ``memkit.formula.optimizer`` writes a step's temporaries."""

from memkit.formula.paper import Block, Paper


class Storage(Block):
    """An allocation and how many hold it."""

    holders = 1


class Tape:
    """Writes births and frees among the events of a paper."""

    def __init__(self, paper: Paper):
        self.paper, self.events, self.where, self.op = paper, paper.events, "", ""

    def allocate(self, num_bytes: int) -> Storage:
        """New bytes, with one holder."""
        block = Storage(self.paper.round_up(num_bytes), num_bytes, self.op, self.where, "", "", "")
        self.events.append((block, +1))
        return block

    def hold(self, block: Storage) -> Storage:
        """The same bytes, which another name holds too."""
        block.holders += 1
        return block

    def release(self, block: Storage | None) -> None:
        """A name lets go; the last one frees the bytes."""
        if block is not None:
            block.holders -= 1
            if block.holders == 0:
                block.is_alive = False
                self.events.append((block, -1))
