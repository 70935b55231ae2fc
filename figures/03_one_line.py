"""Chapter 03's title figure: GPT-2 large on 8 × 1,024 tokens in float32, and under autocast, which is the question."""

from pathlib import Path

from memkit.formula.estimate import estimate_memory
from memkit.models import GPT2_LARGE
from memkit.pictures.colours import LOOKS
from memkit.pictures.svg import GREY, Chart, Scale
from memkit.recipes import FUSED_ADAMW
from memkit.setup import TrainingSetup
from memkit.timeline import PARTS
from memkit.units import GIB

setup = TrainingSetup(model=GPT2_LARGE, micro_batch_size=8, seq_len=1024, optimizer=FUSED_ADAMW)
peak = estimate_memory(setup).for_step(2).peak
sizes = {part: peak.parts[part] / GIB for part in PARTS if peak.parts[part]}
chart = Chart(800, 196, "GPT-2 large, 8 × 1,024 tokens: the peak of a training step", "GiB")
x = Scale(low=0, high=40, start=120, end=780)
at, words = 0.0, []
for part, size in sizes.items():
    chart.bar(x(at), x(at + size), 82, 36, LOOKS[part])
    label = f"{part.removeprefix('optimizer_')}\n{size:.1f}"
    chart.words(x(at + size / 2), 103, label, 11, anchor="middle", at="top")
    words.append(f"{part.replace('_', ' ')} {size:.1f}")
    at += size
chart.words(112, 82, "float32", 13, anchor="end")
chart.words(x(at) + 6, 82, f"{at:.1f}", 13, bold=True)
chart.words(112, 162, "autocast", 13, anchor="end")
chart.rect(x(0), 144, x(40) - x(0), 36, stroke="currentColor", stroke_dasharray="6 5")
chart.words(x(20), 162, "?", 24, anchor="middle", bold=True)
chart.line([(x(0), 60), (x(0), 184)], shade=GREY)
chart.alt = (
    f"Two bars of peak memory: float32 {at:.1f} GiB, of it {', '.join(words)}; "
    "autocast dashed, of unknown length."
)
chart.write_files(Path(__file__).with_suffix(""))
