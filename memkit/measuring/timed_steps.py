"""The seconds of a forward and backward under a recomputation strategy, on this machine."""

from dataclasses import dataclass
from time import perf_counter, process_time

import torch
from torch import Tensor

from memkit.program.transformer import Transformer, random_batches
from memkit.setup.strategies import Strategy
from memkit.setup.training import TrainingSetup


@dataclass(frozen=True, kw_only=True)
class TimedStep:
    """Seconds of the fastest of several forwards and backwards, and the gradients of the first one, by parameter."""

    seconds: float
    gradients: tuple[Tensor, ...]


def timed_step(setup: TrainingSetup, strategy: Strategy, *, num_runs: int = 5, seed: int = 0) -> TimedStep:
    """Run the model by a strategy on the setup's device. The same seed makes the same weights, tokens and masks.

    On a CPU in one thread, in seconds of the processor: several threads wait for each other, a busy machine makes one
    wait for other programs, and that is what a clock on the wall would measure.
    """
    torch.manual_seed(seed)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = Transformer(setup.under(strategy))
    clock = perf_counter if setup.device == "cuda" else process_time
    batch, spent, gradients = random_batches(setup.model, setup)(), [], ()
    for _ in range(num_runs):
        start = clock()
        model(*batch).backward()
        if setup.device == "cuda":
            torch.cuda.synchronize()
        spent.append(clock() - start)
        gradients = gradients or tuple(parameter.grad.clone() for parameter in model.parameters())
    torch.set_num_threads(num_threads)
    return TimedStep(seconds=min(spent), gradients=gradients)
