"""Chapter 03: master weights and loss scaling as a flow."""

from pathlib import Path

from memkit.pictures.flows import master_weights_figure

master_weights_figure().write_files(Path(__file__).with_suffix(""))
