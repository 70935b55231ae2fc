"""The public names of this package, imported when they are used; an editor reads this list too."""

from .allocator.snapshots import read_snapshot as read_snapshot
from .allocator.replay import replay_trace as replay_trace
from .advice.diagnosis import diagnose_memory as diagnose_memory
from .planner.search import find_plans as find_plans
from .advice.left_out import fits_of as fits_of
from .program.hugging_face import hugging_face_build as hugging_face_build
from .program.job import job_build as job_build
from .setup import (
    AdapterConfig as AdapterConfig,
    Job as Job,
    Layout as Layout,
    Place as Place,
)
from .columns import compare as compare
from .experts import ExpertsConfig as ExpertsConfig
from .hugging_face import model_of_config as model_of_config
from .optimizers import OPTIMIZERS as OPTIMIZERS
from .sharding import estimate_sharded as estimate_sharded
from .tool.program_report import report_on as report_on
from .tool.script import Script as Script
from .tracing.trace import trace_script as trace_script
from .why.answer import why_it_died as why_it_died

__version__: str
