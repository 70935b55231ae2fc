"""Making it fit: what filled the memory, what would help, and the plans that fit a card.

Chapters 04, 05, 07 and 10.

Reading order:

- ``batch_plan``: from a global batch in tokens to micro-batches, steps and ranks
"""

from memkit import front_door

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
