"""Charts of the allocator and of plans, as text.

Reading order:

- ``allocator``: segments, blocks and holes
- ``plans``: The plane of bytes and time of a job's plans (chapter 10)
"""

from memkit import front_door

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
