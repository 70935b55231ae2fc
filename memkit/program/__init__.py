"""The training step in PyTorch: a small transformer, the ways to recompute it, and how a run is watched.

The description that is traced and measured, written without a look at the formula. Loads torch.

Reading order:

- ``log``: from a log of allocations to the parts and instants of a step
- ``hooks``: following a program from outside: its phase, its weights, its states
- ``checkpointing``: blocks that run twice, by any strategy
- ``optimizers``: the optimizer of a setup: torch's, or one that keeps copies of 16-bit weights
- ``transformer``: GPT-2 and Llama in one small module, and their training step
"""

from .checkpointing import saving_policy
from .hooks import run_steps
from .log import Log, timeline_of
from .optimizers import make_optimizer, make_step_optimizer
from .transformer import Block, Transformer, strategy_build, training_build
