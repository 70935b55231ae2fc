"""Where the bytes go when a neural network trains: formula, trace and measurement of one training step.

The rooms, from the bottom; each imports only what stands above it here, and says in its own first lines what
it holds and in which order to read it:

- ``units``: bytes, counts and ratios as text; the only division
- ``events``: what happens to memory: blocks are allocated and freed
- ``timeline``: the one type of the book: what stands in memory at named instants, and the events in between
- ``formats``: number formats: decoding, rounding, blocks
- ``setup``: what is trained, and how
- ``hardware``: what it runs on
- ``allocator``: CUDA's caching allocator, snapshots and their replay
- ``formula``: the first column, the step on paper
- ``low_precision``: training in 16 and 8 bits
- ``program``: the step in PyTorch
- ``tracing``: the second column, the step without data
- ``measuring``: the third column, the step on the machine
- ``recomputation``: what running twice keeps and costs
- ``sharding``: one rank of many on paper
- ``fitting``: advice, diagnosis and plans
- ``pictures``: matplotlib
- ``widgets``: ipywidgets

The names below are the front door: what a reader imports, loaded when it is used. ``import memkit`` itself
loads neither torch nor numpy nor matplotlib nor ipywidgets.
"""

from importlib import import_module

__version__ = "0.1.0"


def loaded_when_used(package: str, file: str) -> tuple:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package that imports its names when asked for (PEP 562).

    The names are those of the indented import statements in ``file``, which an editor reads too.
    """
    places = {}
    with open(file, encoding="utf-8") as source:
        statements = source.read().split("\n    from ")[1:]
    for module, _, names in (statement.partition(" import ") for statement in statements):
        listed = names[1:].partition(")")[0] if names.startswith("(") else names.partition("\n")[0]
        places |= dict.fromkeys(listed.replace(",", " ").split(), module)

    def __getattr__(name: str) -> object:
        if name not in places:
            raise AttributeError(f"{package} has no {name!r}; it has: {', '.join(sorted(places))}")
        module = import_module(places[name])
        return getattr(module, name) if hasattr(module, name) else import_module(f"{places[name]}.{name}")

    return __getattr__, lambda: sorted(places), sorted(places)


TYPE_CHECKING = False
if TYPE_CHECKING:  # what an editor reads; Python imports a name when it is asked for
    from memkit.allocator.snapshot_replay import replay_snapshot
    from memkit.allocator.trace_replay import replay_trace
    from memkit.fitting.diagnosis import diagnose_memory
    from memkit.fitting.planner import plan_recomputation
    from memkit.formats.records import FORMATS
    from memkit.formats.rounding import round_to
    from memkit.formula.activations import activation_bytes, block_ledger
    from memkit.formula.estimate import estimate_memory
    from memkit.formula.parameters import count_parameters
    from memkit.formula.states import bytes_per_parameter
    from memkit.hardware.cards import CARDS
    from memkit.measuring.gpu import give_back
    from memkit.measuring.measure import measure_memory
    from memkit.measuring.saved_tensors import saved_bytes, saved_storages
    from memkit.program.transformer import Transformer, training_build
    from memkit.recomputation.peak import predict_peak
    from memkit.setup import models, recipes, strategies
    from memkit.setup.models import ModelConfig
    from memkit.setup.recipes import OptimizerConfig
    from memkit.setup.training import TrainingSetup
    from memkit.timeline import MemoryTimeline, compare
    from memkit.tracing.trace import trace_memory
    from memkit.units import GIB, KIB, MIB, aligned_table, format_bytes, format_count, format_gb

__getattr__, __dir__, __all__ = loaded_when_used(__name__, __file__)
