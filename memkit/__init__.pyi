"""The public names of this folder, imported when they are used; an editor reads this list too."""

from .formats.records import FORMATS as FORMATS
from .formats.rounding import round_to as round_to
from .formula.activations import (
    activation_bytes as activation_bytes,
    block_ledger as block_ledger,
)
from .formula.estimate import estimate_memory as estimate_memory
from .formula.parameters import count_parameters as count_parameters
from .formula.states import bytes_per_parameter as bytes_per_parameter
from .cards import CARDS as CARDS
from .measure import (
    measure_memory as measure_memory,
    saved_bytes as saved_bytes,
)
from .program.transformer import (
    Transformer as Transformer,
    training_build as training_build,
)
from . import (
    models as models,
    recipes as recipes,
    strategies as strategies,
)
from .recipes import OptimizerConfig as OptimizerConfig
from .setup import TrainingSetup as TrainingSetup
from .tracing.trace import trace_memory as trace_memory
from .units import (
    GIB as GIB,
    MIB as MIB,
    aligned_table as aligned_table,
    format_bytes as format_bytes,
    format_gb as format_gb,
)

__version__: str

def lazy_names(package: str, file: str) -> tuple: ...
