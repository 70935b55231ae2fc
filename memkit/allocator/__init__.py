"""CUDA's caching allocator as a model, exact to the byte and the address; recorded snapshots and their replay.

Chapter 07. Bytes are asked for and given back; what they are for is only carried along. The model rounds,
splits, caches and runs out of memory as PyTorch's own does, and is held against recordings of real cards.

Reading order:

- ``config``: what a request becomes: its rounding, its segment, and the options of ``PYTORCH_CUDA_ALLOC_CONF``
- ``heap``: the driver, the blocks, the pools of free ones, the books kept of them
- ``expandable``: expandable segments: one long run of addresses, mapped page by page
- ``caching``: the allocator itself: choose a pool, allocate, free, look for a block, give segments back
- ``workspaces``: what cuBLAS takes besides, per card and version of torch
- ``replays``: what a replay found: peaks, failure, and how far model and recording agree
- ``player``: the one way into the allocator: births and frees, played one after the other
- ``trace_replay``: a timeline's events played through the allocator of a named card
- ``snapshot_files``: reading a snapshot without trusting it
- ``recorded``: one device's part of a snapshot, every field checked
- ``snapshot_start``: the state before a recording, found by playing its events backwards
- ``snapshot_replay``: a recorded run played through the model, and held against the recording
- ``snapshot_writer``: a predicted snapshot that PyTorch's own visualiser opens
- ``film``: the allocator step by step, in words and rows
- ``stories``: a few short films worth watching
"""

from memkit import loaded_when_used

TYPE_CHECKING = False
if TYPE_CHECKING:  # what an editor reads; Python imports a name when it is asked for
    from memkit.allocator.caching import CachingAllocator, OutOfMemory
    from memkit.allocator.config import AllocatorConfig
    from memkit.allocator.film import Film, Still
    from memkit.allocator.heap import Driver
    from memkit.allocator.player import Player
    from memkit.allocator.replays import Agreement, Failure, Replay
    from memkit.allocator.snapshot_files import load_snapshot
    from memkit.allocator.snapshot_replay import replay_snapshot
    from memkit.allocator.snapshot_writer import predicted_snapshot, write_snapshot
    from memkit.allocator.stories import STORIES, growing_story, holes_story, rounding_story, step_story
    from memkit.allocator.trace_replay import replay_trace
    from memkit.allocator.workspaces import training_workspace_bytes, workspace_bytes

__getattr__, __dir__, __all__ = loaded_when_used(__name__, __file__)
