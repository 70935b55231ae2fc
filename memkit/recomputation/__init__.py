"""Activation recomputation on paper: what each strategy keeps, what it costs, what its peak is.

Chapter 04.

Reading order:

- ``costs``: bytes kept and FLOPs run again, by formula
- ``peak``: the peak under any strategy, allocated and reserved
- ``frontier``: the memory-compute plane and its Pareto front
"""

from memkit import loaded_when_used

TYPE_CHECKING = False
if TYPE_CHECKING:  # what an editor reads; Python imports a name when it is asked for
    from memkit.recomputation.costs import (
        block_products,
        blocks_ledger,
        saved_products,
        step_flops,
        stored_bytes,
    )
    from memkit.recomputation.frontier import Point, pareto_front, peak_at, points
    from memkit.recomputation.peak import PeakPrediction, predict_peak

__getattr__, __dir__, __all__ = loaded_when_used(__name__, __file__)
