"""The names that this room offers: its door and an editor read this list."""

from . import models as models, recipes as recipes, strategies as strategies
from .models import (
    ModelConfig as ModelConfig,
    gpt2_config as gpt2_config,
    llama_config as llama_config,
)
from .optimizers import (
    OPTIMIZERS as OPTIMIZERS,
    Optimizer as Optimizer,
)
from .recipes import (
    OptimizerConfig as OptimizerConfig,
    Precision as Precision,
)
from .strategies import Strategy as Strategy
from .training import TrainingSetup as TrainingSetup
