"""An instrument for training programs: other people's scripts, plans, ranks, adapters, recordings, and the command.

It imports and extends ``memkit``, the kit of the book's chapters 00 to 06, which never imports it. Chapters 07 to 13
are read with it, and ``stepscope report train.py`` answers for a script of your own.

Reading order. A module or folder imports only what stands above it here, and whatever it likes of
``memkit``:

- ``setup``: what is trained: a ``Job`` is a ``TrainingSetup`` with adapters and a place where its optimizer steps
- ``experts``: a mixture of experts in place of an MLP: its shape, and its step on paper
- ``optimizers``: Adafactor, Lion, Muon, 8-bit and paged optimizers, one record each
- ``hugging_face``: a config.json as a model's shape, or why it is none
- ``columns``: estimate, trace and measurement side by side
- ``inference``: what inference keeps instead: weights and the key and value cache
- ``allocator``: CUDA's caching allocator, snapshots and their replay
- ``formula``: the first column, of a job
- ``program``: a job's step in PyTorch, models of other libraries
- ``small_card``: a card small enough to run out of memory on purpose
- ``tracing``: the second column, of programs that nobody here wrote
- ``sharding``: one rank of many on paper
- ``advice``: what filled the memory, and what would help
- ``why``: what a pasted message, traceback or log says
- ``planner``: every plan for a job, and its code
- ``pictures``: charts as text
- ``widgets``: ipywidgets
- ``tool``: the command line

The names below are the front door, loaded when they are used. ``import stepscope`` loads neither torch nor numpy.
"""

from memkit import __version__ as __version__
from memkit import lazy_names

# The kit's formula finds a job by its type, experts and steps by their names: from here on.
from stepscope import experts, formula, optimizers

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
