"""The names that this room offers: its door and an editor read this list."""

from .activations import (
    Kept as Kept,
    Ledger as Ledger,
    activation_bytes as activation_bytes,
    activation_ledger as activation_ledger,
    autocast_cast_bytes as autocast_cast_bytes,
    block_ledger as block_ledger,
)
from .backward import Backward as Backward
from .estimate import estimate_memory as estimate_memory
from .forward import Forward as Forward
from .inference import (
    kv_cache_bytes as kv_cache_bytes,
    kv_cache_bytes_per_token as kv_cache_bytes_per_token,
)
from .kernels import embedding_backward_buffers as embedding_backward_buffers
from .offload import (
    host_bytes as host_bytes,
    link_bytes as link_bytes,
)
from .paper import Paper as Paper
from .parameters import (
    Parameter as Parameter,
    count_adapter_parameters as count_adapter_parameters,
    count_by_kind as count_by_kind,
    count_parameters as count_parameters,
    kept_parameters as kept_parameters,
    parameter_ledger as parameter_ledger,
    stepped_parameters as stepped_parameters,
    trained_parameters as trained_parameters,
)
from .states import (
    bytes_per_parameter as bytes_per_parameter,
    state_bytes as state_bytes,
    state_ledger as state_ledger,
)
