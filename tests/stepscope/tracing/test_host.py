"""The host's memory in a trace of a card: what it is for the program, and that it takes none here."""

import psutil
import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

from memkit.units import MIB
from stepscope import trace_script
from stepscope.program.sharded import one_rank_of

WIDTH = 8192


def resident_bytes() -> int:
    return psutil.Process().memory_info().rss


@pytest.mark.parametrize("how", [{"foreach": True}, {"foreach": False}, {"fused": True}], ids=str)
def test_an_optimizer_on_the_host_computes_nothing(how):
    """Weights, gradients and two states of 256 MiB each stay off this process's memory, by the system's own count."""
    before, seen = resident_bytes(), []

    def build():
        model = torch.nn.Linear(WIDTH, WIDTH, device="cuda")
        masters = [torch.nn.Parameter(p.detach().to("cpu")) for p in model.parameters()]
        optimizer = torch.optim.AdamW(masters, **how)

        def step():
            model(torch.ones(1, WIDTH, device="cuda")).sum().backward()
            for master, p in zip(masters, model.parameters(), strict=True):
                master.grad, p.grad = p.grad.to("cpu"), None
            optimizer.step()
            with torch.no_grad():
                for master, p in zip(masters, model.parameters(), strict=True):
                    p.copy_(master)
            seen.append(resident_bytes())

        return step

    with pytest.warns(UserWarning, match="no values"):
        timeline = trace_script(build)
    assert max(seen) - before < 128 * MIB
    weights = 4 * WIDTH * (WIDTH + 1)
    assert timeline.at("optimizer").total_bytes == weights  # nothing of the host is the card's
    assert timeline.at("backward").total_bytes == pytest.approx(2 * weights, rel=0.001)


@pytest.mark.filterwarnings("ignore:.*no values")
@pytest.mark.parametrize("width", [8, 1024])
def test_what_is_on_the_host_is_like_a_copy_there(width):
    """Small ones are real and large ones are not; a program sees no difference, and the card's bytes are the same."""
    seen = []

    def build():
        x = torch.ones(width, width, device="cuda").t()

        def step():
            host, empty = x.cpu(), torch.empty_like(x, device="cpu", pin_memory=True)
            empty.copy_(x)
            host.add_(empty).mul_(2)
            y = host.to("cuda")
            x.copy_(host)
            told = [
                (t.device.type, t.is_cuda, tuple(t.shape), t.stride(), t.dtype)
                for t in (host, empty, host * 2)
            ]
            seen.append((told, host.pin_memory().is_contiguous(), str(y.device), host.sum().item()))

        return step

    timeline = trace_script(build, steps=1)
    real = torch.ones(width, width).t()
    ((told, is_contiguous, device, value),) = seen
    assert told == [("cpu", False, tuple(real.shape), real.stride(), real.dtype)] * 3
    assert (is_contiguous, device, value) == (False, "cuda:0", 1.0)
    born = [
        event.num_bytes
        for event in timeline.events
        if event.num_bytes > 0 and event.phase == "forward"
    ]
    assert born == [4 * width * width], "nothing but the copy that came back, no scratch of the sum"


def test_a_mesh_of_two_axes_on_the_cpus_rules():
    """Torch's mesh looks at its own ranks with the fake tensors' mode put aside."""
    found = []

    def look() -> list:
        mesh = init_device_mesh("cpu", (2, 3), mesh_dim_names=("replicate", "shard"))
        return [mesh.mesh.tolist(), mesh["shard"].mesh.tolist(), mesh["replicate"].mesh.tolist()]

    def build():
        found.append(look())
        return lambda: None

    with one_rank_of(6):
        real = look()
        trace_script(build, device="cpu", steps=1)
    assert found == [real]
