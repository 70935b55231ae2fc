"""The public names of this folder, imported when they are used; an editor reads this list too."""

from .adapter_explorer import AdapterExplorer as AdapterExplorer
from .allocator_lab import AllocatorLab as AllocatorLab
from .memory_explorer import MemoryExplorer as MemoryExplorer
from .plan_explorer import PlanExplorer as PlanExplorer
from .sharding_explorer import ShardingExplorer as ShardingExplorer
