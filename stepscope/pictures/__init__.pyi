"""The names that this room offers: its door and an editor read this list."""

from .allocator import allocator_picture as allocator_picture
from .plans import plans_figure as plans_figure
