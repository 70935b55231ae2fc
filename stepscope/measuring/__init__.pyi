"""The names that this room offers: its door and an editor read this list."""

from .small_card import (
    CudaCard as CudaCard,
    SimulatedCard as SimulatedCard,
    capped_card as capped_card,
)
