"""The names that this room offers: its door and an editor read this list."""

from .adapters import AdapterConfig as AdapterConfig
from .experts import (
    ExpertsConfig as ExpertsConfig,
    PUBLISHED_MODELS as PUBLISHED_MODELS,
    QWEN_3_30B_A3B as QWEN_3_30B_A3B,
    experts_config as experts_config,
)
from .hugging_face import (
    config_of as config_of,
    model_of_config as model_of_config,
    read_config as read_config,
)
from .job import Job as Job
from .layouts import Layout as Layout
from .optimizers import OPTIMIZERS as OPTIMIZERS
from .places import Place as Place
