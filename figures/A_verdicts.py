"""Appendix A's title figure: the claims of each subject by verdict."""

from pathlib import Path

from book.claims import verdicts_by_subject
from memkit.pictures.bars import rows_figure

title = "What is written about GPU memory, claim by claim"
rows_figure(verdicts_by_subject(), title).write_files(Path(__file__).with_suffix(""))
