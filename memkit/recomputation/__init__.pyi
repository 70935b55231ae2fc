"""The names that this room offers: its door and an editor read this list."""

from .costs import (
    block_products as block_products,
    blocks_ledger as blocks_ledger,
    saved_products as saved_products,
    step_flops as step_flops,
    stored_bytes as stored_bytes,
)
from .frontier import (
    Point as Point,
    cheapest_that_fits as cheapest_that_fits,
    pareto_front as pareto_front,
    peak_at as peak_at,
    points as points,
)
