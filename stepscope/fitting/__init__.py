"""Making it fit: what filled the memory, what would help, and the plans that fit a card.

Chapters 07 to 10.

Reading order:

- ``optimizers``: in which ways the planner tries an optimizer, or why it does not
- ``edits``: what a change does to recorded events
- ``room``: the one rule for "fits on a card", and what is on it beside the tensors
- ``step``: the second step of a setup: how high it is and how long it takes
- ``advice``: the one adviser: changes, what each does, and what it saves
- ``diagnosis``: from a recording or a trace: peak, parts, lines, and the changes that help most
- ``plan``: a setup on a card: its peak, its time and what it gives up
- ``plan_code``: a plan in plain PyTorch and for Hugging Face's trainer
- ``plan_run``: that code, traced before anybody is shown it
- ``grid``: what is tried for a job, and what is not, with the reason
- ``plans``: every plan for a job, the unbeaten ones, and the one to take
"""

from memkit import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
