"""Making it fit: what filled the memory, what would help, and the cheapest plan that fits a card.

Chapters 04, 05, 07 and 10.

Reading order:

- ``diagnosis``: from a recording or a trace: peak, parts, lines, and the changes that help most
- ``planner``: the cheapest recomputation whose predicted peak fits
- ``batch_plan``: from a global batch in tokens to micro-batches, steps and ranks
"""

from memkit import loaded_when_used

TYPE_CHECKING = False
if TYPE_CHECKING:  # what an editor reads; Python imports a name when it is asked for
    from memkit.fitting.batch_plan import BatchPlan, nearest_plans, plan_batch, planned_setup
    from memkit.fitting.diagnosis import diagnose_memory, growing_lines
    from memkit.fitting.planner import plan_recomputation, planned_room

__getattr__, __dir__, __all__ = loaded_when_used(__name__, __file__)
