"""What is trained beyond the kit's setup: adapters, experts, more optimizers, places where an optimizer steps, ranks.

Reading order:

- ``adapters``: LoRA and QLoRA: what is trained beside frozen weights, and in how many bits those are kept
- ``experts``: a transformer with a mixture of experts in place of the MLP of some blocks or of all
- ``optimizers``: Adafactor, Lion, Muon, 8-bit and paged optimizers, one record each
- ``hugging_face``: a config.json as a model's shape, or why it is none
- ``places``: where an optimizer steps
- ``layouts``: one run on many ranks: what each keeps whole, and what it keeps a share of
- ``job``: a ``TrainingSetup`` with adapters and a place where its optimizer steps
"""

from memkit import front_door

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
