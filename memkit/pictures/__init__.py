"""Pictures of memory and of bits, drawn once: live in a widget, stored in a page, and in ``figures/``.

What a reader would plot, a chapter plots with matplotlib in its own cell, with the style ``book.book``; colours of
things with a name are in ``COLOUR`` for both. A picture here takes what the modules above computed and holds no
formula. It is a ``Chart``: text, which a page draws. Loads neither torch nor matplotlib.

Reading order:

- ``colours``: one colour and one hatch for everything that has a name
- ``svg``: a chart of rectangles, lines and words, its scales with round ticks, and its twin in pixels
- ``bars``: stacked bars from a table, standing or lying
- ``timeline``: a step's instants as bars, and every allocation of it in order
- ``planes``: strategies and plans on planes of bytes and time
- ``bits``: one code, bit by bit, and a number in many formats
"""

from .bars import Bar, bars_figure, rows_figure
from .bits import bit_figure
from .colours import COLOUR
from .svg import Chart
from .timeline import over_time_figure, timeline_figure
