"""Training in 16 and 8 bits: what autocast does with each operation, and how numbers are scaled to fit.

Chapters 03 and 06. The scalings themselves, which need no torch, are ``memkit.formats.blocks``'s.

Reading order:

- ``sixteen_bits``: autocast's policies, loss scales, and AdamW on weights of 16 bits
- ``fp8``: cast, product and layer in eight or four bits
"""

from memkit import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
