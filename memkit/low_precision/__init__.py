"""Training in 16 and 8 bits: what autocast does with each operation, and how numbers are scaled to fit.

Chapters 03 and 06. The rules are plain numbers; the player, the optimizer and the layer load torch.

Reading order:

- ``autocast``: the policies of CUDA's autocast, operation by operation
- ``loss_scaling``: what FP16 makes of gradients at each scale
- ``sixteen_bit_adamw``: a master copy, or Kahan's sum: AdamW on weights of 16 bits
- ``scaling``: amax to factor: per tensor, row and block, MX and NVFP4, current and delayed
- ``fp8``: cast, product and layer in eight or four bits
"""

from memkit import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
