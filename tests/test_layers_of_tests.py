"""``tests/layers.py``: what its table names is there, and a change finds its tests."""

import re
import subprocess
import sys

import layers
import pytest

ROOMS = sorted(
    {
        path.stem
        for package in ("memkit", "stepscope")
        for path in (layers.ROOT / package).iterdir()
        if not path.name.startswith("_") and (path.suffix == ".py" or path.is_dir())
    }
)


@pytest.mark.parametrize("address", [*layers.SWEEP, *layers.KEPT])
def test_what_the_table_names_is_there(address):
    file, _, test = address.partition("[")[0].partition("::")
    if not test:
        assert (layers.ROOT / file).exists()
        return
    # some files have the kit's tests beside their own (``tests_of_the_kit``)
    homes = (layers.ROOT / file, layers.ROOT / file.replace("/stepscope/", "/memkit/"))
    assert any(f"def {test}" in home.read_text(encoding="utf-8") for home in homes if home.exists())


def test_the_sweep_has_what_its_lines_begin_and_not_what_is_kept():
    assert layers.is_swept("tests/stepscope/zoo/test_zoo.py::test_it[1]")
    assert not layers.is_swept("tests/memkit/test_fit.py::test_it")
    assert all(address.startswith(tuple(layers.SWEEP)) for address in layers.KEPT), (
        "a line that keeps nothing"
    )
    assert not any(map(layers.is_swept, layers.KEPT))


@pytest.mark.parametrize("room", ROOMS)
def test_every_folder_and_module_has_tests(room):
    assert any(place.startswith("tests/") for place in layers.places_of(room))


@pytest.mark.parametrize(
    "path, wanted",
    [
        (
            "memkit/formula/model.py",
            {"memkit/formula", "stepscope/formula.py", "tests/memkit/formula"},
        ),
        ("memkit/fit.py", {"memkit/fit.py", "tests/memkit/test_fit.py"}),
        ("memkit/cards.csv", {"memkit/cards.py", "tests/memkit/test_cards.py"}),
        ("memkit/__init__.pyi", {"tests/test_front_door.py"}),
        ("chapters/book/claims.py", {"chapters/book/claims.py", "tests/book/test_claims.py"}),
        ("chapters/01_memory_breakdown.ipynb", {"tests/book/test_notebooks_policy.py"}),
        ("tests/memkit/test_fit.py", {"tests/memkit/test_fit.py"}),
        ("README.md", {"tests/test_readme.py"}),
        ("dev/site/answer.py", {"dev/site", "tests/site/test_parts.py"}),
        ("course/classroom.py", {"tests/course/test_guide.py", "tests/course/test_classroom.py"}),
        ("course/labs/alike.py", {"tests/course/test_alike.py"}),
        ("dev/site/live.mjs", set()),
    ],
)
def test_a_change_finds_its_tests(path, wanted):
    found = layers.tests_of(path)
    assert wanted <= set(found) and bool(found) == bool(wanted)
    assert all((layers.ROOT / place).exists() for place in found)


def test_what_is_neither_is_refused_and_each_layer_says_what_it_leaves_out():
    with pytest.raises(ValueError, match="'formulae' is no folder and no module"):
        layers.places_of("formulae")
    command = [sys.executable, str(layers.ROOT / "tests/layers.py"), "left", "test"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.startswith("make test passed. Left out: ") and "make sweep" in done.stdout
    assert all(guarded in done.stdout for guarded in layers.SWEEP.values())


def test_what_wants_the_machine_to_itself_is_where_the_makefile_looks_for_it():
    """``LONE`` spares the stage the collection of thousands of tests that it leaves out."""
    folders = re.search(
        r"^LONE := (.+)$", (layers.ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )[1]
    marked = [
        file.relative_to(layers.ROOT).as_posix()
        for file in (layers.ROOT / "tests").rglob("test_*.py")
        if re.search(
            r"^[^#\n]*pytest\.mark\.(serial|browser)\b",
            file.read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    ]
    apart = tuple(f"{folder}/" for folder in (*folders.split(), "tests/site"))
    assert marked and not [file for file in marked if not file.startswith(apart)]
