"""Chapter 09's title figure: six ways to fine-tune Llama-2-7B, as the adapter explorer opens."""

from pathlib import Path

from memkit.cards import CARDS
from memkit.formula.estimate import second_step
from memkit.models import LLAMA_2_7B
from memkit.pictures.timeline import choices_figure
from memkit.recipes import PURE_BF16, OptimizerConfig
from stepscope.setup import AdapterConfig, Job
from stepscope.widgets.plan_explorers import WAYS, in_this_way

fused = OptimizerConfig(implementation="fused")
full = Job(model=LLAMA_2_7B, precision=PURE_BF16, optimizer=fused, micro_batch_size=4, seq_len=2048)
peaks = {
    name: second_step(in_this_way(full, AdapterConfig(), *way)).peak for name, way in WAYS.items()
}
picture = choices_figure(
    peaks,
    "Six ways to fine-tune Llama-2-7B",
    "4 × 2,048 tokens, bfloat16; LoRA of rank 16 beside attention, in float32; dashed: RTX 4090",
    capacity_bytes=CARDS["RTX 4090"].memory_bytes,
)
picture.write_files(Path(__file__).with_suffix(""))
