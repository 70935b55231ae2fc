"""The second column: the real PyTorch step run without data, each allocation noted.

On the CPU's rules torch's own fake tensors run the step; on CUDA's rules tensors on ``meta`` do, and what
CUDA would do otherwise is played: other kernels, autocast, buffers. Loads torch.

Reading order:

- ``assumed``: what a program says that values would have said
- ``constants``: values that a trace can know
- ``without_values``: what a program may ask of a tensor that has a shape and no values
- ``scratch``: scratch of reductions, sorts and scatters, and copies of factors
- ``cpu``: the CPU's rules
- ``refused``: dtypes that torch refuses when it runs
- ``cuda_kernels``: CUDA's attention kernels, and kernels that ``meta`` lacks
- ``host``: the host's memory beside a card
- ``card``: streams and properties of a card that nobody has chosen
- ``cuda``: CUDA's rules: dispatch, autocast, dropout
- ``in_place``: operations that write over their first argument
- ``patched``: libraries that would do otherwise on tensors without values
- ``libraries``: what libraries take that a trace does not know
- ``trace``: ``trace_memory``: every allocation of a step
- ``flops``: FLOPs as torch's own counter sees them
"""

from memkit import front_door

__getattr__, __dir__, __all__ = front_door(__name__, {
    "cuda": "pretend_cuda",
    "flops": "CountedFlops counted_flops",
    "trace": "trace_memory",
    "without_values": "NeedsValues",
})
