"""Tracing a 6.7 B and a 70 B training step, against torch's own memory tracker and against none."""

import json
import subprocess
import sys
import time

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from dev.bench import Row
from memkit.models import LLAMA_2_7B
from memkit.program.transformer import Transformer, make_optimizer, random_batches, training_build
from memkit.recipes import PURE_BF16, OptimizerConfig
from memkit.setup import TrainingSetup
from memkit.tracing.trace import trace_memory

ROUNDS = 3
SECONDS_LIMIT, BYTES_LIMIT = 20.0, 1024**3
ADAMW = OptimizerConfig(implementation="for-loop")

LARGE = """
import json, resource, time
from memkit.models import LLAMA_3_70B
from memkit.recipes import PURE_BF16, OptimizerConfig
from memkit.tracing.trace import trace_memory
from memkit.setup import TrainingSetup
from memkit.program.transformer import training_build
optimizer = OptimizerConfig(implementation="for-loop")
setup = TrainingSetup(model=LLAMA_3_70B, precision=PURE_BF16, optimizer=optimizer, seq_len=2048)
start = time.perf_counter()
peak = trace_memory(training_build(setup), steps=1).peak_bytes
seconds = time.perf_counter() - start
print(json.dumps([seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, peak]))
"""


def cpu_seconds(function) -> tuple[float, object]:
    """Processor seconds of one call and its result: a busy neighbour on the machine does not count."""
    start = time.process_time()
    result = function()
    return time.process_time() - start, result


def run() -> list[Row]:
    """One bf16 AdamW step of Llama-2-7B, 1 × 2048 tokens, one thread; and one of Llama-3-70B."""
    torch.set_num_threads(1)
    setups = {
        device: TrainingSetup(
            model=LLAMA_2_7B, precision=PURE_BF16, optimizer=ADAMW, seq_len=2048, device=device
        )
        for device in ("cpu", "cuda")
    }

    def traced(device: str) -> int:
        return trace_memory(training_build(setups[device]), device=device, steps=1).peak_bytes

    def bare() -> None:
        with FakeTensorMode():
            training_build(setups["cpu"])()()

    def tracked() -> int:
        with FakeTensorMode():
            model = Transformer(setups["cpu"])
            optimizer = make_optimizer(ADAMW, model.parameters())
            next_batch, tracker = random_batches(LLAMA_2_7B, setups["cpu"]), MemTracker()
            tracker.track_external(model, optimizer)
            with tracker:
                model(*next_batch()).backward()
                optimizer.step()
                optimizer.zero_grad()
        return sum(part["Total"] for part in tracker.get_tracker_snapshot("peak").values())

    bare()  # the first step pays for torch's imports and FakeTensorMode's cache
    rounds = [
        (
            cpu_seconds(bare)[0],
            *cpu_seconds(lambda: traced("cpu")),
            cpu_seconds(lambda: traced("cuda"))[0],
        )
        for _ in range(ROUNDS)
    ]
    plain, ours, peaks, cuda = zip(*rounds, strict=True)
    tracked_rounds = [cpu_seconds(tracked) for _ in range(ROUNDS)]  # the best of as many as ours
    theirs, their_peak = min(tracked_rounds)
    process = subprocess.run(
        [sys.executable, "-c", LARGE], check=True, capture_output=True, text=True
    )
    seconds, rss_bytes, large_peak = json.loads(process.stdout)
    return [
        Row(
            name="7B step: MemTracker / trace, CPU rules",
            ratio=theirs / min(ours),
            at_least=8,
            detail=f"{theirs:.1f} s against {min(ours):.1f} s",
        ),
        Row(
            name="7B step: MemTracker / trace, CUDA rules",
            ratio=theirs / min(cuda),
            at_least=8,
            detail=f"{theirs:.1f} s against {min(cuda):.1f} s",
        ),
        Row(
            name="7B step: trace, CPU rules / bare FakeTensorMode",
            ratio=min(ours) / min(plain),
            at_most=1.6,
            detail=f"{min(ours):.1f} s against {min(plain):.1f} s",
        ),
        Row(
            name="7B step: trace, CUDA rules / bare FakeTensorMode",
            ratio=min(cuda) / min(plain),
            at_most=1.6,
            detail=f"{min(cuda):.1f} s against {min(plain):.1f} s",
        ),
        Row(
            name="7B step: |peak − MemTracker's| / 512",
            ratio=abs(peaks[0] - their_peak) / 512,
            at_most=1,
            detail=f"{peaks[0]:,} B against {their_peak:,} B",
        ),
        Row(
            name="70B step: seconds / 20",
            ratio=seconds / SECONDS_LIMIT,
            at_most=1,
            detail=f"{seconds:.1f} s, peak {large_peak / 1024**3:.1f} GiB",
        ),
        Row(
            name="70B step: resident memory / 1 GiB",
            ratio=rss_bytes / BYTES_LIMIT,
            at_most=1,
            detail=f"{rss_bytes / 1024**2:.0f} MiB",
        ),
    ]
