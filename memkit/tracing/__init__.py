"""The second column: the real PyTorch step run without data, each allocation noted.

On the CPU's rules torch's own fake tensors run the step; on CUDA's rules tensors on ``meta`` do, and what
CUDA would do otherwise is played: other kernels, autocast, buffers. Loads torch.

Reading order:

- ``shapes``: tensors that have a shape and no values: what a program may ask of them, and what it may not
- ``cuda``: CUDA's rules: dispatch, autocast, dropout; which attention runs, and what each kernel takes for its own work
- ``cpu``: the CPU's rules
- ``trace``: ``trace_memory``: every allocation of a step, and the line that asked for it
"""

from .cuda import pretend_cuda
from .shapes import NeedsValues
from .trace import trace_memory
