"""What is trained beyond the kit's setup: adapters, experts, more optimizers, places where an optimizer steps, ranks.

Reading order:

- ``hugging_face``: a config.json as a model's shape, or why it is none
- ``optimizers``: an optimizer's states, temporaries, class and price, one record each
- ``layouts``: one run on many ranks: what each keeps whole, and what it keeps a share of
- ``adapters``: LoRA and QLoRA: what is trained beside frozen weights, and in how many bits those are kept
- ``experts``: A transformer with a mixture of experts in place of the MLP of some blocks or of all
- ``places``: Where an optimizer steps
- ``job``: A training step with all that chapters 08 to 12 add: adapters, 4 bits, where the optimizer steps
"""

from memkit import front_door

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
