"""Chapter 03: dtypes through one block under autocast."""

from pathlib import Path

from memkit.pictures.flows import autocast_figure

autocast_figure().write_files(Path(__file__).with_suffix(""))
