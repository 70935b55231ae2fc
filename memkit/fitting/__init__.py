"""A batch in tokens, cut for a card: micro-batches, accumulation steps, ranks.

Chapter 05.

Reading order:

- ``batch_plan``: from a global batch in tokens to micro-batches, steps and ranks
"""

from memkit import front_door

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
