"""The second column: the real PyTorch step run without data, each allocation noted.

On the CPU's rules torch's own fake tensors run the step; on CUDA's rules tensors on ``meta`` do, and what
CUDA would do otherwise is played: other kernels, autocast, buffers. Loads torch.

Reading order:

- ``refusals``: what a trace cannot follow, said with the program's own line
- ``known``: values that a trace can know, or that the program says
- ``without_values``: what a program may ask of a tensor that has a shape and no values
- ``patched``: torch and libraries, put right while a program is traced
- ``waiting``: how far a long trace has come
- ``scratch``: scratch of attention's backward, sums, scatters and products, and copies of factors
- ``cpu``: the CPU's rules
- ``cuda_kernels``: CUDA's attention kernels, and kernels that ``meta`` lacks
- ``host``: where a tensor without values is: on the card, in the host's memory, or nowhere
- ``ranks``: one rank of a script of many
- ``card``: streams and properties of a card that nobody has chosen
- ``cuda``: CUDA's rules: dispatch, autocast, dropout
- ``in_place``: operations that write over their first argument
- ``libraries``: what libraries take that a trace does not know
- ``evaluations``: a model that runs again without gradients is followed once
- ``lines``: which line of the program asked for memory
- ``trace``: ``trace_memory``: every allocation of a step
- ``flops``: FLOPs as torch's own counter sees them
"""

from memkit import front_door

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
