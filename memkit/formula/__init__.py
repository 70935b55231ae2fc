"""The first column: a training step on paper, without PyTorch, in milliseconds.

Chapters 01 and 08. ``layers``, ``attention`` and ``forward`` write the model's operations on a ``tape``;
``backward`` reads it from its end; ``optimizer`` steps; ``estimate`` adds up what is alive at each instant.
The transformer of ``memkit.program`` is the other, independent description of the same step.

Reading order:

- ``parameters``: how many parameters a model has, tensor by tensor
- ``states``: what stays between steps: weights, gradients, optimizer states
- ``ledger``: a ledger of kept tensors, one named line each
- ``activations``: what the forward keeps for the backward, tensor by tensor
- ``kernels``: buffers that a CUDA kernel takes for its own work
- ``inference``: what inference keeps instead: weights and the key and value cache
- ``korthikanti``: the activation formulas of Korthikanti et al. 2022, addend by addend
- ``tape``: operations in program order, and which storages are born and freed
- ``backward``: the tape read from its end
- ``layers``: linear, norm, dropout, MLP as operations on the tape
- ``attention``: attention as operations on the tape
- ``forward``: the whole forward, from token ids to the loss
- ``optimizer``: what a step of the optimizer allocates: states once, temporaries each time
- ``estimate``: bytes at each instant of a step: ``estimate_memory``
"""

from memkit import loaded_when_used

__getattr__, __dir__, __all__ = loaded_when_used(
    __name__,
    parameters="Parameter count_by_kind count_parameters parameter_ledger",
    states="bytes_per_parameter state_bytes state_ledger",
    ledger="Kept Ledger",
    activations="activation_bytes activation_ledger autocast_cast_bytes block_ledger",
    kernels="embedding_backward_buffers",
    inference="inference_bytes kv_cache_bytes kv_cache_bytes_per_token",
    tape="Tape",
    backward="Backward",
    forward="Schedule",
    estimate="estimate_memory",
)
