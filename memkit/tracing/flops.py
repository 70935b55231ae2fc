"""The FLOPs of a training step as torch's own counter sees them, forward and backward apart."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from memkit.program.doors import run_steps
from memkit.program.transformer import strategy_build
from memkit.setup.strategies import Strategy
from memkit.setup.training import DEVICES, TrainingSetup
from memkit.tracing.cuda import pretend_cuda
from memkit.units import as_kind, as_one_of

aten = torch.ops.aten
FUSED_BACKWARD = tuple(
    getattr(aten, f"_scaled_dot_product_{kind}_attention_backward") for kind in ("flash", "efficient", "cudnn")
)


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
    as_kind("setup", setup, TrainingSetup)
    as_kind("strategy", strategy, Strategy)
    as_one_of("device", device, DEVICES)
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
    """A recorder for ``memkit.program.doors`` that reads the counter when the backward starts."""

    def __init__(self, counter: FlopCounterMode):
        self.counter, self.forward = counter, 0

    def now(self, change: str, *_args: object) -> None:
        """The program enters another phase."""
        if change == "start_backward":
            self.forward = self.counter.get_total_flops()

    def saw(self, _part: str, _tensors: list[Tensor]) -> None:
        """Nothing to note: parts do not matter here."""
