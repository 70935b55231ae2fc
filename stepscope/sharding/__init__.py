"""One rank of many on paper: what DDP, ZeRO's stages and FSDP2 keep, gather and send, in a step and at rest.

Chapter 09. The step is that of ``estimate_memory``, whose events a layout rewrites around each block. Which share of
a tensor a rank has is decided in ``step``.

Reading order:

- ``step``: bytes at each instant of a step on one rank: ``estimate_sharded``
- ``traffic``: bytes at rest and bytes that a step sends, by the ZeRO paper's formulas, and when computing hides them
"""

from .step import Group, estimate_sharded, groups_of
from .traffic import Traffic, resting_bytes, step_traffic, zero_saving
