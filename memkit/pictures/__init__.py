"""Every picture of the book, drawn once: live in a widget, stored in a page, and in ``figures/``.

A picture takes what the rooms above computed and holds no formula. Loads matplotlib, without pyplot.

Reading order:

- ``stamped_text``: text that changes at every move of a slider
- ``stamped_bars``: hatched bars that change at every move
- ``picture``: a figure that redraws fast enough for a slider, and the book's colours
- ``timeline``: bars by instant and part, for any timeline
- ``comparison``: columns side by side
- ``breakdown``: a block with what it keeps, curves over batch or length, the memory hierarchy
- ``over_time``: every allocation of a step in order, stacked by part
- ``streams``: kernels and copies as bars on their streams
- ``peaks``: peaks side by side and a card's line: choices, one global batch cut in several ways, ranks
- ``plans``: plans by bytes and time
- ``bits``: one code, bit by bit
- ``number_line``: all values of a format on a line
- ``sums``: a sum that grows, or sticks
- ``formats``: chapter 02's figures
- ``bands``: every allocation as a band over time
- ``allocator``: segments, blocks and holes
- ``two_runs``: what two runs have allocated, on one axis
- ``saved``: what autograd keeps, as bars
- ``frontier``: strategies on the memory-compute plane
- ``page``: pictures and text as one HTML page that needs no other file
- ``curves``: lines over steps or sizes
- ``gradients``: gradients by size on FP16's axis
- ``recipes``: bytes per parameter, addend by addend
- ``scaling``: chapter 06's figures
- ``sheet``: techniques with what they leave of a peak, and their price in words
"""

from memkit import loaded_when_used

TYPE_CHECKING = False
if TYPE_CHECKING:  # what an editor reads; Python imports a name when it is asked for
    from memkit.pictures.allocator import allocations_figure, allocator_picture
    from memkit.pictures.bands import stack_bands
    from memkit.pictures.bits import BitPicture
    from memkit.pictures.breakdown import block_figure, hierarchy_figure, memory_curves_figure
    from memkit.pictures.comparison import compare_figure, timeline_figure
    from memkit.pictures.curves import curves_figure
    from memkit.pictures.formats import bit_figure, number_line_figure, running_sum_figure
    from memkit.pictures.frontier import FrontierPicture
    from memkit.pictures.gradients import GradientPicture
    from memkit.pictures.number_line import NumberLinePicture
    from memkit.pictures.over_time import over_time_figure
    from memkit.pictures.page import html_page
    from memkit.pictures.peaks import PeaksPicture, choices_figure
    from memkit.pictures.picture import Picture
    from memkit.pictures.plans import plans_figure
    from memkit.pictures.recipes import recipes_figure
    from memkit.pictures.saved import ledger_pieces, saved_figure
    from memkit.pictures.scaling import OutlierPicture, ScalingPicture, SpikePicture
    from memkit.pictures.sheet import sheet_figure
    from memkit.pictures.streams import streams_figure
    from memkit.pictures.sums import RunningSumPicture
    from memkit.pictures.timeline import TimelinePicture
    from memkit.pictures.two_runs import two_runs_figure

__getattr__, __dir__, __all__ = loaded_when_used(__name__, __file__)
