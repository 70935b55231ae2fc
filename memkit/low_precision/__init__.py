"""Training in 16 and 8 bits: what autocast does with each operation, and how numbers are scaled to fit.

Chapters 03 and 06. The scalings themselves, which need no torch, are ``memkit.formats.blocks``'s.

Reading order:

- ``sixteen_bits``: autocast's policies, loss scales, and AdamW on weights of 16 bits
- ``fp8``: cast, product and layer in eight or four bits
"""

from memkit.formats.blocks import SCALINGS, factors_from, relative_error, scale_to

from .fp8 import FP8_RECIPES, DelayedScale, Fp8Linear, Fp8Recipe, cast_to, convert_to_fp8
from .sixteen_bits import (
    FLOAT32,
    FLOAT32_OUTPUT,
    LOWER_PRECISION,
    PROMOTE,
    ScaledGradients,
    SixteenBitAdamW,
    add_with_memory,
    scale_gradients,
)
