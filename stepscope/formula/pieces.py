"""The loss in pieces on paper (chapter 10, section 3): the head and the loss of some tokens at a time, each run again.

Logits of T tokens and V words are three tensors of T · V numbers at the start of the backward. In n pieces each of them
has T · V / n, in float32; the price is one more product with the head.
"""

from dataclasses import dataclass
from functools import reduce

from memkit.formula.model import Transformer, addition
from memkit.formula.operations import NEW, SAME, Operation, Region, Tensor
from stepscope.setup import Job


@dataclass(eq=False)
class CastsAgain(Region):
    """A piece of the loss; ``cast`` is the weight that it casts where it is run again, and not before."""

    cast: Tensor | None = None

    def restore(self, walk, op: Operation) -> None:
        """The cast is made first."""
        made = []
        if self.cast is not None and self not in walk.was_run_again:
            made = [walk.new(self.cast.num_bytes, "_to_copy", op.where)]
            walk.block_of[self.cast] = made[0]
        super().restore(walk, op)
        walk.drop(*made)


@addition(lambda setup: isinstance(setup, Job) and setup.loss_pieces > 1)
class WithLossInPieces(Transformer):
    """A transformer whose head and loss are a checkpointed region for each piece of the tokens.

    Raises: ValueError: tokens that are no whole number of pieces.
    """

    setup: Job
    read_weight: Tensor | None = None  # the head's, or the one cast of it that the forward reads

    @classmethod
    def axis_sizes(cls, setup: Job) -> dict[str, int]:
        """With t, the tokens of a piece."""
        if setup.tokens_per_micro_batch % setup.loss_pieces:
            words = f"loss_pieces={setup.loss_pieces} of {setup.tokens_per_micro_batch} tokens are not equal"
            raise ValueError(f"{words} and have no formula; trace it")
        return super().axis_sizes(setup) | {"t": setup.tokens_per_micro_batch // setup.loss_pieces}

    def loss_of(self, x: Tensor, targets: Tensor) -> Tensor:
        """The sum of the pieces' losses, divided by the number of targets."""
        graph, num_pieces = self.graph, self.setup.loss_pieces
        n = graph.view("flatten", self.norm("norm", x))
        self.enter("loss")
        parts = graph.view("chunk", n, ["t h"] * num_pieces, (NEW,))
        wanted = graph.view("chunk", targets, ["t"] * num_pieces)
        losses = []
        for part, of_part in zip(parts, wanted, strict=True):
            losses.append(graph.checkpoint(self.loss_of_piece, part, of_part, region=CastsAgain()))
        total = reduce(
            lambda total, loss: graph.op("add", [total, loss], "", ways=(SAME, SAME)), losses
        )
        return graph.op("div", [total], "")

    def loss_of_piece(self, part: Tensor, targets: Tensor) -> Tensor:
        """The head and the summed cross-entropy of a piece, on a float32 copy of its logits."""
        graph, weight = self.graph, self.parameters[f"{self.head_name}.weight"]
        dtype = self.dtype if self.autocast else weight.dtype
        is_first = self.read_weight is None
        self.read_weight = self.read_weight or graph.cast(weight, dtype, "head weight")
        if is_first or self.read_weight is weight:
            kept = self.read_weight
        else:
            # Autocast's cache has the first piece's cast until the forward ends, so that the gradients of all pieces
            # meet there; what a piece is run again with, it casts anew.
            kept = graph.region.cast = Tensor(weight.axes, weight.count, dtype, "head weight")
        narrow = graph.cast(part, dtype)
        logits = graph.op(
            "mm",
            [narrow, self.read_weight],
            "t v",
            dtype,
            name="logits",
            by="linear",
            out_by=None,
            keeps=[narrow, kept],
            flops=2 * part.count * self.model.vocab_size,
        )
        return self.cross_entropy(graph.cast(logits, "float32"), targets)
