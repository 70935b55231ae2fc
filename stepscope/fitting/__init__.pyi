"""The public names of this folder, imported when they are used; an editor reads this list too."""

from .advice import (
    CHANGES as CHANGES,
    Change as Change,
    Effect as Effect,
    advice_in_words as advice_in_words,
    effects_on_setup as effects_on_setup,
)
from .diagnosis import diagnose_memory as diagnose_memory
from .edits import growing_lines as growing_lines
from .grid import (
    not_tried as not_tried,
    ways_of as ways_of,
)
from .plan import (
    TrainingPlan as TrainingPlan,
    plan_of as plan_of,
)
from .plan_code import (
    code_of as code_of,
    plain_code as plain_code,
    trainer_arguments as trainer_arguments,
    trainer_code as trainer_code,
)
from .plan_run import traced as traced
from .plans import (
    PlansFound as PlansFound,
    find_plans as find_plans,
    plan_recomputation as plan_recomputation,
)
from .room import (
    fits_of as fits_of,
    left_out_of as left_out_of,
)
