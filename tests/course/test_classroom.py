"""One card for many students: against what NVIDIA prints, and by identities."""

import json
import re
import subprocess
from fractions import Fraction

import nbformat
import pytest
from lab_server import ROOT

from course.classroom import (
    CUTS,
    PROFILES,
    by_process,
    chapter_budgets,
    instances,
    main,
    most_sharing,
    plan_classroom,
)
from dev.notebooks import family_of
from memkit.cards import CARDS
from memkit.fit import CONTEXT_BYTES, planned_room
from memkit.units import GIB

GUIDE = {7: Fraction(1, 8), 4: Fraction(2, 8), 2: Fraction(4, 8), 1: Fraction(1)}
"""NVIDIA's MIG user guide, "Supported MIG Profiles": instances of a kind on one card, and each one's memory."""

LISTED_GIB = {
    "H200": {"1g.18gb": 16.00, "1g.35gb": 32.25, "3g.71gb": 69.50},
    "H100 NVL": {"1g.12gb": 10.75, "1g.24gb": 21.62, "3g.47gb": 46.38},
    "B200": {"1g.23gb": 20.50, "1g.45gb": 44.25},
}
"""What `nvidia-smi mig -lgip` printed, the smallest of several drivers: NVIDIA/mig-parted issue 120, pulls 101, 187."""


def test_the_cuts_are_those_of_the_guide():
    assert {count: Fraction(eighths, 8) for count, eighths in CUTS} == GUIDE


@pytest.mark.parametrize("card", LISTED_GIB)
def test_an_instance_is_never_larger_than_the_driver_lists(card):
    ours = {name: size / GIB for name, _, size in instances(CARDS[card], 1)}
    for name, listed in LISTED_GIB[card].items():
        assert 0.9 * listed < ours[name] <= listed


@pytest.mark.parametrize("card", PROFILES)
def test_a_profile_s_name_says_its_part_of_the_label(card):
    for name, (_, eighths) in zip(PROFILES[card].split(), CUTS, strict=True):
        said = int(re.fullmatch(r"\dg\.(\d+)gb", name)[1])
        assert said == pytest.approx(CARDS[card].label_gb * eighths / 8, abs=2)


def test_the_budgets_are_what_the_titles_say():
    """Of a lesson and the notebooks beside it the one that declares most."""
    for path in (ROOT / "chapters").glob("*_*.ipynb"):
        titles = [nbformat.read(member, 4).cells[0].source for member in family_of(path)]
        said = [
            int(found[1]) if (found := re.search(r"under (\d+) GiB(?! if)", title)) else 0
            for title in titles
        ]
        for gib, title in zip(said, titles, strict=True):
            assert gib or "no GPU" in title or "GiB if it has them" in title
        assert chapter_budgets()[path.name.partition("_")[0]] == max(said) * GIB


@pytest.mark.parametrize("title", ["# 1 · Bytes\n\n*9 minutes · a laptop*", "# 1 · Bytes"])
def test_a_title_that_does_not_say_is_refused(tmp_path, title):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(title)])
    nbformat.write(notebook, tmp_path / "01_bytes.ipynb")
    with pytest.raises(ValueError, match="01_bytes.ipynb: the title does not say"):
        chapter_budgets(tmp_path)


def test_without_chapters_it_says_where_it_looked(tmp_path):
    with pytest.raises(ValueError, match=f"no chapters in {tmp_path}"):
        chapter_budgets(tmp_path)


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("budget", [GIB, 2 * GIB, 2 * GIB + 1, 7 * GIB])
def test_one_share_more_would_be_too_small(card, budget):
    card_bytes = CARDS[card].memory_bytes
    most = most_sharing(card_bytes, budget)
    assert planned_room(card_bytes // most) >= budget
    smaller = card_bytes // (most + 1)
    assert smaller <= CONTEXT_BYTES or planned_room(smaller) < budget


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("students", [1, 7, 8, 20, 200, 10**20])
def test_everybody_has_a_place_and_what_the_largest_chapter_needs(card, students):
    room = plan_classroom(card, students)
    largest = max(room.budgets.values())
    assert [way.name for way in room.ways] in (
        ["MIG", "MPS", "fraction"],
        ["MPS", "fraction"],
        ["fraction"],
    )
    for way in room.ways:
        fewest = min(way.per_card.values())
        assert (way.cards - 1) * fewest < students <= way.cards * fewest
        assert way.each_bytes >= largest


def test_only_some_cards_have_mig_and_only_nvidia_s_have_mps():
    ways = {name: [way.name for way in plan_classroom(name, 3).ways] for name in CARDS}
    assert {name for name, has in ways.items() if "MIG" in has} == set(PROFILES)
    assert {name for name, has in ways.items() if "MPS" not in has} == {"MI300X"}


def test_a_small_class_gets_larger_instances():
    names = [
        next(s for s in plan_classroom("H200", n).ways[0].settings if "-cgi" in s)
        for n in (2, 4, 5)
    ]
    assert [name.partition("-cgi ")[2].split()[0] for name in names] == [
        "3g.71gb,3g.71gb",
        ",".join(["1g.35gb"] * 4),
        ",".join(["1g.18gb"] * 7),
    ]


@pytest.mark.parametrize("students", [20, 200])
def test_a_class_on_several_cards_is_told_to_name_them(students):
    """What the shell makes of the printed line is what the hub splits at its commas."""
    way = plan_classroom("A100 SXM 80 GB", students, {"01": 2 * GIB}).ways[1]
    line = next(setting for setting in way.settings if "make hub" in setting)
    printed = line.replace("make hub", "printenv MEMKIT_HUB_CARDS")
    told = subprocess.run(["sh", "-c", printed], capture_output=True, text=True, check=False)
    assert way.cards == (1 if students == 20 else 7)
    named = [name for name in told.stdout.strip().split(",") if name]
    assert named == [str(card) for card in range(way.cards) if way.cards > 1]


def test_mps_takes_no_more_clients_than_it_can():
    assert by_process("MPS", CARDS["MI300X"], 200, {"02": GIB}).per_card == {"02": 48}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--card", "A101", "--students", "3"], "card='A101'"),
        (["--card", "h100", "--students", "3"], "did you mean H100 PCIe or H100 SXM or H100 NVL?"),
        (["--card", "A100 SXM 80GB", "--students", "3"], "did you mean A100 SXM 80 GB?"),
        (["--card", "T4", "--students", "0"], "students=0"),
        (["--card", "T4", "--students", "-2"], "students=-2"),
    ],
)
def test_the_command_refuses_in_one_line(capsys, arguments, words):
    assert main(arguments) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert words in line


def test_a_chapter_too_large_for_the_card_is_refused():
    with pytest.raises(ValueError, match="none above a T4"):
        plan_classroom("T4", 2, {"01": 20 * GIB})


def test_the_command_prints_the_plan_and_its_json(capsys):
    arguments = ["--card", "A100 SXM 80 GB", "--students", "20"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert (
        text.index("MIG: 20 students on 3 cards")
        < text.index("MPS: 20")
        < text.index("fraction: 20")
    )
    assert main([*arguments, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [way["name"] for way in data["ways"]] == ["MIG", "MPS", "fraction"]
    assert data["budgets"]["01"] == 2 * GIB
