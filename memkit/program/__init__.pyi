"""The public names of this folder, imported when they are used; an editor reads this list too."""

from .hooks import run_steps as run_steps
from .log import (
    Log as Log,
    timeline_of as timeline_of,
)
from .optimizers import (
    make_optimizer as make_optimizer,
    make_step_optimizer as make_step_optimizer,
)
from .checkpointing import saving_policy as saving_policy
from .transformer import (
    Block as Block,
    Transformer as Transformer,
    strategy_build as strategy_build,
    training_build as training_build,
)
