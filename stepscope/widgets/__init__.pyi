"""The public names of this folder, imported when they are used; an editor reads this list too."""

from .allocator_lab import AllocatorLab as AllocatorLab
from .memory_explorer import MemoryExplorer as MemoryExplorer
from .saved_film import SavedFilm as SavedFilm
from .plan_explorers import (
    AdapterExplorer as AdapterExplorer,
    PlanExplorer as PlanExplorer,
    ShardingExplorer as ShardingExplorer,
)
