"""Every plan for a job on a card, the order in which to take them, and the chosen one as code that was traced.

Lessons 09 and 11.

Reading order:

- ``plan``: a setup on a card: how high its second step is, how long it takes, and what it gives up
- ``code``: a plan in plain PyTorch, put together from the lines of each choice
- ``run_code``: that code, traced before anybody is shown it
- ``ways``: what is tried for a job, and what is not, with the reason
- ``search``: every plan for a job, the unbeaten ones, and the one to take
"""

from .code import code_of
from .plan import FACTORS, TrainingPlan, plan_of
from .run_code import traced
from .search import RULE, PlansFound, find_plans
from .ways import not_tried, ways_of
