"""Chapter 11's title figure: the peak of one rank under ZeRO-3, for 1 to 512 ranks."""

from pathlib import Path

from stepscope.widgets.plan_explorers import ShardingExplorer

ShardingExplorer(model="Llama-2-13B").shown.chart.write_files(Path(__file__).with_suffix(""))
