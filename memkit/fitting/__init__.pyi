"""The names that this room offers: its door and an editor read this list."""

from .batch_plan import (
    BatchPlan as BatchPlan,
    cuts_of as cuts_of,
    least_seconds as least_seconds,
    nearest_plans as nearest_plans,
)
