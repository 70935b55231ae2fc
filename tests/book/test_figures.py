"""The stored figures: each is what a script draws today."""

import runpy
import shutil
from pathlib import Path

import pytest

FIGURES = Path(__file__).parents[2] / "figures"


@pytest.mark.parametrize("script", sorted(FIGURES.glob("*.py")), ids=lambda script: script.stem)
def test_a_figure_is_what_its_script_draws(script, tmp_path):
    runpy.run_path(shutil.copy(script, tmp_path))
    drawn = list(tmp_path.glob("*.svg"))
    assert drawn
    for figure in drawn:
        assert figure.read_bytes() == (FIGURES / figure.name).read_bytes()
        if figure.stem.endswith("-narrow"):
            continue  # for the site alone
        assert (
            figure.with_suffix(".png").stat().st_size
            and (FIGURES / figure.name).with_suffix(".png").exists()
        )
