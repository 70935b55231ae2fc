"""Training in 16 and 8 bits: what autocast does with each operation, and how numbers are scaled to fit.

Chapters 03 and 06. The rules are plain numbers; the player, the optimizer and the layer load torch.

Reading order:

- ``autocast``: the policies of CUDA's autocast, operation by operation
- ``loss_scaling``: what FP16 makes of gradients at each scale, and the libraries' defaults
- ``dynamic_scale``: torch's own GradScaler, played, and a scale that never moves
- ``sixteen_bit_adamw``: a master copy, stochastic rounding, Kahan: AdamW on weights of 16 bits
- ``scaling``: amax to factor: per tensor, row and block, MX and NVFP4, current and delayed
- ``trials``: distributions, outliers and a spike under every scaling
- ``linear_memory``: what a linear layer keeps under each recipe
- ``casts``: a matrix in eight or four bits as tensors on its device, and its product
- ``fp8_linear``: a linear layer whose three products take numbers of eight or four bits
"""

from memkit import loaded_when_used

TYPE_CHECKING = False
if TYPE_CHECKING:  # what an editor reads; Python imports a name when it is asked for
    from memkit.low_precision.autocast import FLOAT32, FLOAT32_OUTPUT, LOWER_PRECISION, PROMOTE
    from memkit.low_precision.casts import cast_to, hadamard, product
    from memkit.low_precision.dynamic_scale import FixedScale, play_scaler
    from memkit.low_precision.fp8_linear import FP8_RECIPES, Fp8Linear, Fp8Recipe, convert_to_fp8
    from memkit.low_precision.linear_memory import (
        LINEAR_KEEPS,
        linear_inputs,
        linear_keeps,
        saved_inputs_bytes,
    )
    from memkit.low_precision.loss_scaling import SCALERS, ScaledGradients, ScalerDefaults, scale_gradients
    from memkit.low_precision.scaling import SCALINGS, DelayedScale, factors_from, relative_error, scale_to
    from memkit.low_precision.sixteen_bit_adamw import SixteenBitAdamW, add_with_memory, round_by_chance

__getattr__, __dir__, __all__ = loaded_when_used(__name__, __file__)
