"""The names that this room offers: its door and an editor read this list."""

from .gpu import (
    cap_gpu as cap_gpu,
    give_back as give_back,
    usable_bytes as usable_bytes,
)
from .measure import measure_memory as measure_memory
from .saved_tensors import (
    SavedStorage as SavedStorage,
    saved_bytes as saved_bytes,
    saved_storages as saved_storages,
)
