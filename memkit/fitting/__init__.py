"""Making it fit: what filled the memory, what would help, and the plans that fit a card.

Chapters 04, 05, 07 and 10.

Reading order:

- ``edits``: what a change does to recorded events
- ``room``: the one rule for "fits on a card", and what is on it beside the tensors
- ``step``: the second step of a setup: how high it is and how long it takes
- ``advice``: the one adviser: changes, what each does, and what it saves
- ``diagnosis``: from a recording or a trace: peak, parts, lines, and the changes that help most
- ``batch_plan``: from a global batch in tokens to micro-batches, steps and ranks
- ``plans``: every plan that fits a job, what it costs and gives up, and the one to take
- ``plan_code``: a plan in plain PyTorch, for Hugging Face's trainer and Accelerate
"""

from memkit import front_door

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
