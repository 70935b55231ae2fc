"""Real ranks: a sharded step keeps what the formula says, sends what it says, and has the loss of one rank."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from memkit.measuring.ranks import run_on_ranks
from memkit.measuring.sharded_ranks import SENT, SETUP, all_layouts
from memkit.sharding import estimate_sharded, step_traffic

MODULE = "memkit.measuring.sharded_ranks"
ROOT = Path(__file__).parents[2]


def ranks_alive() -> list[psutil.Process]:
    processes = psutil.process_iter(["cmdline"])
    return [p for p in processes if MODULE in (p.info["cmdline"] or ()) and p.status() != psutil.STATUS_ZOMBIE]


def gone(seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while ranks_alive() and time.monotonic() < end:
        time.sleep(0.2)
    return not ranks_alive()


@pytest.mark.serial
@pytest.mark.parametrize("num_ranks", [2, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_formula_traffic_and_loss_are_those_of_real_ranks(num_ranks):
    told, ways = run_on_ranks(MODULE, num_ranks), all_layouts(num_ranks)
    assert set(told["ways"]) == set(ways)
    for name, row in told["ways"].items():
        peak = estimate_sharded(SETUP, ways[name]).for_step(2).peak_bytes
        assert max(row["peaks"].values()) == pytest.approx(peak, rel=0.005), name
        assert row["losses"] == pytest.approx(told["oracle"], rel=1e-5), name
        traffic = step_traffic(SETUP, ways[name])
        formula = (traffic.all_gathered, traffic.reduce_scattered, traffic.all_reduced, traffic.broadcast)
        assert tuple(row["sent"].get(kind, 0) for kind in SENT) == formula, name
    assert gone()


@pytest.mark.serial
def test_an_end_half_way_leaves_no_process_behind():
    program = f"from memkit.measuring.ranks import run_on_ranks; run_on_ranks({MODULE!r}, 2)"
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.DEVNULL)
    while len(ranks_alive()) < 2 and process.poll() is None:
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert gone()
