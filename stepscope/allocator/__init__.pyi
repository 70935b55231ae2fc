"""The public names of this folder, imported when they are used; an editor reads this list too."""

from .caching import (
    AllocatorConfig as AllocatorConfig,
    CachingAllocator as CachingAllocator,
    Driver as Driver,
    OutOfMemory as OutOfMemory,
)
from .film import (
    STORIES as STORIES,
    Film as Film,
    AllocatorState as AllocatorState,
    growing_story as growing_story,
    holes_story as holes_story,
    rounding_story as rounding_story,
    step_story as step_story,
)
from .replay import (
    Failure as Failure,
    Player as Player,
    Replay as Replay,
    replay_trace as replay_trace,
)
from .snapshots import (
    RecordedRun as RecordedRun,
    predicted_snapshot as predicted_snapshot,
    read_snapshot as read_snapshot,
    write_snapshot as write_snapshot,
)
