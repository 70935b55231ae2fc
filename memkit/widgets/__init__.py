"""The explorers of the chapters. A widget asks, draws and explains; it holds no formula and no advice.

An explorer is plain Python: ipywidgets is loaded when a notebook shows one; numpy, torch and matplotlib never.

Reading order:

- ``explorer``: named values and what there is to see for them, without any library
- ``panel``: an explorer in a notebook: controls above, a picture below, what it means in words, and its keys
- ``memory_explorer``: a model, a recipe, the shape of a step: where the bytes are
- ``step_film``: a step as a film: lines, blocks, one handle
- ``frontier_explorer``: strategies on the memory-compute plane, the plan and its code
- ``bit_explorer``: flip the bits of a code
"""

from memkit import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
