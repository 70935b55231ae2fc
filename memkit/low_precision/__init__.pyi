"""The public names of this folder, imported when they are used; an editor reads this list too."""

from .fp8 import (
    FP8_RECIPES as FP8_RECIPES,
    SCALINGS as SCALINGS,
    DelayedScale as DelayedScale,
    Fp8Linear as Fp8Linear,
    Fp8Recipe as Fp8Recipe,
    cast_to as cast_to,
    convert_to_fp8 as convert_to_fp8,
    factors_from as factors_from,
    relative_error as relative_error,
    scale_to as scale_to,
)
from .sixteen_bits import (
    FLOAT32 as FLOAT32,
    FLOAT32_OUTPUT as FLOAT32_OUTPUT,
    LOWER_PRECISION as LOWER_PRECISION,
    PROMOTE as PROMOTE,
    ScaledGradients as ScaledGradients,
    SixteenBitAdamW as SixteenBitAdamW,
    add_with_memory as add_with_memory,
    scale_gradients as scale_gradients,
)
