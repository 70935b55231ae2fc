"""Ctrl-C at counted moments of a trace and of a measurement: each ends, and torch is as it was before."""

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys

import pytest
import torch
from state_of_torch import state_of_torch
from torch.utils.checkpoint import checkpoint

from memkit.measuring.measure import measure_memory
from memkit.tracing.trace import trace_memory

PUSH_HOOKS = torch._C._autograd._push_saved_tensors_default_hooks
SWITCHES = (torch._C._set_grad_enabled, torch.set_autocast_enabled, torch.set_autocast_dtype, PUSH_HOOKS)
ENTERED = contextlib.ExitStack._push_cm_exit.__code__


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


class CtrlC:
    """A profile function that counts the moments at which Python looks for signals, and sends one at ``moment``.

    Python looks where a function of its own begins and where one of C ends; no clock is asked. A moment is its
    number, or a place right after autocast, gradients or hooks were turned on or off, or right after a stack of
    patches has entered one and not yet noted it, when it is first reached.
    """

    def __init__(self, moment: object = None):
        self.moment, self.count, self.switched = moment, 0, {}

    def __call__(self, frame, event, function):
        if event in ("call", "c_return"):
            self.count += 1
            if frame.f_code is ENTERED or event == "c_return" and function in SWITCHES:
                place = tuple((f.f_code, f.f_lineno) for f in (frame, frame.f_back, frame.f_back.f_back))
                self.switched[place] = True
            else:
                place = None
            if self.moment in (self.count, place or 0):
                sys.setprofile(None)
                signal.raise_signal(signal.SIGINT)

    def sent_into(self, run) -> bool:
        """Whether ``run`` ended in KeyboardInterrupt."""
        try:
            sys.setprofile(self)
            run()
        except KeyboardInterrupt:
            return True
        finally:
            sys.setprofile(None)
        return False


def tries(way: str, device: str, times: int) -> dict[str, object]:
    """How many of ``times`` evenly chosen moments, and of those after a switch, ended the run; which changed torch."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()  # or what is collected, and where, would count

    def run():
        {"trace": trace_memory, "measure": measure_memory}[way](program(device), device=device)

    for _ in range(2):  # imports and caches
        run()
    whole = CtrlC()
    assert not whole.sent_into(run)
    before, found = state_of_torch(), {"interrupted": 0, "switched": len(whole.switched), "changed": []}
    moments = [*range(1, whole.count, -(-whole.count // times)), *whole.switched]
    for moment in moments:
        found["interrupted"] += CtrlC(moment).sent_into(run)
        if state_of_torch() != before or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            found["changed"].append(str(moment))
    run()
    return found | {"tried": len(moments)}


@pytest.mark.parametrize("times", [20, pytest.param(1000, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("way, device", [("trace", "cuda"), ("trace", "cpu"), ("measure", "cpu")])
def test_ctrl_c_at_any_moment(way, device, times):
    """In a process of its own, since what could go wrong is an abort."""
    command = [sys.executable, __file__, way, device, str(times)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=1200, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["changed"] == [] and found["switched"] > 20, found
    assert found["interrupted"] > 0.9 * found["tried"], found  # a finalizer of C++ may swallow one


if __name__ == "__main__":
    print(json.dumps(tries(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
