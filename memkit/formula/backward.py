"""How a backward moves bytes: the tape, read from its end.

Each operation in turn makes the gradients of its inputs while the gradient of its output and the tensors it
kept are still there, and only then lets both go. That overlap is the transient of every backward. Two more
rules shape it:

- a second gradient of one tensor is added into the first, in place where nothing else holds the first;
- the first operation of a checkpointed region that wants a kept tensor has the whole region run again.

Source: torch/csrc/autograd/engine.cpp (``evaluate_function``), input_buffer.cpp (``accumulate``) and
torch/utils/checkpoint.py, torch 2.13.
"""

from collections.abc import Callable, Sequence

from memkit.formats.dtypes import tensor_bytes
from memkit.formula.tape import FULL, SAME, SUM, Operation, Storage, Tape, Value

MAKES_ALL = ("attention",)
"""Operations whose kernel makes the gradients of all inputs, wanted or not."""

GRADIENT_OPS = {"mm": "mm", "addmm": "mm", "bmm": "bmm"}
"""The backward of a matrix product is two of them."""


class Backward:
    """Reads a tape backwards and adds its events to the tape's.

    ``accumulates``: the parameters have gradients already, from an earlier micro-batch; new ones are added to
    them. ``gradient_dtypes``: those that each parameter's gradient is kept in; empty: the parameter's own.
    ``use``: called with a parameter whose gradient is complete; says whether the gradient is freed then.
    """

    def __init__(
        self, tape: Tape, loss: Value, accumulates: bool, gradient_dtypes: Sequence[str] = (),
        use: Callable[[Value], bool] | None = None,
    ):  # fmt: skip
        self.tape, self.accumulates, self.gradient_dtypes, self.use = tape, accumulates, gradient_dtypes, use
        tape.where, tape.op = "", "ones_like"
        self.first_gradient = tape.allocate(loss.num_bytes)
        self.first_gradient.name, self.first_gradient.dtype = "gradient of the loss, 1", loss.dtype
        tape.note(self.first_gradient, "backward()", "loss")
        tape.name_activations()
        self.gradients = {loss: tape.hold(self.first_gradient)}
        self.num_arrived: dict[Value, int] = {}

    def end(self) -> None:
        """PyTorch's ``backward()`` returns; it has held the first gradient till now."""
        self.tape.release(self.first_gradient)

    def read(self, operations: Sequence[Operation]) -> None:
        """Read the operations backwards, the last one first."""
        for operation in reversed(operations):
            self._read(operation)

    def _read(self, node: Operation) -> None:
        tape, region = self.tape, node.region
        tape.where, tape.op = node.where, GRADIENT_OPS.get(node.op, f"{node.op}_backward")
        if not any(out.needs_grad for out in node.outs):
            self._leave(node)
            return
        arrived = [self.gradients.pop(out) for out in node.outs]
        if region is not None and node.kept and not region.is_recomputed:
            tape.run_again(region)
        sent: list[tuple[Value, Storage]] = []
        to_be_summed: list[tuple[Value, Storage]] = []
        for value, mode in zip(node.inputs, node.modes, strict=True):
            if not value.needs_grad and node.op not in MAKES_ALL:
                continue
            if mode == SAME and value.dtype == node.outs[0].dtype:
                sent.append((value, tape.hold(arrived[0])))
            elif mode == SUM:
                to_be_summed.append((value, tape.hold(arrived[0])))
            elif mode == FULL:
                to_be_summed.append((value, tape.allocate(node.outs[0].num_bytes)))
            else:
                gradient = tape.allocate(value.num_bytes)
                gradient.is_viewed = node.sends_views
                sent.append((value, gradient))
        if node.scratch_bytes:
            tape.release(tape.allocate(node.scratch_bytes))
        if region is not None:
            self._release_kept(node)  # what was recomputed is held by the operation's own code alone
        for value, large in to_be_summed:
            sent.append((value, tape.allocate(value.num_bytes)))
            if node.sum_scratch_bytes:
                tape.release(tape.allocate(node.sum_scratch_bytes))
            tape.release(large)
        for storage in arrived:
            tape.release(storage)
        self._release_kept(node)
        for value, storage in sent if self.use is None else reversed(sent):  # a bias is complete before its weight
            if value.needs_grad:
                self._receive(value, storage)
            else:
                tape.release(storage)
        self._leave(node)

    def _leave(self, node: Operation) -> None:
        """The first operation of a checkpointed region lets go of what the region held.

        None points to its region any more: without a circle of references a tape is freed at once.
        """
        region, node.region = node.region, None
        if region is not None and node is region.operations[0]:
            region.let_go(self.tape)

    def _release_kept(self, node: Operation) -> None:
        for storage in node.kept:
            self.tape.release(storage)
        node.kept = []

    def _receive(self, value: Value, storage: Storage) -> None:
        """A gradient arrives: the first is taken over, each further one is added to it."""
        tape, held = self.tape, self.gradients.get(value)
        if held is None:
            self.gradients[value] = storage
        elif held.holders == 1 and not held.is_viewed:
            tape.release(storage)
        else:
            self.gradients[value] = tape.allocate(held.num_bytes)
            tape.release(held)
            tape.release(storage)
        self.num_arrived[value] = self.num_arrived.get(value, 0) + 1
        is_parameter = value.storage is None
        if is_parameter and self.num_arrived[value] == value.num_uses:
            self._finish(value, self.gradients.pop(value))

    def _finish(self, parameter: Value, gradient: Storage) -> None:
        """The gradient of a parameter is complete: it is kept, or added to what is there."""
        for dtype in self.gradient_dtypes or (parameter.dtype,):
            if self.accumulates:
                continue
            if dtype == parameter.dtype:
                kept = self.tape.hold(gradient)
            else:
                kept = self.tape.allocate(tensor_bytes(parameter.count, dtype))
            kept.part, kept.name = "gradients", parameter.name
            if self.use is not None and self.use(parameter):
                self.tape.release(kept)
        self.tape.release(gradient)
