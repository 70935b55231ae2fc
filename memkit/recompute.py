"""The strategies of ``memkit.strategies`` on the real model: ``memkit.transformer`` with parts that run twice.

``strategy_build(setup, strategy)`` is ``training_build`` with a model whose blocks run by that strategy, so that it can
be traced and measured like any other. ``counted_flops`` asks torch's own counter what the step costs.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter

import torch
from torch import Tensor
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    noop_context_fn,
)
from torch.utils.flop_counter import FlopCounterMode

from memkit.cuda_rules import pretend_cuda
from memkit.strategies import Strategy
from memkit.training import TrainingSetup
from memkit.transformer import Block, Transformer, random_batches, training_build
from memkit.watch import run_steps

aten = torch.ops.aten
FUSED_ATTENTION = (
    aten._scaled_dot_product_flash_attention.default, aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default, aten._scaled_dot_product_flash_attention_for_cpu.default,
)  # fmt: skip
TORCH_OPS = {
    "mm": (aten.mm.default,), "addmm": (aten.addmm.default,), "bmm": (aten.bmm.default,),
    "gelu": (aten.gelu.default,), "silu": (aten.silu.default,), "attention": FUSED_ATTENTION,
}  # fmt: skip
FUSED_BACKWARD = tuple(
    getattr(aten, f"_scaled_dot_product_{kind}_attention_backward") for kind in ("flash", "efficient", "cudnn")
)
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


@dataclass(frozen=True, kw_only=True)
class TimedStep:
    """Seconds of the fastest of several forwards and backwards, and the gradients of the first one, by parameter."""

    seconds: float
    gradients: tuple[Tensor, ...]


def timed_step(setup: TrainingSetup, strategy: Strategy, *, num_runs: int = 5, seed: int = 0) -> TimedStep:
    """Run the model by a strategy on the setup's device. The same seed makes the same weights, tokens and masks.

    On a CPU in one thread: several wait for each other, and on a busy machine that is what one would measure.
    """
    torch.manual_seed(seed)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = StrategyTransformer(setup, strategy)
    batch, spent, gradients = random_batches(setup.model, setup)(), [], ()
    for _ in range(num_runs):
        start = perf_counter()
        model(*batch).backward()
        if setup.device == "cuda":
            torch.cuda.synchronize()
        spent.append(perf_counter() - start)
        gradients = gradients or tuple(parameter.grad.clone() for parameter in model.parameters())
    torch.set_num_threads(num_threads)
    return TimedStep(seconds=min(spent), gradients=gradients)


@dataclass(frozen=True, kw_only=True)
class CountedFlops:
    """What torch's counter saw of one micro-batch: the products of the forward, and all that run in the backward.

    ``in_kernel`` is the share of a fused attention's backward that computes the scores again: one product of five.
    """

    forward: int
    backward: int
    in_kernel: int

    @property
    def total(self) -> int:
        """Forward and backward."""
        return self.forward + self.backward


def counted_flops(
    setup: TrainingSetup,
    strategy: Strategy,
    *,
    device: str = "cuda",
    make_policy: Callable[[], Callable] | None = None,
) -> CountedFlops:
    """FLOPs of one micro-batch counted by ``FlopCounterMode``: on tensors without data by CUDA's rules, or for real.

    The counter has no formula for a CPU's fused attention: with ``device="cpu"`` it counts none for it.
    """
    if device == "cuda":
        setup = replace(setup, device=device)
    counter = FlopCounterMode(display=False)
    phases = PhaseFlops(counter)
    with pretend_cuda() if device == "cuda" else nullcontext(), counter:
        run_steps(strategy_build(setup, strategy, make_policy=make_policy), 1, phases)
    by_op = counter.get_flop_counts()["Global"]
    in_kernel = sum(by_op.get(op, 0) for op in FUSED_BACKWARD) // 5
    backward = counter.get_total_flops() - phases.forward
    return CountedFlops(forward=phases.forward, backward=backward, in_kernel=in_kernel)


class PhaseFlops:
    """A recorder for ``memkit.watch`` that reads the counter when the backward starts."""

    def __init__(self, counter: FlopCounterMode):
        self.counter, self.forward = counter, 0

    def now(self, change: str, *_args: object) -> None:
        """The program enters another phase."""
        if change == "start_backward":
            self.forward = self.counter.get_total_flops()

    def saw(self, _part: str, _tensors: list[Tensor]) -> None:
        """Nothing to note: parts do not matter here."""
