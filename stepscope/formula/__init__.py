"""The first column of a ``Job``: what adapters, experts, offload and more optimizers add to the kit's step on paper.

Reading order:

- ``adapters``: LoRA and QLoRA on paper: thin matrices beside frozen weights, which may be in 4 bits
- ``pieces``: the loss in pieces on paper
- ``job``: what a job keeps between steps, what it moves to the host, how it runs
"""

from memkit import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
