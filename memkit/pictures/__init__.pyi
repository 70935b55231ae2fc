"""The public names of this folder, imported when they are used; an editor reads this list too."""

from .bars import (
    Bar as Bar,
    bars_figure as bars_figure,
    rows_figure as rows_figure,
)
from .bits import bit_figure as bit_figure
from .colours import COLOUR as COLOUR
from .timeline import (
    choices_figure as choices_figure,
    compare_figure as compare_figure,
    over_time_figure as over_time_figure,
    timeline_figure as timeline_figure,
)
from .svg import Chart as Chart
