"""The names that this room offers: its door and an editor read this list."""

from .refusals import NeedsValues as NeedsValues
from .trace import trace_script as trace_script
