"""Appendix D's title figure, one page: what each technique leaves of the peak of two jobs, and what it costs."""

from pathlib import Path

from book.cheat_sheet import OUTSIDE_THE_STEP, apply_techniques, sheet_figure

title = "What is left of the peak of a training step, and at which price"
sheet_figure(apply_techniques(), title, OUTSIDE_THE_STEP).write_files(
    Path(__file__).with_suffix("")
)
