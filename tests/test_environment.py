"""pyproject.toml, constraints.txt and environment.yml describe one environment, and the tests run in it."""

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
READER = [Requirement(line) for line in PROJECT["dependencies"]]
TESTER = [Requirement(line) for extra in ("test", "hub", "course") for line in PROJECT["optional-dependencies"][extra]]
CONSTRAINTS = [
    Requirement(line)
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line[:1] not in ("", "#")
]
PINNED = {re.sub(r"[-_.]+", "-", pin.name).lower(): str(pin.specifier) for pin in CONSTRAINTS}
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text())


def pinned(requirement: Requirement) -> Version:
    return Version(PINNED[re.sub(r"[-_.]+", "-", requirement.name).lower()].removeprefix("=="))


def test_conda_brings_python_and_pip_and_nothing_else():
    assert CONDA["channels"] == ["conda-forge", "nodefaults"]
    names = [re.split(r"[<>=]", entry)[0] for entry in CONDA["dependencies"] if isinstance(entry, str)]
    assert names == ["python", "pip"]


def test_conda_installs_the_project_under_the_same_constraints():
    sections = [entry["pip"] for entry in CONDA["dependencies"] if isinstance(entry, dict)]
    assert sections == [["--constraint constraints.txt", "--editable ."]]
    assert "--constraint constraints.txt" in (ROOT / "Makefile").read_text()


def test_conda_s_python_is_one_the_project_allows():
    [line] = [
        entry for entry in CONDA["dependencies"] if isinstance(entry, str) and entry.startswith("python")
    ]
    assert PROJECT["requires-python"] == ">=3.11"
    assert re.match(r"python\s*=+\s*([\d.]*)", line)[1] == "3.11", "a single version: repo2docker's PYTHON_REGEX"


def test_constraints_are_exact_and_fit_every_platform():
    for pin in CONSTRAINTS:
        [only] = pin.specifier
        assert only.operator == "=="
        assert Version(only.version).local is None
        assert pin.marker is None and pin.url is None
    assert len(PINNED) == len(CONSTRAINTS)


def test_torch_is_the_version_the_book_was_written_with():
    [torch] = [requirement for requirement in READER if requirement.name == "torch"]
    assert torch.specifier == Requirement("torch>=2.11,<2.14").specifier
    assert PINNED["torch"] == "==2.13.0"


@pytest.mark.parametrize("requirement", READER + TESTER, ids=str)
def test_a_requirement_is_pinned_to_a_version_it_allows(requirement):
    assert pinned(requirement) in requirement.specifier


@pytest.mark.parametrize("requirement", READER + TESTER, ids=str)
def test_what_is_installed_is_allowed(requirement):
    assert importlib.metadata.version(requirement.name) in requirement.specifier


def test_versions_agree():
    import memkit

    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == memkit.__version__
    assert f"## {memkit.__version__}" in (ROOT / "CHANGELOG.md").read_text()
