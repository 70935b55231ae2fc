"""Activation recomputation on paper: what each strategy keeps and what it costs.

Chapter 04.

Reading order:

- ``costs``: bytes kept and FLOPs run again, by formula
- ``frontier``: the memory-compute plane and its Pareto front
"""

from memkit import front_door

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
