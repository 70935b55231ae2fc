"""The names that this room offers: its door and an editor read this list."""

from .adapters import (
    LoRALinear as LoRALinear,
    add_adapters as add_adapters,
    in_4_bits as in_4_bits,
)
from .doors import run_steps as run_steps
from .hugging_face import (
    hugging_face_build as hugging_face_build,
    hugging_face_model as hugging_face_model,
)
from .log import (
    Log as Log,
    timeline_of as timeline_of,
)
from .optimizers import (
    Lion as Lion,
    make_optimizer as make_optimizer,
    make_step_optimizer as make_step_optimizer,
    step_in_backward as step_in_backward,
)
from .sharded import (
    one_rank_of as one_rank_of,
    sharded_build as sharded_build,
    wrap_model as wrap_model,
)
from .strategies import saving_policy as saving_policy
from .transformer import (
    Block as Block,
    Transformer as Transformer,
    strategy_build as strategy_build,
    training_build as training_build,
)
