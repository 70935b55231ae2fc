"""A ``Job``'s step in PyTorch, models of other libraries, one rank of many, and a program's own threads. Loads torch.

Reading order:

- ``threads``: a program's own threads, which nobody follows
- ``job``: a job's step: LoRA beside frozen weights, experts, an optimizer that steps in the backward
- ``sharded``: the step on one rank of many: DDP, ZeRO-1, ``fully_shard``
- ``hugging_face``: a real module and its training step from a config.json alone
"""

from .hugging_face import hugging_face_build, hugging_face_model
from .job import LoRALinear, add_adapters, in_4_bits, job_build
from .sharded import one_rank_of, sharded_build, wrap_model
