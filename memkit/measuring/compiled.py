"""What torch.compile keeps for the backward under a memory budget, read off the two graphs that it makes.

The compiler sees forward and backward at once and cuts the joint graph in two where the fewest bytes cross
(min-cut). Below a budget of 1 it may also repeat operations. FLOPs are summed over both graphs: under
``FlopCounterMode`` a compiled model runs eagerly, and the counter would see another program.

Source: torch/_functorch/partitioners.py and config.activation_memory_budget, torch 2.13.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch.utils.flop_counter import flop_registry


@dataclass(frozen=True, kw_only=True)
class CompiledStep:
    """Bytes that cross from the forward graph to the backward graph, and the FLOPs of each."""

    budget: float
    stored_bytes: int
    forward_flops: int
    backward_flops: int

    @property
    def flops(self) -> int:
        """Both graphs together."""
        return self.forward_flops + self.backward_flops


def compiled_step(run: Callable[[], Tensor], budget: float, elsewhere: Iterable[Tensor] = ()) -> CompiledStep:
    """Compile ``run()`` and its backward under ``activation_memory_budget``; nothing is compiled to machine code.

    ``run`` returns one tensor, which is summed. ``elsewhere``: parameters and other tensors there anyway.

    Raises: ValueError: a budget outside 0 to 1.
    """
    if not 0 <= budget <= 1:
        raise ValueError(f"budget={budget} is outside 0 to 1")
    known = {tensor.untyped_storage()._cdata for tensor in elsewhere}
    graphs, crossing = {}, []

    def recorder(name: str) -> Callable:
        def compiler(graph: torch.fx.GraphModule, _inputs):
            graphs[name] = graph
            return make_boxed_func(graph.forward)

        return compiler

    def note(tensor: Tensor) -> Tensor:
        crossing.append(tensor)
        return tensor

    backend = aot_autograd(
        fw_compiler=recorder("forward"), bw_compiler=recorder("backward"),
        partition_fn=min_cut_rematerialization_partition,
    )  # fmt: skip
    torch.compiler.reset()
    with torch._functorch.config.patch(activation_memory_budget=budget):
        compiled = torch.compile(run, backend=backend, fullgraph=True)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            loss = compiled().sum()
        loss.backward()
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in crossing}
    return CompiledStep(
        budget=budget,
        stored_bytes=sum(num_bytes for key, num_bytes in storages.items() if key not in known),
        forward_flops=graph_flops(graphs["forward"]),
        backward_flops=graph_flops(graphs["backward"]),
    )


def graph_flops(graph: torch.fx.GraphModule) -> int:
    """FLOPs of a graph by torch's own formulas, from the shapes that the graph carries."""
    total = 0
    for node in graph.graph.nodes:
        formula = flop_registry.get(getattr(node.target, "overloadpacket", None))
        if node.op == "call_function" and formula:
            values = [arg.meta["val"] if isinstance(arg, torch.fx.Node) else arg for arg in node.args]
            total += formula(*values, **node.kwargs, out_val=node.meta["val"])
    return total
