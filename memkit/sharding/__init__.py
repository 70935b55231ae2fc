"""One rank of many on paper: what DDP, ZeRO's stages and FSDP2 keep, gather and send, in a step and at rest.

Chapter 09. The step is that of ``estimate_memory``, read off the same tape; a layout adds what happens around each
block. Which share of a tensor a rank has is decided in ``formula.shares``.

Reading order:

- ``zero``: bytes at rest, by the formulas of the ZeRO paper
- ``gathered``: tensors that are gathered and reduced together, and their sizes
- ``step``: bytes at each instant of a step on one rank: ``estimate_sharded``
- ``traffic``: bytes that a step sends, and their time on paper
- ``deepspeed``: what the keys of a DeepSpeed configuration cost
"""

from memkit import loaded_when_used

TYPE_CHECKING = False
if TYPE_CHECKING:  # what an editor reads; Python imports a name when it is asked for
    from memkit.sharding.deepspeed import auto_sizes, key_bytes
    from memkit.sharding.gathered import Group, groups_of
    from memkit.sharding.step import estimate_sharded
    from memkit.sharding.traffic import Traffic, step_traffic
    from memkit.sharding.zero import resting_bytes, zero_saving

__getattr__, __dir__, __all__ = loaded_when_used(__name__, __file__)
