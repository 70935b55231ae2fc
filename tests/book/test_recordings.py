"""Runs that others have published, and runs of scripts, are kept with where they come from."""

import json

import pytest

from book import recordings
from book.recordings import load_runs, recorded


def test_a_published_run_names_its_card_torch_date_and_address():
    run = recorded("05", "zero_grad")
    assert run.source == "github.com/karpathy/minGPT pull 106"
    assert f"Measured on a card ({run.card}, torch {run.torch}), {run.date}: " in str(run).replace(
        "\n", " "
    )


def test_what_nobody_has_recorded_is_an_error():
    with pytest.raises(
        ValueError, match="name='moon': card_runs.csv in recordings has no such run"
    ):
        recorded("05", "moon")
    with pytest.raises(ValueError, match="there is no moon.json in recordings"):
        load_runs("moon")


def test_every_kept_run_says_where_it_was_made_and_with_what():
    for path in recordings.FOLDER.glob("*.json"):
        about = json.loads(path.read_text(encoding="utf-8"))["about"]
        assert about["torch"] and about["date"] and {"processor", "card", "machine"} & set(about), (
            path.name
        )
        assert "/home" not in path.read_text() and "/root" not in path.read_text()
