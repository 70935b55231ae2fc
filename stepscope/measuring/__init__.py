"""A small card, on which a program runs out of memory on purpose: CUDA's own under a cap, or a simulated one.

Reading order:

- ``small_card``: a card small enough to run out of memory on purpose
"""

from memkit import front_door

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
