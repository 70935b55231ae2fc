"""The first column: a training step on paper, without PyTorch, in milliseconds.

``model`` writes a transformer's forward as a list of ``operations``; ``liveness`` walks through
it, forward and back, and says when each byte is born and freed; ``estimate`` adds up what is alive at each instant.
The transformer of ``memkit.program`` is the other, independent description of the same step.

Reading order:

- ``parameters``: how many parameters a model has, tensor by tensor
- ``states``: what stays between steps: weights, gradients, optimizer states
- ``kernels``: buffers that a CUDA kernel takes for its own work
- ``operations``: the list's language: tensors, operations, checkpointed regions
- ``liveness``: walks the list forward and back, and says when every byte comes and goes
- ``model``: the list of a GPT-2 or a Llama, from the token ids to the loss, and what the CPU does otherwise
- ``activations``: what a forward keeps for the backward, tensor by tensor
- ``run``: how a run keeps, computes and steps its parameters
- ``estimate``: bytes at each instant of a step: ``estimate_memory``
"""

from .activations import activation_bytes, block_ledger
from .estimate import estimate_memory, second_step
from .model import addition, model_of
from .parameters import Parameter, count_by_kind, count_parameters, parameter_ledger
from .states import bytes_per_parameter, state_bytes, state_ledger
