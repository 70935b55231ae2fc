"""Charts of the allocator's segments and of the plans for a job, as text, drawn with the kit's axes and colours.

Reading order:

- ``allocator``: segments, blocks and holes
- ``plans``: the plane of bytes and time of a job's plans (chapter 10)
"""

from memkit import front_door

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
