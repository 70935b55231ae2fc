"""Chapter 02's title figure: every positive value of FP8's two formats, by power of two."""

from pathlib import Path

from memkit.pictures.number_line import number_line_figure

number_line_figure("float8_e4m3fn", "float8_e5m2").write_files(Path(__file__).with_suffix(""))
