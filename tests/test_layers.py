"""The ladder: memkit is read from the bottom, and a module imports only what was read before it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "memkit"
HEAVY = frozenset({"torch", "matplotlib", "ipywidgets"})
MAX_LINES = 300

# (what the layer's modules may load, its modules in reading order)
LAYERS = (
    (set(), """units dtypes timeline claims formats decoding rounding code_reading block_formats
               running_sums hardware memory_hierarchy models recipes training"""),
    (set(), """params states ledger attention_memory activations kv_cache kernel_buffers
               tape backward layer_schedule attention_schedule schedule optimizer_step estimate
               korthikanti strategies strategy_costs allocator_config allocator_blocks
               allocator_expandable workspaces allocator
               replays snapshot_files snapshot_start trace_replay snapshots predicted_snapshot diagnose
               allocator_film allocation_bands stages execution_trace monitor
               strategy_estimate planner frontier
               recordings driver doctor"""),
    ({"torch"}, """transformer saved_tensors attribution watch shapes_only cpu_rules cuda_attention kernel_scratch
                   meta_kernels cuda_rules trace measure recompute compiled gpu_memory bandwidth
                   measured_blocks card_formats measurements record
                   capped_card live_tensors profiled_step ragged_batches small_step"""),
    ({"matplotlib"}, """timeline_words picture stamped_text timeline_picture plots
                      bit_picture number_line_picture running_sum_picture format_plots allocator_plots
                      saved_picture frontier_picture"""),
    ({"matplotlib", "ipywidgets"}, """widgets widgets.keys widgets.panel widgets.memory_explorer
                                    widgets.step_timeline widgets.clicks widgets.frontier_explorer widgets.allocator_lab
                                    widgets.snapshot_view widgets.bit_explorer widgets.number_line
                                    widgets.rounding_lab"""),
    (set(), "exercises"),
    (HEAVY, "exercises.chapter_00 exercises.chapter_01 exercises.chapter_04 exercises.chapter_02 exercises.chapter_07"),
)  # fmt: skip
ORDER = tuple(module for _, modules in LAYERS for module in modules.split())

VAGUE = {"utils", "helpers", "common", "core", "misc"}


def modules_of(package: Path) -> dict[str, Path]:
    """Dotted name without the package's own → file; a folder's ``__init__.py`` has the folder's name."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if parts:
            found[".".join(parts)] = path
    return found


def imports_of(path: Path, name: str, package: Path) -> set[str]:
    """Modules of ``package`` that the file imports anywhere, also inside a function."""
    known = modules_of(package)
    own_folder = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            targets = [alias.name.removeprefix(f"{package.name}.") for alias in node.names
                       if alias.name.startswith(f"{package.name}.")]  # fmt: skip
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                folder = own_folder.split(".")[: len(own_folder.split(".")) - node.level + 1]
                base = ".".join(part for part in (*folder, node.module) if part)
            elif base == package.name or base.startswith(f"{package.name}."):
                base = base.removeprefix(package.name).removeprefix(".")
            else:
                continue
            targets = [f"{base}.{alias.name}".strip(".") for alias in node.names]
            targets = [target if target in known else base for target in targets]
        else:
            continue
        found |= {target for target in targets if target}
    return found


def order_problems(package: Path, order: tuple[str, ...]) -> list[str]:
    """Sentences about imports that climb, and about modules that have no place in ``order``."""
    problems = []
    for name, path in modules_of(package).items():
        if name not in order:
            problems.append(f"{name} has no place in ORDER")
            continue
        for target in sorted(imports_of(path, name, package)):
            if target not in order or order.index(target) >= order.index(name):
                problems.append(f"{name} imports {target}, which does not come before it")
    return problems


def heavy_libraries_loaded_by(modules: list[str], path: Path) -> set[str]:
    """Which of ``HEAVY`` a fresh interpreter has loaded after importing all ``modules``."""
    program = (
        f"import sys; sys.path.insert(0, {str(path)!r}); import {', '.join(modules)}; print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return HEAVY & set(done.stdout.split())


def test_every_import_points_down():
    assert not order_problems(PACKAGE, ORDER)


def test_every_module_of_the_order_exists():
    assert not set(ORDER) - set(modules_of(PACKAGE)), "ORDER names modules that are not there"


def test_importing_memkit_loads_no_heavy_library():
    assert heavy_libraries_loaded_by(["memkit"], PACKAGE.parent) == set()


@pytest.mark.parametrize("allowed, modules", LAYERS, ids=range(len(LAYERS)))
def test_a_layer_loads_only_what_it_may(allowed, modules):
    there = [f"memkit.{module}" for module in modules.split() if module in modules_of(PACKAGE)]
    loaded = heavy_libraries_loaded_by(there, PACKAGE.parent)
    assert loaded <= allowed, f"one of {', '.join(there)} loads {', '.join(loaded - allowed)}"


@pytest.mark.parametrize("module, path", modules_of(PACKAGE).items())
def test_a_module_is_read_in_ten_minutes(module, path):
    if not module.startswith("exercises.chapter_"):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        assert lines <= MAX_LINES, f"{path.name} has {lines} lines: it holds two ideas"
    assert not VAGUE & set(module.split(".")), f"{module} says nothing about its content"


def plant(folder: Path, **sources: str) -> Path:
    """A package ``planted`` whose modules have these sources (``a__b`` is the file ``a/b.py``)."""
    package = folder / "planted"
    for name, source in {"__init__": "", **sources}.items():
        path = (
            package.joinpath(*name.split("__")).with_suffix(".py")
            if name != "__init__"
            else package / "__init__.py"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return package


@pytest.mark.parametrize(
    "climbing",
    [
        "import planted.high",
        "from planted import high",
        "from planted.high import value",
        "from . import high",
        "from .high import value",
        "def later():\n    from planted.high import value\n    return value",
    ],
)
def test_the_check_sees_an_import_that_climbs(tmp_path, climbing):
    package = plant(tmp_path, low=climbing, high="value = 1")
    assert order_problems(package, ("low", "high")) == ["low imports high, which does not come before it"]
    assert order_problems(package, ("high", "low")) == []


def test_the_check_sees_an_import_that_climbs_out_of_a_folder(tmp_path):
    package = plant(tmp_path, folder__low="from ..high import value", high="value = 1")
    assert order_problems(package, ("folder.low", "high")) == [
        "folder.low imports high, which does not come before it"
    ]


def test_the_check_sees_a_module_without_a_place(tmp_path):
    assert order_problems(plant(tmp_path, stray=""), ()) == ["stray has no place in ORDER"]


@pytest.mark.parametrize("library", sorted(HEAVY))
def test_the_check_sees_a_heavy_library(tmp_path, library):
    package = plant(tmp_path, low="from planted import deeper", deeper=f"import {library}")
    assert library in heavy_libraries_loaded_by(["planted.low"], package.parent)
