"""Wrong answers to the judged exercises of chapter 02, each with a part of what its judge has to say."""

import numpy as np

from memkit.book.exercises.chapter_02 import (
    _as_printed,
    _corrected_mean,
    _plain_mean,
    _starts_at_first,
    _wide_mean_only,
    moving_mean,
)

WRONG = {
    "2.5": (
        (_as_printed, "as long as mean is BF16"),
        (_wide_mean_only, "beta went through BF16"),
        (_plain_mean, "That is the plain mean"),
        (_corrected_mean, "Adam's bias correction"),
        (_starts_at_first, "You started at the first value"),
        (lambda xs: 0.865, "The result is to be a BF16 tensor"),
        (lambda xs: moving_mean(xs) / 2, "in exact arithmetic it is 0.8648"),
    ),
    "2.8": (
        (lambda x, gap, rng: np.rint(x / gap) * gap, "Every 0.3 goes down, each time"),
        (lambda x, gap, rng: np.ceil(x / gap) * gap, "Every 0.3 goes up, each time"),
        (
            lambda x, gap, rng: (np.floor(x / gap) + (rng.random() < x / gap - np.floor(x / gap))) * gap,
            "One coin decides for all values",
        ),
        (lambda x, gap, rng: (np.floor(x / gap) + (rng.random(x.shape) < 0.5)) * gap, "A fair coin forgets"),
        (lambda x, gap, rng: x + gap * rng.random(x.shape), "the results are multiples of gap"),
        (
            lambda x, gap, rng: np.floor(x / gap) + (rng.random(x.shape) < x / gap - np.floor(x / gap)),
            "These are numbers of gaps",
        ),
        (
            lambda x, gap, rng: (np.floor(x / gap) + (rng.random(x.shape) > x / gap - np.floor(x / gap))) * gap,
            "the comparison is turned",
        ),
        (
            lambda x, gap, rng: (
                (np.trunc(x / gap) + (rng.random(x.shape) < np.abs(x / gap - np.trunc(x / gap)))) * gap
            ),
            "below is np.floor, also left of 0",
        ),
    ),
}
