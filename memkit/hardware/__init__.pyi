"""The names that this room offers: its door and an editor read this list."""

from .cap import gpu_cap_bytes as gpu_cap_bytes
from .cards import (
    CARDS as CARDS,
    Card as Card,
    card_by_driver_name as card_by_driver_name,
    matrix_dtypes as matrix_dtypes,
)
from .fit import (
    Fit as Fit,
    fit_on as fit_on,
    planned_room as planned_room,
)
from .workspaces import training_workspace_bytes as training_workspace_bytes
