"""pyproject.toml, constraints.txt and environment.yml describe one environment, and the tests run in it."""

import importlib.metadata
import os
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from book.checkup import NEWEST_TORCH, OLDEST_TORCH
from dev import install

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
READER = [Requirement(line) for line in PROJECT["dependencies"] + EXTRAS["lab"]]
TESTER = [
    wanted
    for extra in ("test", "hub", "course")
    for wanted in map(Requirement, EXTRAS[extra])
    if wanted.name != PROJECT["name"]  # an extra that brings another one
]
CONSTRAINTS = [
    Requirement(line)
    for line in (ROOT / "dev" / "constraints.txt").read_text().splitlines()
    if line[:1] not in ("", "#")
]
PINNED = {re.sub(r"[-_.]+", "-", pin.name).lower(): str(pin.specifier) for pin in CONSTRAINTS}
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text())


def test_conda_brings_one_python_that_the_project_allows_and_pip_the_project():
    python, pip, told = CONDA["dependencies"]
    assert CONDA["channels"] == ["conda-forge", "nodefaults"] and pip == "pip"
    assert PROJECT["requires-python"] == ">=3.11"
    assert re.match(r"python\s*=+\s*([\d.]*)", python)[1] == "3.11", (
        "a single version: repo2docker's PYTHON_REGEX"
    )
    assert told == {"pip": ["--constraint dev/constraints.txt", "--editable .[lab]"]}
    assert '"--constraint", "dev/constraints.txt"' in (ROOT / "dev/install.py").read_text()


def test_binder_brings_the_same_by_paths_that_begin_in_its_own_folder():
    """conda, micromamba and so repo2docker run pip in the folder of the file."""
    binder = yaml.safe_load((ROOT / ".binder" / "environment.yml").read_text())
    assert (
        binder["dependencies"][:2] == CONDA["dependencies"][:2]
        and binder["channels"] == CONDA["channels"]
    )
    index, *told = binder["dependencies"][2]["pip"]
    assert index == f"--extra-index-url {install.CPU_INDEX}"
    from_root = [line.replace("../", "").replace("..[", ".[") for line in told]
    assert from_root == CONDA["dependencies"][2]["pip"] and from_root != told


def test_every_folder_of_notebooks_finds_the_book(tmp_path, monkeypatch):
    """Where conda or Binder has installed the packages, one call is left."""
    monkeypatch.setattr(install.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(install, "install", lambda *arguments: pytest.fail("nothing is installed"))
    install.main(["--path"])
    [line] = (tmp_path / "memkit_book_chapters.pth").read_text(encoding="utf-8").splitlines()
    assert (Path(line) / "book" / "__init__.py").is_file()
    after = ROOT / ".binder" / "postBuild"
    assert "python dev/install.py --path" in after.read_text() and os.access(after, os.X_OK)
    assert "python dev/install.py --path" in (ROOT / "environment.yml").read_text()


def test_constraints_are_exact_and_fit_every_platform():
    for pin in CONSTRAINTS:
        [only] = pin.specifier
        assert only.operator == "=="
        assert Version(only.version).local is None
        assert pin.marker is None and pin.url is None
    assert len(PINNED) == len(CONSTRAINTS)


def test_doctor_knows_the_torch_that_is_pinned_and_the_newest_that_ci_tries():
    [torch] = [requirement for requirement in READER if requirement.name == "torch"]
    oldest, newest = (".".join(map(str, pair)) for pair in (OLDEST_TORCH, NEWEST_TORCH))
    assert torch.specifier == Requirement(f"torch>={oldest}").specifier, "a newer one is allowed"
    assert (
        Version(PINNED["torch"].removeprefix("==")) in Requirement(f"torch<={newest}.99").specifier
    )
    tried = re.findall(r"torch==([\d.]+)", (ROOT / ".ci/newest_torch").read_text())
    assert [version.rpartition(".")[0] for version in tried] == [newest]


@pytest.mark.parametrize("requirement", READER + TESTER, ids=str)
def test_a_requirement_is_pinned_to_a_version_it_allows(requirement):
    pinned = PINNED[re.sub(r"[-_.]+", "-", requirement.name).lower()].removeprefix("==")
    assert Version(pinned) in requirement.specifier


@pytest.mark.parametrize("requirement", READER + TESTER, ids=str)
def test_what_is_installed_is_allowed(requirement):
    assert importlib.metadata.version(requirement.name) in requirement.specifier


def test_versions_agree():
    import memkit

    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == memkit.__version__
    assert f"## {memkit.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_every_extra_that_opens_notebooks_brings_jupyterlab():
    assert all(f"{PROJECT['name']}[lab]" in EXTRAS[extra] for extra in ("test", "hub", "course"))


@pytest.mark.parametrize(
    "wanted, platform, has_driver, reachable, index, words",
    [
        ("", "linux", True, True, "", ""),  # a card: PyPI's CUDA build
        ("", "linux", False, True, install.CPU_INDEX, "0.2 GB instead of 3"),
        ("", "linux", False, False, "", "does not answer"),
        ("", "darwin", False, True, "", ""),  # PyPI has no CUDA build for macOS and Windows
        ("", "win32", True, True, "", ""),
        (
            "https://pypi.org/simple",
            "linux",
            False,
            True,
            "https://pypi.org/simple",
            "https://pypi.org/simple",
        ),
    ],
)
def test_where_pytorch_comes_from(
    wanted, platform, has_driver, reachable, index, words, monkeypatch
):
    monkeypatch.setattr(install, "answers", lambda address: reachable)
    chosen, line = install.torch_index(wanted, platform=platform, has_driver=has_driver)
    assert chosen == index
    assert words in line and bool(words) == bool(line)


def test_what_is_installed_is_said_before_it_is(monkeypatch, capsys, tmp_path):
    said = []
    monkeypatch.setattr(install, "torch_index", lambda wanted, **of: ("", ""))
    monkeypatch.setattr(install, "install", lambda *_: said.append(capsys.readouterr().out))
    monkeypatch.setattr(install.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(install.subprocess, "run", lambda *_, **of: None)
    install.main(["lab"])
    assert "1 of 2" in said[0] and "2 of 2" in said[1]


def test_torch_and_torchvision_are_installed_together_where_an_extra_needs_both():
    assert [Requirement(line).name for line in install.torch_packages(["lab"])] == ["torch"]
    assert [Requirement(line).name for line in install.torch_packages(["test", "zoo"])] == [
        "torch",
        "torchvision",
    ]
