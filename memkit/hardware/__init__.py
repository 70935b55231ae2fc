"""What a training step runs on: cards with their bytes and rates, each from a named source, and this machine.

Chapters 00, 01, 07 and 11. A new card is one record in ``cards``. Nothing here loads torch.

Reading order:

- ``cards``: a card's memory, bandwidth and arithmetic rates, with the source of each figure
- ``driver``: what NVIDIA's driver says about the cards of this machine, and the RAM that a new program can have
"""

from memkit import front_door

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
