"""torchtune's fine-tuning of Llama 3.2 3B on one card, as its ladder of peaks ran it (README at commit bd2a0fc7c).

What decides the lower rungs is the loss: ``book.pieces_of_logits``. Rank and targets of the adapters are
those of ``recipes/configs/llama3_2/3B_qlora_single_device.yaml``.
"""

import torch

from book.pieces_of_logits import PiecesOfLogits
from memkit.models import LLAMA_32_3B
from memkit.recipes import PURE_BF16, OptimizerConfig
from stepscope.setup import AdapterConfig, Job

FUSED = OptimizerConfig(implementation="fused")
RECOMPUTED = Job(
    model=LLAMA_32_3B,
    precision=PURE_BF16,
    optimizer=FUSED,
    micro_batch_size=2,
    seq_len=4096,
    attention="flash",
    uses_fused_norm=True,
    recomputation="full",
)
ADAPTERS = AdapterConfig(
    rank=64, targets=("query", "value", "output", "gate", "up", "down"), dtype="bfloat16"
)


class OffloadsInputs(PiecesOfLogits):
    """The inputs of the recomputed blocks go to the host."""

    def stages(self) -> list:
        def offloaded(stage):
            def run(*args):
                with torch.autograd.graph.save_on_cpu():
                    return stage(*args)

            return run

        return [offloaded(stage) for stage in super().stages()]
