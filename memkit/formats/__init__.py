"""Number formats: what a pattern of bits means, what rounding to it loses, and what a block's scale buys.

Chapter 02 is written with this folder. It knows bits and numbers, and nothing of networks; numpy is its only library.

Reading order:

- ``records``: a format as a record of ten facts, from which the rest follows; the bits of a dtype by torch's name
- ``single``: one value at a time in plain Python: decode, round to the nearest, and read aloud
- ``rounding``: arrays of codes and values, to the nearest or by chance
- ``blocks``: values that share a scale: a tensor, rows and tiles of FP8, MX and NVFP4
"""

from memkit import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
