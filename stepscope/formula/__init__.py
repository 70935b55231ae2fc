"""The first column of a ``Job``: what adapters, experts, offload and more optimizers add to the kit's step on paper.

Reading order:

- ``inference``: what inference keeps instead: weights and the key and value cache
- ``experts``: a mixture of experts in place of an MLP
- ``offload``: what an optimizer on the host moves over the link in a step
- ``adapters``: LoRA and QLoRA on paper: thin matrices beside frozen weights, which may be in 4 bits
- ``job``: How a ``Job`` runs: what its adapters freeze, and where its optimizer steps
- ``optimizers``: The temporaries of the steps of ``stepscope.setup.optimizers``
"""

from memkit import front_door

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
