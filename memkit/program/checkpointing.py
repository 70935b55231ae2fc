"""The strategies of ``memkit.strategies`` in PyTorch: blocks as functions, some of which run twice."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    noop_context_fn,
)

from memkit.strategies import TORCH_NAMES, Strategy

aten = torch.ops.aten
NAME_OF = {getattr(aten, name).default: op for op, names in TORCH_NAMES.items() for name in names}


def saving_policy(strategy: Strategy) -> Callable:
    """The strategy's policy for one block, as ``create_selective_checkpoint_contexts`` takes it."""
    saves = strategy.policy()

    def policy(_context, op, *args, **kwargs) -> CheckpointPolicy:
        is_saved = saves(NAME_OF.get(op, ""))
        return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE

    return policy


def stages_of(
    blocks: Sequence[nn.Module],
    strategy: Strategy,
    make_policy: Callable[[], Callable] | None = None,
) -> list[Callable[[Tensor, dict], Tensor]]:
    """Single blocks, and regions that are run again; ``make_policy`` makes a policy of one's own for each region."""
    if strategy.saved_ops and not make_policy:
        make_policy = partial(saving_policy, strategy)
    stages = []
    for numbers, is_run_again in strategy.regions(len(blocks)):
        of_region = [blocks[number] for number in numbers]
        if is_run_again:
            region = of_region[0] if len(of_region) == 1 else partial(in_turn, of_region)
            stages.append(run_again(region, strategy, make_policy))
        else:
            stages += (
                [partial(on_host, block) for block in of_region]
                if strategy.scope == "host"
                else of_region
            )
    return stages


def run_again(
    run: Callable, strategy: Strategy, make_policy: Callable[[], Callable] | None = None
) -> Callable:
    """A function whose saved tensors are dropped, and which runs again in the backward."""
    if strategy.is_reentrant:
        return partial(checkpoint, run, use_reentrant=True)
    contexts = noop_context_fn
    if make_policy:
        contexts = lambda: create_selective_checkpoint_contexts(make_policy())
    return partial(
        checkpoint, run, use_reentrant=False, context_fn=contexts, early_stop=strategy.stops_early
    )


def in_turn(blocks: Sequence[nn.Module], x_BSD: Tensor, shared: dict) -> Tensor:
    """Several blocks as one function."""
    for block in blocks:
        x_BSD = block(x_BSD, shared)
    return x_BSD


def on_host(block: nn.Module, x_BSD: Tensor, shared: dict) -> Tensor:
    """A block whose saved tensors are copied to the host and back, each as often as it is saved."""
    with save_on_cpu():
        return block(x_BSD, shared)
