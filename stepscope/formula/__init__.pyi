"""The public names of this folder, imported when they are used; an editor reads this list too."""

from .adapters import (
    count_adapter_parameters as count_adapter_parameters,
    trained_parameters as trained_parameters,
)
from .job import (
    Standing as Standing,
    host_bytes as host_bytes,
    job_state_bytes as job_state_bytes,
    job_state_ledger as job_state_ledger,
    link_bytes as link_bytes,
    standing_of as standing_of,
)
