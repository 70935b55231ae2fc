"""The public names of this folder, imported when they are used; an editor reads this list too."""

from .job import (
    LoRALinear as LoRALinear,
    add_adapters as add_adapters,
    in_4_bits as in_4_bits,
    job_build as job_build,
)
from .hugging_face import (
    hugging_face_build as hugging_face_build,
    hugging_face_model as hugging_face_model,
)
from .sharded import (
    one_rank_of as one_rank_of,
    sharded_build as sharded_build,
    wrap_model as wrap_model,
)
