"""CUDA's caching allocator as a model, exact to the byte and the address; recorded snapshots as events.

Chapter 07. Bytes are asked for and given back; what they are for is only carried along. The model rounds,
splits, caches and runs out of memory as PyTorch's own does, and is held against recordings of real cards.

Reading order:

- ``caching``: the allocator itself: round, choose a pool, allocate, free, grow, give segments back
- ``replay``: births and frees played through it, on a named card; peaks and failure
- ``snapshots``: a recorded memory snapshot as events, and a predicted one that PyTorch's own visualiser opens
- ``film``: the allocator step by step, in words and rows, and a few short stories worth watching
"""

from .caching import AllocatorConfig, CachingAllocator, Driver
from .film import Film, holes_story
from .replay import replay_trace
from .snapshots import predicted_snapshot, read_snapshot, write_snapshot
