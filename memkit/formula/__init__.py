"""The first column: a training step on paper, without PyTorch, in milliseconds.

Chapters 01 and 08. ``paper`` is what PyTorch does with memory, without values; ``layers``, ``attention`` and
``forward`` are the model, ``backward`` its backward; ``optimizer`` steps; ``estimate`` adds up what is alive at each
instant. The transformer of ``memkit.program`` is the other, independent description of the same step.

Reading order:

- ``parameters``: how many parameters a model has, tensor by tensor, and which are trained, or kept by a rank
- ``states``: what stays between steps: weights, gradients, optimizer states
- ``kernels``: buffers that a CUDA kernel takes for its own work
- ``paper``: tensors without values, whose births and deaths Python's own reference counts say
- ``backward``: the operations from the last to the first, and the gradients they make
- ``layers``: linear, norm, dropout, activation functions
- ``attention``: projections, rotation, and the core as the device's kernel computes it
- ``optimizer``: what a step of the optimizer allocates: states once, temporaries each time
- ``forward``: the whole forward, from token ids to the loss
- ``activations``: what a forward keeps for the backward, tensor by tensor
- ``estimate``: bytes at each instant of a step: ``estimate_memory``
"""

from memkit import front_door

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
