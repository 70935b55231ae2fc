"""The moments of a step at which a rank of many does more than a rank alone: it gathers, sends, frees.

``Alone`` has the whole model and does nothing at any of them. The layouts of ``memkit.sharding`` do.
"""

from memkit.formula.paper import Paper, Storage
from memkit.setup.layouts import Layout
from memkit.setup.training import TrainingSetup


class Alone:
    """A rank without others. ``layout``: which share of the states it keeps; ``None``: all."""

    layout: Layout | None = None

    def computes(self, setup: TrainingSetup) -> TrainingSetup:
        """The setup that forward and backward run in."""
        return setup

    def adds_gradients(self, accumulates: bool) -> bool:
        """Whether a finished gradient is added to one that stands already."""
        return accumulates

    def start(self, paper: Paper) -> None:
        """A micro-batch begins, on this paper."""

    def enter_model(self) -> None:
        """The forward begins."""

    def enter_blocks(self, number: int, num_blocks: int) -> None:
        """The forward of so many blocks begins, ``number`` being the first."""

    def leave_blocks(self, number: int) -> None:
        """It ends."""

    def leave_model(self) -> None:
        """The loss is there."""

    def enter_backward(self, accumulates: bool) -> None:
        """The backward begins. ``accumulates``: earlier micro-batches left gradients."""

    def enter_backward_of(self, block: int) -> None:
        """The backward of a block begins."""

    def leave_backward_of(self, block: int, gradients: list[Storage], times: int) -> list[Storage]:
        """It ends, for ``times`` blocks that are alike, and has left these gradients. Returns what is kept of them."""
        return gradients

    def leave_backward(self, gradients: list[Storage]) -> list[Storage]:
        """The backward ends and has left these gradients of what is in no block. Returns what is kept of them."""
        return gradients


ALONE = Alone()
