"""Chapter 06's title figure: a spike sixteen times larger under delayed scaling."""

from pathlib import Path

from memkit.low_precision.trials import SPIKE_STEP, spike_steps
from memkit.pictures.scaling import spike_figure

title = "E4M3 with the factor of past steps: a spike of 16 ×"
spike_figure(spike_steps(16.0), SPIKE_STEP, title).write_files(Path(__file__).with_suffix(""))
