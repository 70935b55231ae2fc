"""Explorers of adapters, allocator, plans and ranks, and the kit's memory explorer with three controls more.

Reading order:

- ``memory_explorer``: a model, a recipe, the shape of a step: where the bytes are
- ``allocator_lab``: play a trace through the allocator
- ``plan_explorers``: LoRA and QLoRA; a model on 1 to 512 ranks; every plan that fits a job, and what each gives up
"""

from memkit import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
