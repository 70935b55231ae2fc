"""Every picture of the book, drawn once: live in a widget, stored in a page, and in ``figures/``.

A picture takes what the rooms above computed and holds no formula. It is a ``Chart``: text, which a page draws. Loads
neither torch nor matplotlib; the pictures of sums and of labs load numpy.

Reading order:

- ``twin``: pixels of a picture, for viewers that draw no SVG
- ``svg``: a chart of rectangles, lines and words; every colour of the book
- ``axes``: scales, ticks and curves
- ``timeline``: bars by instant and part, for any timeline
- ``comparison``: columns side by side
- ``breakdown``: a block with what it keeps, curves over batch or length, the memory hierarchy
- ``peaks``: peaks side by side and a card's line: choices, one global batch cut in several ways, ranks
- ``over_time``: every allocation of a step in order, stacked by part
- ``flows``: what flows where: FP8's products, dtypes through a block, master weights
- ``streams``: kernels and copies as bars on their streams
- ``plans``: plans by bytes and time
- ``bits``: one code, bit by bit
- ``number_line``: all values of a format on a line
- ``sums``: a sum that grows, or sticks
- ``formats``: chapter 02's figures
- ``bands``: every allocation as a band over time
- ``allocator``: segments, blocks and holes
- ``saved``: what autograd keeps, as bars
- ``frontier``: strategies on the memory-compute plane
- ``page``: pictures and text as one HTML page that needs no other file
- ``curves``: lines over steps or sizes
- ``gradients``: gradients by size on FP16's axis
- ``recipes``: bytes per parameter, addend by addend
- ``scaling``: chapter 06's figures
- ``sheet``: techniques with what they leave of a peak, and their price in words
"""

from memkit import front_door

__getattr__, __dir__, __all__ = front_door(
    __name__,
    {
        "allocator": "allocator_picture",
        "bands": "allocations_figure stack_bands",
        "breakdown": "block_figure hierarchy_figure memory_curves_figure",
        "comparison": "compare_figure",
        "curves": "curves_figure",
        "flows": "autocast_figure fp8_products_figure master_weights_figure",
        "formats": "bit_figure scaled_block_figure",
        "frontier": "frontier_figure",
        "gradients": "gradients_figure",
        "number_line": "number_line_figure",
        "over_time": "over_time_figure",
        "page": "html_page",
        "peaks": "choices_figure",
        "plans": "plans_figure",
        "recipes": "recipes_figure",
        "saved": "ledger_pieces saved_figure",
        "scaling": "outlier_figure scaling_figure spike_figure",
        "sheet": "sheet_figure",
        "streams": "streams_figure",
        "sums": "running_sum_figure",
        "svg": "Chart",
        "timeline": "timeline_figure",
    },
)
