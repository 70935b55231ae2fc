"""Training in 16 and 8 bits: what autocast does with each operation, and how numbers are scaled to fit.

Chapters 03 and 06. The rules are plain numbers; only the layer that follows them loads torch.

Reading order:

- ``autocast``: the policies of CUDA's autocast, operation by operation
- ``scaling``: amax to factor: per tensor, row and block, MX and NVFP4, current and delayed
- ``linear_memory``: what a linear layer keeps under each recipe
- ``fp8_linear``: a linear layer whose three products take numbers of eight or four bits
"""

from memkit import loaded_when_used

TYPE_CHECKING = False
if TYPE_CHECKING:  # what an editor reads; Python imports a name when it is asked for
    from memkit.low_precision.fp8_linear import (
        FP8_RECIPES,
        Fp8Linear,
        Fp8Recipe,
        cast_to,
        convert_to_fp8,
        product,
    )
    from memkit.low_precision.linear_memory import (
        LINEAR_KEEPS,
        linear_inputs,
        linear_keeps,
        saved_inputs_bytes,
    )
    from memkit.low_precision.scaling import (
        SCALINGS,
        DelayedScale,
        block_amax,
        factors_from,
        relative_error,
        scale_to,
    )

__getattr__, __dir__, __all__ = loaded_when_used(__name__, __file__)
