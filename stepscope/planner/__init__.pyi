"""The public names of this folder, imported when they are used; an editor reads this list too."""

from .code import code_of as code_of
from .plan import (
    FACTORS as FACTORS,
    TrainingPlan as TrainingPlan,
    plan_of as plan_of,
)
from .search import (
    RULE as RULE,
    PlansFound as PlansFound,
    find_plans as find_plans,
)
from .run_code import traced as traced
from .ways import (
    not_tried as not_tried,
    ways_of as ways_of,
)
