"""The stored figures: each is what its script draws today."""

import runpy
import shutil
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[2] / "figures").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_figure_is_what_its_script_draws(script, tmp_path):
    here = Path(shutil.copy(script, tmp_path))
    runpy.run_path(str(here))
    assert here.with_suffix(".svg").read_bytes() == script.with_suffix(".svg").read_bytes()
    assert here.with_suffix(".png").stat().st_size and script.with_suffix(".png").exists()
