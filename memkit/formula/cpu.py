"""The CPU's rules, where they are others than CUDA's."""

from memkit.formula.kernels import Stages
from memkit.formula.model import Transformer
from memkit.formula.operations import Tensor, scope
from memkit.setup.training import TrainingSetup

RANDOM_STATE_BYTES = 5056
"""The state of the CPU's random number generator (``torch.get_rng_state()``), which every checkpoint keeps."""


class OnCPU(Transformer):
    """A transformer on the CPU: its allocator does not round, its kernels take nothing, its autocast widens nothing."""

    block_bytes, random_state_bytes, seeds = 1, RANDOM_STATE_BYTES, ()

    @classmethod
    def axis_sizes(cls, setup: TrainingSetup) -> dict[str, int]:
        return super().axis_sizes(setup) | {str(RANDOM_STATE_BYTES): RANDOM_STATE_BYTES}

    @property
    def statistics_dtype(self) -> str:
        """Of a LayerNorm; its RMSNorm has no kernel."""
        return self.weight_dtype

    def highest(self, stages: Stages) -> int:
        """Buffers of CUDA's kernels."""
        return 0

    def mask_dtype(self, x: Tensor) -> str:
        """Dropout keeps a factor for each value."""
        return x.dtype

    def copy_for_loop(self, num_bytes: int) -> None:
        """The CPU's loop takes one dtype: what has another is copied."""
        self.graph.scratch(num_bytes)

    @scope
    def softmax(self, kind: str, x: Tensor, name: str, is_wide: bool = False) -> Tensor:
        """softmax or log_softmax, in its input's dtype."""
        wide = self.graph.cast(x, "float32" if is_wide else x.dtype)
        return self.graph.op(kind, [wide], x.axes, wide.dtype, name=name, out_by=kind)

    @scope
    def cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Autocast casts for all of it, CUDA's for log_softmax alone."""
        return super().cross_entropy(self.graph.cast(logits, "float32") if self.autocast else logits, targets)
