"""float32 to E4M3: ``memkit.formats.rounding`` against ml_dtypes (to codes) and gfloat (to rounded values)."""

import statistics
import time

import gfloat
import ml_dtypes
import numpy as np
from gfloat.formats import format_info_ocp_e4m3

from bench import Row
from memkit.formats.rounding import encode, round_to

NUM_VALUES = 1 << 22
REPEATS = 7


def _seconds_of_each(jobs: dict[str, object]) -> dict[str, float]:
    """Median processor time of each job; the jobs take turns, so that a busy moment hits all of them."""
    for job in jobs.values():
        job()
    taken: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(REPEATS):
        for name, job in jobs.items():
            start = time.process_time()
            job()
            taken[name].append(time.process_time() - start)
    return {name: statistics.median(times) for name, times in taken.items()}


def run() -> list[Row]:
    """Two rows: throughput over ml_dtypes' for codes, and over gfloat's for rounded values."""
    x = (np.random.default_rng(0).standard_normal(NUM_VALUES) * 10).astype(np.float32)
    codes = encode(x, "float8_e4m3fn", overflow="nan")
    assert (codes == x.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)).all(), (
        "a benchmark of wrong codes is none"
    )
    seconds = _seconds_of_each(
        {
            "encode": lambda: encode(x, "float8_e4m3fn", overflow="nan"),
            "ml_dtypes": lambda: x.astype(ml_dtypes.float8_e4m3fn),
            "round_to": lambda: round_to(x, "float8_e4m3fn", overflow="nan"),
            "gfloat": lambda: gfloat.round_ndarray(format_info_ocp_e4m3, x),
        }
    )
    rate = {name: f"{NUM_VALUES / taken / 1e6:.0f}" for name, taken in seconds.items()}
    return [
        Row(
            name="float32 to E4M3 codes, throughput over ml_dtypes",
            ratio=seconds["ml_dtypes"] / seconds["encode"],
            at_least=1,
            detail=f"encode {rate['encode']} ÷ astype {rate['ml_dtypes']} million values a second on one core",
        ),
        Row(
            name="float32 to E4M3 values, throughput over gfloat",
            ratio=seconds["gfloat"] / seconds["round_to"],
            at_least=4,
            detail=f"round_to {rate['round_to']} ÷ round_ndarray {rate['gfloat']} million values a second on one core",
        ),
    ]
