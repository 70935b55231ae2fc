"""Trace every public run anew and store what is predicted: ``python -m dev.bench.public_predict`` (minutes).

``--rows FILE ...`` stores the rows of ``dev.bench.many_cards``: those of fms-acceleration need nothing but torch,
those of PEFT transformers and peft.

The stored table is made with transformers 4.51.3, which the measured runs used: newer versions run other operations,
and T5-small then differs by 12 %. Where another version is installed, that one's name is stored beside the table.
"""

import argparse
import dataclasses
import datetime
import importlib.metadata
import platform
import sys
from pathlib import Path

from book.many_cards import store_many_cards
from book.public_runs import FILE, Prediction, PublicRun, load_public_runs, store_public_runs
from dev.bench import public_programs as programs
from dev.bench.many_cards import predicted_rows
from stepscope import replay_trace, trace_script

FULL, SHORTER = programs.FULL_LENGTH, (60, 100)
LENGTHS = (
    (FULL,) * 4,
    *(
        (*(FULL,) * place, length, *(FULL,) * (3 - place))
        for place in range(4)
        for length in SHORTER
    ),
)
"""Tokens of the longest line in each of four batches: all full, or one of them shorter. Nobody recorded which."""
LEAST_BATCH_OF_FULL_LENGTH = 15
"""From so many lines on, one of them has 128 tokens in nearly every batch."""
CARDS = {
    "RTX 3060": {
        "compute_capability": (8, 6),
        "capacity_bytes": 12_622_168_064,
        "torch_version": "2.6.0",
    },
    "RTX 4060": {
        "compute_capability": (8, 9),
        "capacity_bytes": 8_585_216_000,
        "torch_version": "2.6.0",
    },
    "A100 40 GB": {
        "compute_capability": (8, 0),
        "capacity_bytes": 42_298_834_944,
        "torch_version": "2.6.0",
    },
    "B200": {"compute_capability": (10, 0), "torch_version": "2.11.0+cu128"},
}
"""How each card's allocator works: its size as the driver reports it, and the version of torch that ran."""


def predict(run: PublicRun) -> Prediction:
    """Reserved and allocated bytes of one run from its program alone; the process's context is not in them."""
    if run.set == "CS336 on a B200":
        return _replayed(run, *_b200_program(run))
    if run.set == "GPUMemNet MLPs":
        return _replayed(run, programs.perceptron(run.config, run.batch), 4)
    if run.set == "GPUMemNet transformers":
        return _replayed(run, programs.encoder(run.config, run.batch), 4)
    if run.set == "GPUMemNet CNNs":
        return _replayed(run, programs.stack(run.config, run.batch), 4)
    if run.set == "xMem CNNs":
        return _replayed(run, programs.convolutional(run.model, run.optimizer, run.batch), 3)
    ways = LENGTHS if run.batch < LEAST_BATCH_OF_FULL_LENGTH else LENGTHS[:1]
    drawn = [
        _replayed(run, programs.transformer(run.model, run.optimizer, run.batch, way), 4)
        for way in ways
    ]
    by_size = sorted(drawn, key=lambda prediction: prediction.expected_bytes)
    expected = by_size[len(by_size) // 2]
    return dataclasses.replace(
        expected, low_bytes=by_size[0].expected_bytes, high_bytes=by_size[-1].expected_bytes
    )


def _replayed(run: PublicRun, build, steps: int) -> Prediction:
    replay = replay_trace(trace_script(build, steps=steps), **CARDS[run.card])
    reserved, allocated = replay.peak_reserved_bytes, replay.peak_allocated_bytes
    if run.set == "CS336 on a B200":
        # its counters were reset before the last step
        allocated = replay.timeline.for_step(steps).peak_bytes
    return Prediction(
        expected_bytes=reserved,
        low_bytes=reserved,
        high_bytes=reserved,
        allocated_bytes=allocated,
        is_failure=int(replay.failure is not None),
    )


def _b200_program(run: PublicRun):
    """The course's model, from the tests that hold it to the byte."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
    from cs336_large import XL, Shape
    from cs336_large import run as program

    mode, seq_len, is_autocast, num_segments, steps, _ = run.config.split()
    small = {"num_layers": 12, "hidden_size": 768, "num_heads": 12, "ff_size": 3072}
    shapes = {"xl": XL, "small": Shape(**small), "medium": Shape()}
    shape = dataclasses.replace(shapes[run.model], seq_len=int(seq_len))
    build = program(shape, mode, is_autocast=is_autocast == "1", num_segments=int(num_segments))
    return build, int(steps)


def provenance(beside: str = "torchvision") -> str:
    """Which libraries predict, when, and on what kind of machine."""
    libraries = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("torch", beside)
    )
    programs.with_torchvision_operators()
    import transformers

    libraries += f", transformers {transformers.__version__}"
    return f"predicted with {libraries} on a CPU ({platform.machine()}), {datetime.date.today()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", help="only the runs whose set begins so")
    parser.add_argument(
        "--rows", type=Path, nargs="+", help="store the rows of these files, and nothing else"
    )
    asked = parser.parse_args()
    if asked.rows:
        store_many_cards(
            [run for file in asked.rows for run in predicted_rows(file)], provenance("peft")
        )
        return
    runs = load_public_runs()
    made_with = provenance()
    for place, run in enumerate(runs):
        if asked.set and not run.set.startswith(asked.set):
            continue
        runs[place] = dataclasses.replace(run, prediction=predict(run))
        print(f"{run.set:18} {run.run:55} {runs[place].error:+.2%}", flush=True)
        store_public_runs(runs, made_with)
    print(f"stored in {FILE.name}")


if __name__ == "__main__":
    main()
