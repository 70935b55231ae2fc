"""The first column of a ``Job``: what adapters, experts, offload and more optimizers add to the kit's step on paper.

Reading order:

- ``inference``: what inference keeps instead: weights and the key and value cache
- ``experts``: a mixture of experts in place of an MLP
- ``optimizers``: the temporaries of more optimizers' steps
- ``adapters``: LoRA and QLoRA on paper: thin matrices beside frozen weights, which may be in 4 bits
- ``states``: what a job keeps between steps
- ``offload``: what an optimizer on the host moves over the link in a step
- ``job``: how a job runs: what its adapters freeze, and where its optimizer steps
"""

from memkit import front_door

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
