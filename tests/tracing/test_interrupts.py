"""Ctrl-C at random moments of a trace and of a measurement: each ends, and torch is as it was before."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch
from state_of_torch import state_of_torch
from torch.utils.checkpoint import checkpoint

from memkit.measuring.measure import measure_memory
from memkit.tracing.trace import trace_memory


def program(device: str):
    """Recomputation, autocast, a scaler, clipping and fused AdamW: what a trace patches is in use."""

    def build():
        first, last = torch.nn.Linear(64, 64).to(device), torch.nn.Linear(64, 64).to(device)
        parameters = [*first.parameters(), *last.parameters()]
        optimizer, scaler = torch.optim.AdamW(parameters, fused=True), torch.amp.GradScaler(device)

        def step():
            for _ in range(4):
                with torch.autocast(device, torch.bfloat16):
                    hidden = checkpoint(first, torch.randn(32, 64, device=device), use_reentrant=False)
                    loss = last(hidden).square().mean()
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

        return step

    return build


def interrupted_at(moment: float, run) -> bool:
    """Whether ``run`` ended in KeyboardInterrupt, with a signal after ``moment`` seconds."""
    try:
        signal.setitimer(signal.ITIMER_REAL, moment)
        run()
        signal.setitimer(signal.ITIMER_REAL, 0)
        time.sleep(0.001)  # a signal that is on its way comes here
    except KeyboardInterrupt:
        return True
    return False


def tries(way: str, device: str, times: int, seed: int) -> dict[str, int]:
    """How many of ``times`` runs were interrupted, and after how many torch was another."""
    r, run = random.Random(seed), {"trace": trace_memory, "measure": measure_memory}[way]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    run(program(device), device=device)
    start = time.perf_counter()
    run(program(device), device=device)
    took, before, found = time.perf_counter() - start, state_of_torch(), {"interrupted": 0, "changed": 0}
    for _ in range(times):
        found["interrupted"] += interrupted_at(
            took * r.random() * r.choice((1, 0.2)), lambda: run(program(device), device=device)
        )
        found["changed"] += (
            state_of_torch() != before or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        )
    run(program(device), device=device)
    return found


@pytest.mark.parametrize("times", [8, pytest.param(150, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("way, device", [("trace", "cuda"), ("trace", "cpu"), ("measure", "cpu")])
def test_ctrl_c_at_any_moment(way, device, times):
    """In a process of its own, since what could go wrong is an abort."""
    command = [sys.executable, __file__, way, device, str(times)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=1200, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["interrupted"] > 0 and found["changed"] == 0, found


if __name__ == "__main__":
    print(json.dumps(tries(sys.argv[1], sys.argv[2], int(sys.argv[3]), seed=20261122)))
