"""The public names of this folder, imported when they are used; an editor reads this list too."""

from .refusals import NeedsValues as NeedsValues
from .trace import trace_script as trace_script
