"""Every picture of the book, drawn once: live in a widget, stored in a page, and in ``figures/``.

A picture takes what the rooms above computed and holds no formula. It is a ``Chart``: text, which a page draws. Loads
neither torch nor matplotlib; the pictures of sums and of labs load numpy.

Reading order:

- ``twin``: pixels of a picture, for viewers that draw no SVG
- ``svg``: a chart of rectangles, lines and words; every colour of the book
- ``axes``: scales, ticks and curves
- ``rows_of_bars``: recipes, what blocks keep, streams, the memory of a card
- ``timeline``: bars by instant and part, for any timeline
- ``curves``: lines over steps, bytes over batch or length
- ``peaks``: stacked bars side by side: choices with a card's line, three columns of one step
- ``over_time``: every allocation of a step in order, stacked by part
- ``planes``: strategies and plans on planes of bytes and time
- ``bits``: one code, bit by bit
- ``number_line``: all values of a format on a line
- ``sums``: a sum that grows, or sticks
- ``formats``: chapter 02's figures
- ``bands``: every allocation as a band over time
- ``allocator``: segments, blocks and holes
- ``page``: pictures and text as one HTML page that needs no other file
- ``gradients``: gradients by size on FP16's axis
- ``scaling``: chapter 06's figures
"""

from memkit import front_door

__getattr__, __dir__, __all__ = front_door(
    __name__,
    {
        "allocator": "allocator_picture",
        "bands": "allocations_figure stack_bands",
        "curves": "curves_figure memory_curves_figure",
        "formats": "bit_figure scaled_block_figure",
        "gradients": "gradients_figure",
        "number_line": "number_line_figure",
        "over_time": "over_time_figure",
        "page": "html_page",
        "peaks": "choices_figure compare_figure",
        "planes": "frontier_figure plans_figure",
        "rows_of_bars": "hierarchy_figure ledger_pieces recipes_figure saved_figure streams_figure",
        "scaling": "outlier_figure scaling_figure spike_figure",
        "sums": "running_sum_figure",
        "svg": "Chart",
        "timeline": "timeline_figure",
    },
)
