"""The kit's tests, held of something that takes the place of the kit's own: whoever extends it holds what it holds."""

from dataclasses import dataclass
from types import ModuleType

from lab_server import ROOT


@dataclass(frozen=True)
class KitTests:
    """A file of ``tests/memkit`` that was loaded once more, and its tests by their names."""

    module: ModuleType

    @property
    def tests(self) -> dict[str, object]:
        return {
            name: value for name, value in vars(self.module).items() if name.startswith("test_")
        }

    def __getattr__(self, name: str):
        return getattr(self.module, name)


def kit_tests(file: str, *imports: str, **in_place_of) -> KitTests:
    """The tests of ``tests/memkit/<file>``, with other values for some of its names.

    ``imports`` are pairs of an import that the file has and the one that takes its place, for what it needs while it
    is loaded.
    """
    path = ROOT / "tests" / "memkit" / file
    source = path.read_text(encoding="utf-8")
    for old, new in zip(imports[::2], imports[1::2], strict=True):
        assert old in source, f"{file} has no {old!r}"
        source = source.replace(old, new)
    module = ModuleType(f"again_{path.stem}")
    module.__file__ = str(path)
    exec(compile(source, str(path), "exec"), vars(module))
    missing = set(in_place_of) - set(vars(module))
    assert not missing, f"{file} has no {missing}"
    vars(module).update(in_place_of)
    return KitTests(module)
