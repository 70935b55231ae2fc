"""The training step in PyTorch: a small transformer, the ways to recompute it, and how a run is watched.

The description that is traced and measured, written without a look at the formula. Loads torch.

Reading order:

- ``log``: from a log of allocations to the parts and instants of a step
- ``hooks``: following a program from outside: its phase, its weights, its states
- ``transformer``: GPT-2 and Llama in one small module, blocks of which may run twice, and their training step
"""

from .hooks import run_steps
from .log import Log, timeline_of
from .transformer import Block, Transformer, make_optimizer, strategy_build, training_build
