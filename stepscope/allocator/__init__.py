"""CUDA's caching allocator as a model, exact to the byte and the address; recorded snapshots as events.

Chapter 07. Bytes are asked for and given back; what they are for is only carried along. The model rounds,
splits, caches and runs out of memory as PyTorch's own does, and is held against recordings of real cards.

Reading order:

- ``config``: what a request becomes: its rounding, its segment, and the option that is modelled
- ``heap``: the driver, the blocks, the pools of free ones, the books kept of them
- ``expandable``: expandable segments: one long run of addresses, mapped page by page
- ``caching``: the allocator itself: choose a pool, allocate, free, look for a block, give segments back
- ``replays``: births and frees played one after the other; peaks and failure
- ``trace_replay``: a timeline's events played through the allocator of a named card
- ``snapshot_reader``: a recorded memory snapshot as events, read without trusting its file
- ``snapshot_writer``: a predicted snapshot that PyTorch's own visualiser opens
- ``film``: the allocator step by step, in words and rows
- ``stories``: a few short films worth watching
"""

from memkit import front_door

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
