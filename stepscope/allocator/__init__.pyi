"""The names that this room offers: its door and an editor read this list."""

from .caching import (
    CachingAllocator as CachingAllocator,
    OutOfMemory as OutOfMemory,
)
from .config import AllocatorConfig as AllocatorConfig
from .film import (
    Film as Film,
    Still as Still,
)
from .heap import Driver as Driver
from .replays import (
    Failure as Failure,
    Player as Player,
    Replay as Replay,
)
from .snapshot_reader import (
    RecordedRun as RecordedRun,
    read_snapshot as read_snapshot,
)
from .snapshot_writer import (
    predicted_snapshot as predicted_snapshot,
    write_snapshot as write_snapshot,
)
from .stories import (
    STORIES as STORIES,
    growing_story as growing_story,
    holes_story as holes_story,
    rounding_story as rounding_story,
    step_story as step_story,
)
from .trace_replay import replay_trace as replay_trace
