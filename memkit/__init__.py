"""Where the bytes go when a neural network trains: formula, trace and measurement of one training step.

``import memkit`` loads neither torch nor matplotlib nor ipywidgets. Read the modules in the order of
``tests/test_layers.py``: each imports only what comes before it.
"""

__version__ = "0.1.0"
