"""A script of ranks, as ``torchrun`` starts it: the first of them is traced, in a group that sends nothing.

The oracle is torchrun itself with gloo on the CPU: what rank 0 prints of the bytes it holds and of what it gathers.
"""

import io
import subprocess
import sys
from contextlib import redirect_stdout

import pytest
import torch.distributed as dist

from stepscope.tool.command_line import main
from stepscope.tool.script import Script
from stepscope.tracing.trace import trace_script

SCRIPT = """
import os
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

how, kind = sys.argv[1:]
dist.init_process_group("nccl" if kind == "cuda" else "gloo")
rank = int(os.environ["LOCAL_RANK"])
device = torch.device(kind, rank if kind == "cuda" else None)
if kind == "cuda":
    torch.cuda.set_device(rank)
model = nn.Sequential(nn.Linear(256, 1024, bias=False), nn.ReLU(), nn.Linear(1024, 256, bias=False)).to(device)
if how == "ddp":
    model = DistributedDataParallel(model, device_ids=[rank] if kind == "cuda" else None)
else:
    for layer in (model[0], model[2], model):
        fully_shard(layer)
local = [p.to_local() if how == "fsdp" else p for p in model.parameters()]
data = TensorDataset(torch.randn(256, 256))
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
optimizer = torch.optim.Adam(model.parameters(), foreach=False)
said = [len(loader), sum(p.nbytes for p in local), dist.get_world_size()]
for step, (x,) in enumerate(loader):
    if step == 3:
        break
    model(x.to(device)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    sizes = torch.empty(2 * dist.get_world_size(), dtype=torch.int64, device=device)
    dist.all_gather_into_tensor(sizes, torch.tensor(x.shape, device=device))
    parts = [torch.empty(1, device=device) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, torch.full((1,), 3.0, device=device))
    dist.barrier()
    if rank == 0:
        print(*said, sizes.tolist(), torch.cat(parts).tolist())
    elif step == 0:
        print("another rank", file=sys.stderr)
dist.destroy_process_group()
if kind == "cpu":  # at Python's end torch's own threads abort one process in eight
    sys.stdout.flush()
    os._exit(0)
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_rank_0_holds_and_gathers_what_torchrun_s_first_rank_does(file, how):
    with (
        redirect_stdout(io.StringIO()) as said,
        pytest.warns(UserWarning, match="rank 0 of 2; what NCCL"),
    ):
        trace = trace_script(Script(file, (how, "cuda"), ranks=2))
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        file,
        how,
        "cpu",
    ]
    real = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert real.returncode == 0, real.stderr[-2000:]
    assert "another rank" in real.stderr
    assert said.getvalue().splitlines()[0] == real.stdout.splitlines()[0]
    share = int(said.getvalue().split()[1])
    assert not dist.is_initialized()
    peak = trace.peak
    # both layers' sizes are multiples of 512
    assert (peak.weights, peak.optimizer_states) == (share, 2 * share)
    if how == "ddp":  # its buckets hold every gradient once more, and live as long as the model
        assert trace.at("init").total_bytes >= share
        assert peak.total_bytes >= 5 * share


def test_a_share_falls_with_the_ranks(file):
    shares = {}
    for ranks in (2, 8):
        with redirect_stdout(io.StringIO()), pytest.warns(UserWarning, match=f"rank 0 of {ranks}"):
            shares[ranks] = trace_script(
                Script(file, ("fsdp", "cuda"), ranks=ranks)
            ).peak.optimizer_states
    assert shares[2] == 4 * shares[8]


def test_a_script_that_starts_its_ranks_itself_runs_the_first_of_them(tmp_path, capsys):
    path = tmp_path / "spawned.py"
    path.write_text(
        "import torch, torch.multiprocessing as mp, torch.distributed as dist\n"
        "def main(rank, world_size):\n"
        "    dist.init_process_group('nccl', rank=rank, world_size=world_size)\n"
        "    layer = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(512, 512).to(rank), device_ids=[rank])\n"
        "    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)\n"
        "    for _ in range(3):\n"
        "        layer(torch.ones(4, 512, device=rank)).sum().backward()\n"
        "        optimizer.step()\n"
        "        optimizer.zero_grad()\n"
        "if __name__ == '__main__':\n"
        "    mp.spawn(main, args=(torch.cuda.device_count(),), nprocs=torch.cuda.device_count())\n"
    )
    assert main(["report", str(path), "--ranks", "4", "--card", "T4"]) == 0
    assert f"{path}, rank 0 of 4: " in capsys.readouterr().out


def test_what_the_first_rank_cannot_say_is_refused(file, tmp_path, capsys):
    path = tmp_path / "parallel.py"
    path.write_text("import torch\ntorch.nn.DataParallel(torch.nn.Linear(2, 2).cuda())")
    assert main(["report", str(path), "--ranks", "4"]) == 2
    assert "DataParallel on several cards; write DistributedDataParallel" in capsys.readouterr().err
    assert main(["report", file, "--ranks", "-1"]) == 2
    assert "--ranks=-1" in capsys.readouterr().err
    assert main(["report", "train:build", "--ranks", "2"]) == 2
    assert "--ranks run a script such as train.py, not 'train:build'" in capsys.readouterr().err
