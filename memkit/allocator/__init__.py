"""CUDA's caching allocator as a model, exact to the byte and the address; recorded snapshots and their replay.

Chapter 07. Bytes are asked for and given back; what they are for is only carried along. The model rounds,
splits, caches and runs out of memory as PyTorch's own does, and is held against recordings of real cards.

Reading order:

- ``config``: what a request becomes: rounding, pools and the options of ``PYTORCH_CUDA_ALLOC_CONF``
- ``heap``: the driver, the blocks, the pools of free ones
- ``expandable``: expandable segments: one long run of addresses, mapped page by page
- ``caching``: the allocator itself: allocate, free, look for a block, give segments back
- ``workspaces``: what cuBLAS takes besides, per card
- ``replays``: what a replay found: peaks, failure, and how far model and recording agree
- ``trace_replay``: a timeline's events played through the allocator of a named card
- ``snapshot_files``: reading a snapshot without trusting it
- ``snapshot_start``: the state before a recording, found by playing its events backwards
- ``snapshot_replay``: a recorded run played through the model, and held against the recording
- ``snapshot_writer``: a predicted snapshot that PyTorch's own visualiser opens
- ``film``: the allocator step by step, in words and rows
- ``stories``: a few short films worth watching
"""

from memkit import loaded_when_used

__getattr__, __dir__, __all__ = loaded_when_used(
    __name__,
    config="AllocatorConfig",
    heap="Driver",
    caching="CachingAllocator OutOfMemory",
    workspaces="workspace_bytes training_workspace_bytes",
    replays="Agreement Failure Replay",
    trace_replay="replay_trace",
    snapshot_files="load_snapshot",
    snapshot_replay="replay_snapshot",
    snapshot_writer="predicted_snapshot write_snapshot",
    film="Film Still",
    stories="STORIES growing_story holes_story rounding_story step_story",
)
