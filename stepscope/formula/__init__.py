"""The first column of a ``Job``: what adapters, experts, offload and more optimizers add to the kit's step on paper.

Reading order:

- ``adapters``: LoRA and QLoRA on paper: thin matrices beside frozen weights, which may be in 4 bits
- ``job``: what a job keeps between steps, what it moves to the host, how it runs, its loss in pieces
"""

from .adapters import count_adapter_parameters, trained_parameters
from .job import host_bytes, job_state_bytes, job_state_ledger, link_bytes
