"""The second column: the real PyTorch step run without data, each allocation noted.

On the CPU's rules torch's own fake tensors run the step; on CUDA's rules tensors on ``meta`` do, and what
CUDA would do otherwise is played: other kernels, autocast, buffers. Loads torch.

Reading order:

- ``scratch``: scratch of attention's backward, sums, scatters and products, and copies of factors
- ``shapes``: tensors that have a shape and no values: what a program may ask of them, and what it may not
- ``cpu``: the CPU's rules
- ``cuda_kernels``: CUDA's attention kernels, and kernels that ``meta`` lacks
- ``cuda``: CUDA's rules: dispatch, autocast, dropout
- ``in_place``: operations that write over their first argument
- ``left_out``: operations that take more than a trace knows
- ``lines``: which line of the program asked for memory
- ``trace``: ``trace_memory``: every allocation of a step
- ``flops``: FLOPs as torch's own counter sees them
"""

from memkit import front_door

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
