"""How a backward moves bytes: the operations, from the last to the first.

Each operation in turn makes the gradients of its inputs while the gradient of its output and the tensors it
kept are still there, and only then lets both go. That overlap is the transient of every backward. Two more
rules shape it:

- a second gradient of one tensor is added into the first, in place where nothing else holds the first;
- the first operation of a checkpointed region that needs a kept tensor has the whole region run again.

Source: torch/csrc/autograd/engine.cpp (``evaluate_function``), input_buffer.cpp (``accumulate``) and
torch/utils/checkpoint.py, torch 2.13.
"""

import sys
from collections.abc import Callable, Sequence

from memkit.formats.dtypes import tensor_bytes
from memkit.formula.paper import SAME, Leaf, Operation, Paper, Storage, Summed, Tensor
from memkit.formula.parameters import Parameter

MAKES_ALL = ("attention",)
"""Operations whose kernel makes the gradients of all inputs, wanted or not."""

SENDS_VIEWS = ["mm", "addmm"]
"""Operations that hand their gradients on through a view: a linear layer flattens its input to a matrix."""

GRADIENT_OPS = {"mm": "mm", "addmm": "mm", "bmm": "bmm"}
"""The backward of a matrix product is two of them."""

held_by_one = {0: object()}
ONE_HOLDER = sys.getrefcount(held_by_one[0])  # the dictionary, and what the call itself needs in this Python


class Backward:
    """Runs the operations of a program backwards and adds its events to the program's.

    ``accumulates``: the parameters have gradients already, from an earlier micro-batch; new ones are added to
    them. ``gradient_dtypes``: those that each parameter's gradient is kept in; empty: the parameter's own.
    ``use``: called with a parameter whose gradient is complete; says whether the gradient is freed then.
    """

    def __init__(
        self, paper: Paper, loss: Tensor, accumulates: bool = False, gradient_dtypes: Sequence[str] = (),
        use: Callable[[Parameter], bool] | None = None,
    ):
        self.paper, self.accumulates, self.gradient_dtypes, self.use = paper, accumulates, gradient_dtypes, use
        self.gradients: list[Storage] = []  # of parameters, complete
        paper.where, paper.op = "", "ones_like"
        # ``loss.backward()`` holds it until it returns
        self.first_gradient = paper.allocate(loss.num_bytes, "gradient of the loss, 1", "", loss.dtype)
        paper.note(self.first_gradient, "backward()", "loss")
        paper.name_activations()  # the gradient of the loss too, made before torch's engine runs
        loss.source.gradients[loss.output] = self.first_gradient

    def run(self, operations: list[Operation]) -> None:
        """Go backwards through these operations. What is done is forgotten."""
        while operations:
            operation = operations.pop()
            if operation.needs_grad:
                self._step(operation)

    def take_gradients(self) -> list[Storage]:
        """The parameters' gradients that are complete; from now on the caller alone holds them."""
        taken, self.gradients = self.gradients, []
        return taken

    def _step(self, operation: Operation) -> None:
        """The backward of one operation: make gradients, let go of what it kept, hand the gradients on."""
        paper, is_of_region = self.paper, operation.region is not None
        paper.where, paper.op = operation.where, GRADIENT_OPS.get(operation.op, f"{operation.op}_backward")
        if is_of_region and not operation.region.is_recomputed:
            paper.run_again(operation.region)
        arrived, operation.gradients = operation.gradients, {}
        sent, to_be_summed = [], []
        for edge, way in zip(operation.edges, operation.ways, strict=True):
            if edge.source is None and operation.op not in MAKES_ALL:
                continue
            if isinstance(way, Summed):
                large = paper.allocate(operation.made[0].asked_bytes) if way.is_product else arrived[0]
                to_be_summed.append((edge, way, large))
            elif way == SAME and edge.dtype == operation.dtype:
                sent.append((edge, arrived[0]))
            else:
                sent.append((edge, paper.allocate(edge.num_bytes)))
                sent[-1][1].is_viewed = operation.op in SENDS_VIEWS
        if operation.scratch_bytes:
            paper.allocate(operation.scratch_bytes)
        if is_of_region:
            operation.kept.clear()  # the operation's own code alone holds what was recomputed
        large = None  # the list alone holds them, and lets each go when its sum is made
        while to_be_summed:
            edge, way, large = to_be_summed.pop(0)
            sent.append((edge, paper.allocate(edge.num_bytes)))
            if way.scratch_bytes:
                paper.allocate(way.scratch_bytes)
            large = None
        arrived.clear()
        operation.kept.clear()
        operation.region = None  # with its last keeper a region goes, and what it holds
        if self.use is None:
            sent.reverse()  # they are taken from the end; used at once, a bias' gradient comes before its weight's
        while sent:
            self._receive(sent)

    def _receive(self, sent: list[tuple[Tensor, Storage]]) -> None:
        """The last of these gradients arrives: the first of a tensor is taken over, each further one added to it."""
        edge, gradient = sent.pop()
        source = edge.source
        if source is None:
            return
        there = source.gradients
        if edge.output not in there:
            there[edge.output] = gradient
        # PyTorch adds in place unless somebody else holds the first, too: ``use_count() > 1``.
        elif sys.getrefcount(there[edge.output]) > ONE_HOLDER or there[edge.output].is_viewed:
            there[edge.output] = self.paper.allocate(there[edge.output].block.num_bytes)
        del gradient  # a summand is gone before ``use`` steps with the sum
        if isinstance(source, Leaf):
            source.num_arrived += 1
            if source.num_arrived == source.num_uses:
                self._finish(source, there.pop(edge.output))

    def _finish(self, leaf: Leaf, gradient: Storage) -> None:
        """The gradient of a parameter is complete: it is kept, or added to what is there."""
        # What accumulates is added in place, into bytes of an earlier micro-batch.
        for dtype in () if self.accumulates else self.gradient_dtypes or (leaf.dtype,):
            own = dtype == leaf.dtype
            kept = gradient if own else self.paper.allocate(tensor_bytes(leaf.parameter.count, dtype))
            kept.block.part, kept.block.name = "gradients", leaf.parameter.name
            if self.use is None or not self.use(leaf.parameter):
                self.gradients.append(kept)
