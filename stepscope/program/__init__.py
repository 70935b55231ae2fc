"""A ``Job``'s step in PyTorch, models of other libraries, one rank of many, and a program's own threads. Loads torch.

Reading order:

- ``threads``: a program's own threads, which nobody follows
- ``job``: a job's step: LoRA beside frozen weights, experts, an optimizer that steps in the backward
- ``sharded``: the step on one rank of many: DDP, ZeRO-1, ``fully_shard``
- ``hugging_face``: a real module and its training step from a config.json alone
"""

from memkit import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
