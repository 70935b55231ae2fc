"""The strategies of ``memkit.setup.strategies`` on the real model: a transformer with parts that run twice.

``strategy_build(setup, strategy)`` is ``training_build`` with a model whose blocks run by that strategy, so
that it can be traced and measured like any other. ``counted_flops`` asks torch's own counter what the step
costs.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    noop_context_fn,
)

from memkit.program.transformer import Block, Transformer, training_build
from memkit.setup.strategies import TORCH_NAMES, Strategy
from memkit.setup.training import TrainingSetup

aten = torch.ops.aten
TORCH_OPS = {op: tuple(getattr(aten, name).default for name in names) for op, names in TORCH_NAMES.items()}
LINEAR = (aten.mm.default, aten.addmm.default)


def saving_policy(strategy: Strategy) -> Callable:
    """The strategy's policy for one block, as ``create_selective_checkpoint_contexts`` takes it."""
    saved = {op for name in strategy.saved_ops for op in TORCH_OPS[name]}
    num_linears = 0

    def policy(_context, op, *args, **kwargs) -> CheckpointPolicy:
        nonlocal num_linears
        num_linears += op in LINEAR
        is_skipped = strategy.saves_every_second and op in LINEAR and num_linears % 2 == 0
        return CheckpointPolicy.MUST_SAVE if op in saved and not is_skipped else CheckpointPolicy.PREFER_RECOMPUTE

    return policy


class StrategyTransformer(Transformer):
    """The transformer whose blocks run by a strategy; ``make_policy`` makes a policy of one's own for each block."""

    def __init__(
        self, setup: TrainingSetup, strategy: Strategy, make_policy: Callable[[], Callable] | None = None, **where
    ):
        if setup.recomputation != "none":
            raise ValueError(f"recomputation={setup.recomputation!r}: a strategy needs a setup with 'none'")
        super().__init__(replace(setup, recomputation="selective" if strategy.scope == "core" else "none"), **where)
        self.strategy, self.make_policy = strategy, make_policy
        if strategy.saved_ops and not make_policy:
            self.make_policy = partial(saving_policy, strategy)

    def stages(self) -> list[Callable[[Tensor, dict], Tensor]]:
        """Single blocks, and regions that are run again."""
        stages = []
        for numbers, is_run_again in self.strategy.regions(len(self.blocks)):
            blocks = [self.blocks[number] for number in numbers]
            stages += [self.run_again(blocks)] if is_run_again else map(self.as_it_is, blocks)
        return stages

    def as_it_is(self, block: Block) -> Callable:
        """A block that keeps what autograd keeps, on the device or on the host."""
        return partial(on_host, block) if self.strategy.scope == "host" else block

    def run_again(self, blocks: list[Block]) -> Callable:
        """Blocks behind one another in one checkpoint."""
        strategy = self.strategy
        region = blocks[0] if len(blocks) == 1 else partial(in_turn, blocks)
        if strategy.is_reentrant:
            return partial(checkpoint, region, use_reentrant=True)
        contexts = noop_context_fn
        if self.make_policy:
            contexts = lambda: create_selective_checkpoint_contexts(self.make_policy())
        return partial(
            checkpoint, region, use_reentrant=False, context_fn=contexts, early_stop=strategy.stops_early
        )


def in_turn(blocks: list[Block], x_BSD: Tensor, shared: dict) -> Tensor:
    """Several blocks as one function."""
    for block in blocks:
        x_BSD = block(x_BSD, shared)
    return x_BSD


def on_host(block: Block, x_BSD: Tensor, shared: dict) -> Tensor:
    """A block whose saved tensors are copied to the host and back, each as often as it is saved."""
    with save_on_cpu():
        return block(x_BSD, shared)


def strategy_build(
    setup: TrainingSetup, strategy: Strategy, next_batch=None, make_policy: Callable[[], Callable] | None = None
) -> Callable:
    """``training_build`` of a setup under a strategy."""
    how = {"strategy": strategy, "make_policy": make_policy}
    return training_build(setup, next_batch, partial(StrategyTransformer, **how))
