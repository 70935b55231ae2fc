"""The kit's tests, held of something that takes the place of the kit's own: whoever extends it holds what it holds."""

import importlib.util
from dataclasses import dataclass
from types import ModuleType

from lab_server import ROOT


@dataclass(frozen=True)
class KitTests:
    """A file of ``tests/memkit`` that was loaded once more, and its tests by their names."""

    module: ModuleType

    @property
    def tests(self) -> dict[str, object]:
        return {name: value for name, value in vars(self.module).items() if name.startswith("test_")}

    def __getattr__(self, name: str):
        return getattr(self.module, name)


def kit_tests(file: str, **in_place_of) -> KitTests:
    """The tests of ``tests/memkit/<file>`` with other values for some of the names that it imports."""
    path = ROOT / "tests" / "memkit" / file
    spec = importlib.util.spec_from_file_location(f"again_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    missing = set(in_place_of) - set(vars(module))
    assert not missing, f"{file} has no {missing}"
    vars(module).update(in_place_of)
    return KitTests(module)
