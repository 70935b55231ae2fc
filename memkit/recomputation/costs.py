"""What a recomputation strategy keeps and what it costs, read off the list of operations.

A region that is run again keeps its input, and beyond it what the strategy's policy saves; every other block
keeps its whole ledger. The price is counted in FLOPs of matrix products, the forward of what is run again.
PyTorch stops a recomputation once the last kept tensor is there, so that the last product of a region runs
only if a dropout after it keeps a mask.
"""

from dataclasses import dataclass, replace

from memkit.formula import activations
from memkit.formula.activations import Kept, Ledger, entries_of, line_of
from memkit.formula.additions import model_of
from memkit.formula.operations import Operation
from memkit.setup.strategies import NONE, OPS, Strategy
from memkit.setup.training import TrainingSetup


@dataclass(frozen=True, kw_only=True)
class Product:
    """An operation of a block that a policy can name: its forward FLOPs and what it puts out."""

    name: str
    op: str
    flops: int
    outputs: tuple[Kept, ...]


@dataclass(frozen=True, kw_only=True)
class Flops:
    """Multiplications and additions in the matrix products of one micro-batch.

    ``backward`` is what the gradients need; ``recomputed`` what the strategy runs again; ``in_kernel`` what a
    fused attention kernel computes again inside its backward, strategy or not: the scores.
    """

    forward: int
    backward: int
    recomputed: int
    in_kernel: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.forward + self.backward + self.recomputed + self.in_kernel

    @property
    def overhead(self) -> float:
        """FLOPs run again ÷ FLOPs of a plain step, which runs nothing again but the kernel's scores."""
        return self.recomputed / (self.total - self.recomputed)


def block_products(setup: TrainingSetup) -> tuple[Product, ...]:
    """The operations of one block that a policy can name, in the order in which they run."""
    one = model_of(replace(setup, model=setup.model.one_block, recomputation=NONE))
    names, entries = {"attention": "attention", "gelu": "activation", "silu": "activation"}, entries_of(one)
    return tuple(
        Product(
            name=names.get(op.kind, op.name), op=op.kind, flops=op.flops,
            outputs=tuple(entries[x].line(one.graph) if x in entries else line_of(one.graph, x) for x in op.makes),
        )
        for op in one.graph.operations
        if op.unit == 1 and op.kind in OPS and op.reads
    )


def saved_products(setup: TrainingSetup, strategy: Strategy) -> tuple[Product, ...]:
    """The products whose outputs the strategy's policy keeps."""
    saves = strategy.policy()
    return tuple(product for product in block_products(setup) if saves(product.op))


def blocks_ledger(setup: TrainingSetup, strategy: Strategy) -> Ledger:
    """What all L blocks keep from forward to backward under a strategy, on the device.

    >>> from memkit.setup.models import GPT2_LARGE
    >>> from memkit.setup.strategies import FULL, NONE, every
    >>> from memkit.setup.recipes import PURE_BF16
    >>> setup = TrainingSetup(model=GPT2_LARGE, precision=PURE_BF16, micro_batch_size=8)
    >>> [round(blocks_ledger(setup, way).per_sbh / 36, 1) for way in (NONE, every(2), FULL)]
    [32.1, 17.0, 2.0]
    """
    return activations.blocks_ledger(setup.under(strategy))


def stored_bytes(setup: TrainingSetup, strategy: Strategy) -> int:
    """Bytes of activations on the device when the backward starts: all blocks and the outside."""
    return activations.activation_bytes(setup.under(strategy))


def step_flops(setup: TrainingSetup, strategy: Strategy | None = None) -> Flops:
    """FLOPs of one micro-batch's forward and backward, and of what the strategy (the setup's own) runs again.

    A product costs 2 FLOPs a multiplication in the forward, and as many in the backward for each factor whose gradient
    is wanted: a frozen weight's is not.

    >>> from memkit.setup.models import LLAMA_2_7B
    >>> flops = step_flops(TrainingSetup(model=LLAMA_2_7B))
    >>> round(flops.backward / flops.forward, 2)
    2.0
    """
    model = model_of(setup.under(strategy))
    times = [1, *(times for times, _ in model.units), 1]
    forward = backward = in_kernel = 0
    for op in model.graph.operations:
        num_factors = factors_with_gradient(op)
        forward += times[op.unit] * op.flops
        backward += times[op.unit] * op.flops * num_factors
        in_kernel += times[op.unit] * op.flops * (op.kind == "attention" and num_factors > 0)
    again = sum(times[unit] * flops for unit, flops in model.walk_class(model).flops_again.items())
    return Flops(forward=forward, backward=backward, recomputed=again, in_kernel=in_kernel // 2)


def factors_with_gradient(op: Operation) -> int:
    """How many of a product's two factors get a gradient; a fused attention computes them all, or none."""
    wanted = [x.needs_grad for x in op.reads[:2]]
    return 2 * any(wanted) if op.kind == "attention" else sum(wanted)
