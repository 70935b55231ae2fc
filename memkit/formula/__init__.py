"""The first column: a training step on paper, without PyTorch, in milliseconds.

Chapters 01 and 08. ``model`` writes a transformer's forward as a list of ``operations``; ``liveness`` walks through it,
forward and back, and says when each byte is born and freed; ``estimate`` adds up what is alive at each instant. The
transformer of ``memkit.program`` is the other, independent description of the same step.

Reading order:

- ``parameters``: how many parameters a model has, tensor by tensor
- ``states``: what stays between steps: weights, gradients, optimizer states
- ``kernels``: buffers that a CUDA kernel takes for its own work
- ``operations``: the list's language: tensors, operations, checkpointed regions
- ``liveness``: walks the list forward and back, and says when every byte comes and goes
- ``tables``: a step as tables: its operations, and how bytes come and go meanwhile
- ``model``: the list of a GPT-2 or a Llama, from the token ids to the loss
- ``cpu``: the CPU's rules, where they are others than CUDA's
- ``rms_norm``: RMSNorm in single operations
- ``additions``: puts together what a setup asks for
- ``activations``: what a forward keeps for the backward, tensor by tensor
- ``gradients``: what becomes of a finished gradient: kept, added, used at once
- ``optimizer``: what a step of the optimizer makes: states once, temporaries each time
- ``run``: how a run keeps, computes and steps its parameters
- ``estimate``: bytes at each instant of a step: ``estimate_memory``
"""

from memkit import front_door

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
