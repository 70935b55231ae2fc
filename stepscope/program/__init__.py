"""A ``Job``'s step in PyTorch, models of other libraries, one rank of many, and a program's own threads. Loads torch.

Reading order:

- ``threads``: a program's own threads, which nobody follows
- ``adapters``: LoRA, and weights in 4 bits under it
- ``experts``: a mixture of experts in place of an MLP
- ``sharded``: the step on one rank of many: DDP, ZeRO-1, ``fully_shard``
- ``hugging_face``: a real module and its training step from a config.json alone
- ``optimizers``: Lion, Muon, and steps in the backward
- ``job``: a job's step: LoRA beside frozen weights, experts, an optimizer that steps in the backward
"""

from memkit import front_door

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
