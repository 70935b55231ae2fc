"""The names that this room offers: its door and an editor read this list."""

from .adapters import (
    count_adapter_parameters as count_adapter_parameters,
    trained_parameters as trained_parameters,
)
from .inference import (
    kv_cache_bytes as kv_cache_bytes,
    kv_cache_bytes_per_token as kv_cache_bytes_per_token,
)
from .offload import (
    host_bytes as host_bytes,
    link_bytes as link_bytes,
)
from .states import (
    Standing as Standing,
    job_state_bytes as job_state_bytes,
    job_state_ledger as job_state_ledger,
    standing_of as standing_of,
)
