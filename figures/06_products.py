"""Chapter 06: the three products of an FP8 linear layer, the summed dimension marked."""

from pathlib import Path

from memkit.pictures.flows import fp8_products_figure

fp8_products_figure().write_files(Path(__file__).with_suffix(""))
