"""Where the bytes go when a neural network trains: formula, trace and measurement of one training step.

The rooms, from the bottom; each imports only what stands above it here, and says in its own first lines what
it holds and in which order to read it:

- ``units``: bytes, counts and ratios as text; the only division
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
- ``fitting``: advice, diagnosis and plans
- ``pictures``: matplotlib
- ``widgets``: ipywidgets
- ``book``: exercises, claims, recordings, the check of the reader's machine

The names below are the front door: what a reader imports, loaded when it is used. ``import memkit`` itself
loads neither torch nor numpy nor matplotlib nor ipywidgets.
"""

from importlib import import_module

__version__ = "0.1.0"


def loaded_when_used(package: str, *namespaces: str, **names: str) -> tuple:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package that imports its names when asked for (PEP 562).

    ``names`` gives each module's names; a module with ``__`` in its name lies in a folder. ``namespaces`` are
    modules that are offered whole.
    """
    places = {name: (module.replace("__", "."), name) for module, text in names.items() for name in text.split()}
    places |= {path.rpartition(".")[2]: (path, None) for path in namespaces}

    def __getattr__(name: str) -> object:
        if name not in places:
            raise AttributeError(f"{package} has no {name!r}; it has: {', '.join(sorted(places))}")
        path, attribute = places[name]
        module = import_module(f"{package}.{path}")
        return getattr(module, attribute) if attribute else module

    return __getattr__, lambda: sorted(places), sorted(places)


__getattr__, __dir__, __all__ = loaded_when_used(
    __name__,
    "setup.models",
    "setup.recipes",
    "setup.strategies",
    units="GIB KIB MIB aligned_table format_bytes format_count format_gb",
    timeline="MemoryTimeline compare",
    formats__records="FORMATS",
    formats__rounding="round_to",
    setup__models="ModelConfig",
    setup__recipes="OptimizerConfig",
    setup__training="TrainingSetup",
    hardware__cards="CARDS",
    allocator__snapshot_replay="replay_snapshot",
    allocator__trace_replay="replay_trace",
    formula__activations="activation_bytes block_ledger",
    formula__estimate="estimate_memory",
    formula__parameters="count_parameters",
    formula__states="bytes_per_parameter",
    program__transformer="Transformer training_build",
    tracing__trace="trace_memory",
    measuring__gpu="give_back",
    measuring__measure="measure_memory",
    measuring__saved_tensors="saved_bytes saved_storages",
    recomputation__peak="predict_peak",
    fitting__diagnosis="diagnose_memory",
    fitting__planner="plan_recomputation",
    book__checkup="doctor",
    book__claims="count_verdicts ids_of load_claims",
    book__exercises="check",
    book__recordings="recorded_or_words",
)
