"""Chapter 00's title figure: the memory of a small GPT-2 in its first forward, and a question for all that follows."""

from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from memkit.by_hand import Meter
from memkit.models import TINY_GPT2
from memkit.pictures.svg import GREY, Chart, Scale
from memkit.pictures.timeline import corners
from memkit.program.transformer import Transformer
from memkit.setup import TrainingSetup

setup = TrainingSetup(model=TINY_GPT2, micro_batch_size=2, seq_len=128, device="cpu")
with FakeTensorMode(), Meter() as meter:
    model = Transformer(setup)
    built = len(meter.curve)
    tokens = torch.zeros(2, 128, dtype=torch.long)
    loss = model(tokens, tokens)

forward = [size / 2**20 for size in meter.curve[built:]]
chart = Chart(800, 300, "Memory of a small GPT-2 while it trains, in MiB")
x = Scale(low=0, high=3.2 * len(forward), start=60, end=780)
y = Scale(low=0, high=400, start=262, end=46)
for tick in (0, 100, 200, 300, 400):
    chart.line([(x.start, y(tick)), (x.end, y(tick))], shade=GREY, stroke_width=0.4)
    chart.words(x.start - 8, y(tick), f"{tick}", 11, anchor="end", shade=GREY)
chart.line([(a, y(b)) for a, b in corners(forward, x)], stroke_width=1.8)
chart.words(x(len(forward) / 2), y.start + 16, "forward of step 1", 12, anchor="middle")
left = x(len(forward)) + 4
chart.rect(left, y.end, x.end - left, y.start - y.end, ("#999999", "///"))
chart.words(
    (left + x.end) / 2, (y.start + y.end) / 2, "?", 64, anchor="middle", bold=True, boxed=True
)
chart.words((left + x.end) / 2, y.start + 16, "the rest of two steps", 12, anchor="middle")
chart.alt = "A rising line, memory in the first forward of a small GPT-2; what follows is hidden by a question mark."
chart.write_files(Path(__file__).with_suffix(""))
