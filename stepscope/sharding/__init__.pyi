"""The public names of this folder, imported when they are used; an editor reads this list too."""

from .step import (
    Group as Group,
    estimate_sharded as estimate_sharded,
    groups_of as groups_of,
)
from .traffic import (
    Traffic as Traffic,
    step_traffic as step_traffic,
)
from .zero import (
    resting_bytes as resting_bytes,
    zero_saving as zero_saving,
)
