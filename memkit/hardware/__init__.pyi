"""The names that this room offers: its door and an editor read this list."""

from .cards import (
    CARDS as CARDS,
    Card as Card,
    card_by_driver_name as card_by_driver_name,
    matrix_dtypes as matrix_dtypes,
)
from .driver import (
    ask_driver as ask_driver,
    available_ram_bytes as available_ram_bytes,
    gpu_cap_bytes as gpu_cap_bytes,
    visible_gpus as visible_gpus,
)
