"""What a recomputation strategy keeps and what it costs, read off the paper step.

A region that is run again keeps its input, and beyond it what the strategy's policy saves; every other block
keeps its whole ledger. The price is counted in FLOPs of matrix products, the forward of what is run again.
PyTorch stops a recomputation once the last kept tensor is there, so that the last product of a region runs
only if a dropout after it keeps a mask.
"""

from dataclasses import dataclass, replace

from memkit.formula import activations
from memkit.formula.activations import Kept, Ledger
from memkit.formula.forward import forward_of
from memkit.formula.paper import Operation
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
    forward = forward_of(replace(setup, model=setup.model.one_block, recomputation=NONE))
    names = {"attention": "attention", "gelu": "activation", "silu": "activation"}
    return tuple(
        Product(
            name=names.get(operation.op, operation.name), op=operation.op, flops=operation.flops,
            outputs=tuple(activations.line_of(setup, block) for block in operation.made),
        )
        for operation in forward.units[0].operations
        if operation.op in OPS
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
    forward = forward_of(setup.under(strategy))
    paper, total, back, fused, again = forward.paper, 0, 0, 0, 0
    for part in forward.parts:
        operations = part.operations
        total += part.times * sum(operation.flops for operation in operations)
        back += part.times * sum(operation.flops * factors_with_gradient(operation) for operation in operations)
        kernels = (op for op in operations if op.op == "attention" and factors_with_gradient(op))
        fused += part.times * sum(kernel.flops for kernel in kernels)
        paper.flops_again = 0
        for region in dict.fromkeys(operation.region for operation in operations if operation.region):
            paper.run_again(region)
        again += part.times * paper.flops_again
    return Flops(forward=total, backward=back, recomputed=again, in_kernel=fused // 2)


def factors_with_gradient(operation: Operation) -> int:
    """How many of a product's two factors get a gradient; a fused attention computes them all, or none."""
    wanted = [edge.source is not None for edge in operation.edges[:2]]
    return 2 * any(wanted) if operation.op == "attention" else sum(wanted)
