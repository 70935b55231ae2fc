"""Chapter 04's title figure: the strategies of Llama-3.2-1B on the memory-compute plane."""

from pathlib import Path

from memkit.widgets.frontier_explorer import FrontierExplorer

FrontierExplorer().shown.chart.write_files(Path(__file__).with_suffix(""))
