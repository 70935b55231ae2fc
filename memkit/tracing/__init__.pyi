"""The public names of this folder, imported when they are used; an editor reads this list too."""

from .cuda import pretend_cuda as pretend_cuda
from .flops import (
    CountedFlops as CountedFlops,
    counted_flops as counted_flops,
)
from .trace import trace_memory as trace_memory
from .shapes import NeedsValues as NeedsValues
