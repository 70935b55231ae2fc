"""What a training step runs on: cards with their bytes and rates, each from a named source.

Chapters 00, 01, 07 and 11. A new card is one row of ``cards.csv``. Nothing here loads torch.

Reading order:

- ``cards``: a card's memory, bandwidth and arithmetic rates, with the source of each figure
- ``cap``: the reader's own cap on a shared card
- ``workspaces``: the workspaces of cuBLAS and cuBLASLt, per card and version of torch
- ``fit``: whether a step fits on a card: the one rule
"""

from memkit import front_door

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
