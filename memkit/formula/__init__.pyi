"""The public names of this folder, imported when they are used; an editor reads this list too."""

from .activations import (
    Kept as Kept,
    Ledger as Ledger,
    activation_bytes as activation_bytes,
    activation_ledger as activation_ledger,
    autocast_cast_bytes as autocast_cast_bytes,
    block_ledger as block_ledger,
)
from .model import (
    addition as addition,
    model_of as model_of,
)
from .estimate import (
    estimate_memory as estimate_memory,
    second_step as second_step,
)
from .kernels import embedding_backward_buffers as embedding_backward_buffers
from .liveness import Walk as Walk
from .parameters import (
    Parameter as Parameter,
    count_by_kind as count_by_kind,
    count_parameters as count_parameters,
    parameter_ledger as parameter_ledger,
)
from .states import (
    bytes_per_parameter as bytes_per_parameter,
    state_bytes as state_bytes,
    state_ledger as state_ledger,
)
