"""Chapter 03's title figure: bytes per parameter of every recipe, addend by addend."""

from pathlib import Path

from memkit.formula.states import bytes_per_parameter
from memkit.pictures.bars import rows_figure
from memkit.recipes import ADAMW, KAHAN_BF16, PRECISIONS

addends = {p.name: bytes_per_parameter(p, ADAMW) for p in (*PRECISIONS.values(), KAHAN_BF16)}
rows_figure(addends, "Bytes per parameter with AdamW").write_files(Path(__file__).with_suffix(""))
