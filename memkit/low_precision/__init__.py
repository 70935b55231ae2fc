"""Training in 16 and 8 bits: what autocast does with each operation, and how numbers are scaled to fit.

Chapters 03 and 06.

Reading order:

- ``autocast``: the policies of CUDA's autocast, operation by operation
"""

from memkit import loaded_when_used

TYPE_CHECKING = False
if TYPE_CHECKING:  # what an editor reads; Python imports a name when it is asked for
    from memkit.low_precision.autocast import FLOAT32, FLOAT32_OUTPUT, LOWER_PRECISION, PROMOTE

__getattr__, __dir__, __all__ = loaded_when_used(__name__, __file__)
