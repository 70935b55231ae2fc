"""The first column: a training step on paper, without PyTorch, in milliseconds.

Chapters 01 and 08. ``paper`` is what PyTorch does with memory, without values; ``layers``, ``attention`` and
``forward`` are the model, ``backward`` its backward; ``optimizer`` steps; ``estimate`` adds up what is alive at each
instant. The transformer of ``memkit.program`` is the other, independent description of the same step.

Reading order:

- ``parameters``: how many parameters a model has, tensor by tensor
- ``shares``: which parameters a rank keeps and updates, all or a share of each
- ``adapters``: which tensors LoRA trains, and which QLoRA keeps in 4 bits
- ``states``: what stays between steps: weights, gradients, optimizer states
- ``ledger``: a ledger of kept tensors, one named line each
- ``kernels``: buffers that a CUDA kernel takes for its own work
- ``inference``: what inference keeps instead: weights and the key and value cache
- ``korthikanti``: the activation formulas of Korthikanti et al. 2022, addend by addend
- ``paper``: tensors without values, whose births and deaths Python's own reference counts say
- ``tape``: births and deaths that are written by hand, for the optimizer's step
- ``backward``: the operations from the last to the first, and the gradients they make
- ``layers``: linear, norm, dropout, activation functions
- ``attention``: projections, rotation, and the core as the device's kernel computes it
- ``ranks``: the moments at which a rank of many does more than a rank alone
- ``forward``: the whole forward, from token ids to the loss
- ``activations``: what a forward keeps for the backward, tensor by tensor
- ``optimizer``: what a step of the optimizer allocates: states once, temporaries each time
- ``offload``: what an optimizer on the host moves over the link in a step
- ``estimate``: bytes at each instant of a step: ``estimate_memory``
"""

from memkit import loaded_when_used

TYPE_CHECKING = False
if TYPE_CHECKING:  # what an editor reads; Python imports a name when it is asked for
    from memkit.formula.activations import (
        activation_bytes,
        activation_ledger,
        autocast_cast_bytes,
        block_ledger,
    )
    from memkit.formula.adapters import count_adapter_parameters, trained_parameters
    from memkit.formula.backward import Backward
    from memkit.formula.estimate import estimate_memory
    from memkit.formula.forward import Forward
    from memkit.formula.inference import inference_bytes, kv_cache_bytes, kv_cache_bytes_per_token
    from memkit.formula.kernels import embedding_backward_buffers
    from memkit.formula.ledger import Kept, Ledger
    from memkit.formula.offload import host_bytes, link_bytes
    from memkit.formula.paper import Paper
    from memkit.formula.parameters import Parameter, count_by_kind, count_parameters, parameter_ledger
    from memkit.formula.shares import kept_parameters, stepped_parameters
    from memkit.formula.states import bytes_per_parameter, state_bytes, state_ledger

__getattr__, __dir__, __all__ = loaded_when_used(__name__, __file__)
