"""Training in 16 and 8 bits: what autocast does with each operation, and how numbers are scaled to fit.

Chapters 03 and 06.

Reading order:

- ``autocast``: the policies of CUDA's autocast, operation by operation
"""

from memkit import loaded_when_used

__getattr__, __dir__, __all__ = loaded_when_used(
    __name__,
)
