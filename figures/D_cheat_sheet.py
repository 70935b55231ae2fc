"""Appendix D's title figure, one page: what each technique leaves of the peak of two jobs, and what it costs."""

from pathlib import Path

from book.cheat_sheet import apply_techniques, sheet_figure, words_of

rows = [(line.technique.name, line.shares, words_of(line)) for line in apply_techniques()]
title = "What is left of the peak of a training step, and at which price"
sheet_figure(rows, ("FLOPs", "price", "what one writes", "chapter"), title).write_files(
    Path(__file__).with_suffix("")
)
