"""Bytes at rest: weights, gradients and optimizer states on one of N ranks, by the formulas of the ZeRO paper.

With P parameters in the paper's recipe (2 bytes of weight, 2 of gradient, 12 of master copy and moments)::

    DDP      (2 + 2 + 12) P
    ZeRO-1   (2 + 2 + 12/N) P
    ZeRO-2   (2 + 2/N + 12/N) P
    ZeRO-3   (2/N + 2/N + 12/N) P

Nothing else is shared out: not activations, not what a step gathers, not its buckets.

Source: Rajbhandari et al. 2020, arXiv:1910.02054, section 5 and figure 1.
"""

from memkit.units import as_whole_number
from stepscope.setup import STAGES

PARTS = {"weights": (2, 3), "gradients": (2, 2), "optimizer_states": (4 + 4 + 4, 1)}
"""Bytes of a parameter in the paper's recipe, and the first stage that shares them out."""


def resting_bytes(num_parameters: int, stage: int, num_ranks: int) -> dict[str, int]:
    """Bytes by part on one of ``num_ranks`` in the paper's recipe, each share rounded up to a whole byte.

    Raises: ValueError: no stage 0 to 3, no whole number of ranks.

    >>> [sum(resting_bytes(7 * 10**9, stage, 8).values()) / 10**9 for stage in range(4)]
    [112.0, 38.5, 26.25, 14.0]
    """
    num_parameters = as_whole_number("num_parameters", num_parameters, 1)
    num_ranks = as_whole_number("num_ranks", num_ranks, 1)
    if as_whole_number("stage", stage) >= len(STAGES):
        raise ValueError(f"stage={stage} is not one of 0 (DDP), 1, 2, 3")
    wholes = {part: each * num_parameters for part, (each, _) in PARTS.items()}
    return {
        part: -(-whole // num_ranks) if stage >= PARTS[part][1] else whole
        for part, whole in wholes.items()
    }


def zero_saving(stage: int, num_ranks: int) -> float:
    """How many times less stands at rest than under DDP; the printed "4×" and "8×" are limits for many ranks.

    >>> [round(zero_saving(stage, 8), 2) for stage in (1, 2, 3)]
    [2.91, 4.27, 8.0]
    >>> [round(zero_saving(stage, 10**6), 2) for stage in (1, 2)]
    [4.0, 8.0]
    """
    alone, shared = (sum(resting_bytes(10**12, each, num_ranks).values()) for each in (0, stage))
    return alone / shared
