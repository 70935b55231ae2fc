"""Wrong answers to the judged exercises of chapter 02, each with a part of what its judge has to say."""

import numpy as np
import torch

from book.exercises.chapter_02 import _MEANS, moving_mean

(
    _as_printed,
    _wide_mean_only,
    _plain_mean,
    _corrected_mean,
    _turned_betas,
    _faster,
    _half_mean,
    _starts_at_first,
) = dict(_MEANS)


def _added_difference(xs):
    mean = torch.tensor(0.0, dtype=torch.bfloat16)
    for x in xs:
        mean = mean + 0.001 * (x - mean)
    return mean


WRONG = {
    "2.5": (
        (_as_printed, "as long as mean is BF16"),
        (_wide_mean_only, "beta went through BF16"),
        (_plain_mean, "That is the plain mean"),
        (_corrected_mean, "Adam's bias correction"),
        (_starts_at_first, "You started at the first value"),
        (lambda xs: 0.865, "The result is to be a BF16 tensor"),
        (lambda xs: moving_mean(xs) / 2, "in exact arithmetic it is 0.8648"),
        (_turned_betas, "turned round"),
        (_faster, "ten times as fast"),
        (_half_mean, "sticks too"),
        (lambda xs: xs * 0.001, "The result has 2,000 values"),
        (_added_difference, "It stops at 0.25"),
    ),
    "2.7": (
        (2**15, "beyond FP16's largest value"),
        (2**16, "where PyTorch's GradScaler starts"),
        (65504, "That is FP16's largest value"),
        (65504 / 3, "no power of two"),
        (21834.67, "no power of two"),
        (21845, "beyond FP16's largest value"),
        (2**13, "not the largest"),
        (0.5, "not the largest"),
        (14, "That is the exponent"),
        (2**-14, "one over the scale"),
        (-16384, "is no scale"),
        (float("nan"), "is no scale"),
        ("16384", "is not a number"),
    ),
    "2.8": (
        (lambda x, gap, rng: np.rint(x / gap) * gap, "Every 0.3 goes down, each time"),
        (lambda x, gap, rng: np.ceil(x / gap) * gap, "Every 0.3 goes up, each time"),
        (
            lambda x, gap, rng: (
                (np.floor(x / gap) + (rng.random() < x / gap - np.floor(x / gap))) * gap
            ),
            "One coin decides for all values",
        ),
        (
            lambda x, gap, rng: (np.floor(x / gap) + (rng.random(x.shape) < 0.5)) * gap,
            "A fair coin forgets",
        ),
        (
            lambda x, gap, rng: np.floor(x / gap + np.random.random(x.shape)) * gap,
            "The same rng gives other values",
        ),
        (lambda x, gap, rng: x + gap * rng.random(x.shape), "the results are multiples of gap"),
        (
            lambda x, gap, rng: (
                np.floor(x / gap) + (rng.random(x.shape) < x / gap - np.floor(x / gap))
            ),
            "These are numbers of gaps",
        ),
        (
            lambda x, gap, rng: (
                (np.floor(x / gap) + (rng.random(x.shape) > x / gap - np.floor(x / gap))) * gap
            ),
            "the comparison is turned",
        ),
        (
            lambda x, gap, rng: (
                (np.trunc(x / gap) + (rng.random(x.shape) < np.abs(x / gap - np.trunc(x / gap))))
                * gap
            ),
            "below is np.floor, also left of 0",
        ),
    ),
}
