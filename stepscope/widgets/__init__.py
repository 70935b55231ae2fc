"""Explorers of adapters, allocator, plans and ranks, the kit's memory explorer with three controls more, and its film
as a file.

Reading order:

- ``memory_explorer``: a model, a recipe, the shape of a step: where the bytes are
- ``saved_film``: the film of a step as a file, a long one told in moments
- ``allocator_lab``: play a trace through the allocator
- ``plan_explorers``: LoRA and QLoRA; a model on 1 to 512 ranks; every plan that fits a job, and what each gives up
"""

from memkit import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
