"""A training program whose batches differ in length, as those of real text do."""

from collections.abc import Callable, Sequence

import torch

from memkit.training import TrainingSetup
from memkit.transformer import training_build
from memkit.units import as_whole_number


def ragged_build(setup: TrainingSetup, lengths: Sequence[int]) -> Callable:
    """The ``build`` of ``setup`` whose step number i trains on sequences of ``lengths[i]`` tokens, then of the first
    again; for ``trace_memory`` and ``measure_memory``.

    Raises: ValueError: no lengths, or one that is not a whole number above 0.
    """
    lengths = [as_whole_number("length", length, minimum=1) for length in lengths]
    if not lengths:
        raise ValueError("lengths is empty; one length per step is needed")

    def build():
        taken = 0

        def next_batch():
            nonlocal taken
            shape = (setup.micro_batch_size, lengths[taken // setup.grad_accum_steps % len(lengths)])
            taken += 1
            return tuple(torch.randint(setup.model.vocab_size, shape, device=setup.device) for _ in range(2))

        return training_build(setup, next_batch)()

    return build
