"""The third column: the step on this machine, as its own allocator or the profiler saw it.

Chapters 00, 04 and 07. Loads torch, runs real steps, and leaves the process as it was.

Reading order:

- ``gpu``: how much of the card this process may take, and how to give it back
- ``measure``: ``measure_memory``: CUDA's allocator history, or the profiler's events on a CPU
- ``saved_tensors``: what autograd keeps, for any code of the reader's own
"""

from memkit import front_door

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
