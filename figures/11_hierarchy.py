"""Chapter 11's title figure: the memory of an A100, level by level, with the bytes that each moves in a second."""

from pathlib import Path

from memkit.hardware.cards import CARDS
from memkit.hardware.hierarchy import memory_hierarchy
from memkit.pictures.breakdown import hierarchy_figure

levels = memory_hierarchy(CARDS["A100 SXM 80 GB"])
title = "The memory of an A100, from the registers outwards"
hierarchy_figure(levels, title).write_files(Path(__file__).with_suffix(""))
