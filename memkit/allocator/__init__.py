"""CUDA's caching allocator as a model, exact to the byte and the address; recorded snapshots and their replay.

Chapter 07. Bytes are asked for and given back; what they are for is only carried along. The model rounds,
splits, caches and runs out of memory as PyTorch's own does, and is held against recordings of real cards.

Reading order:

- ``config``: what a request becomes: its rounding, its segment, and the options of ``PYTORCH_CUDA_ALLOC_CONF``
- ``heap``: the driver, the blocks, the pools of free ones, the books kept of them
- ``expandable``: expandable segments: one long run of addresses, mapped page by page
- ``caching``: the allocator itself: choose a pool, allocate, free, look for a block, give segments back
- ``workspaces``: what cuBLAS takes besides, per card and version of torch
- ``replays``: births and frees played one after the other; peaks, failure, and how far model and recording agree
- ``trace_replay``: a timeline's events played through the allocator of a named card
- ``snapshot_files``: reading a snapshot without trusting it
- ``recorded``: one device's part of a snapshot, every field checked
- ``snapshot_start``: the state before a recording, found by playing its events backwards
- ``snapshot_replay``: a recorded run played through the model, and held against the recording
- ``snapshot_writer``: a predicted snapshot that PyTorch's own visualiser opens
- ``film``: the allocator step by step, in words and rows
- ``stories``: a few short films worth watching
"""

from memkit import front_door

__getattr__, __dir__, __all__ = front_door(__name__, {
    "caching": "CachingAllocator OutOfMemory",
    "config": "AllocatorConfig",
    "film": "Film Still",
    "heap": "Driver",
    "replays": "Agreement Failure Player Replay",
    "snapshot_files": "load_snapshot",
    "snapshot_replay": "replay_snapshot",
    "snapshot_writer": "predicted_snapshot write_snapshot",
    "stories": "STORIES growing_story holes_story rounding_story step_story",
    "trace_replay": "replay_trace",
    "workspaces": "training_workspace_bytes workspace_bytes",
})
