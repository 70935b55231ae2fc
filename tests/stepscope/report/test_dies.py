"""Programs on which a report died, as small ones of the same kinds; each is traced to its end."""

import json
from pathlib import Path

import pytest
import torch

from memkit import TrainingSetup, models, trace_memory, training_build
from stepscope import read_snapshot, replay_trace, trace_script
from stepscope.allocator import predicted_snapshot
from stepscope.tool.command_line import main
from stepscope.tool.script import Script

NET = """
import os, torch
dev = torch.device("cuda")
net = torch.nn.Linear(64, 64).to(dev); opt = torch.optim.AdamW(net.parameters())
"""
TRAINS = """
for _ in range(4):
    net(torch.randn(8, 64, device=dev)).sum().backward(); opt.step(); opt.zero_grad()
"""

LIVES = {
    "torch.load to the card, by any map_location": """
torch.save({"a": torch.arange(4), "net": net.state_dict()}, "own.pt")
for where in ("cuda", "cuda:0", dev, {"cpu": "cuda"}, lambda storage, location: storage.cuda()):
    for file in ("own.pt", "real.pt"):
        found = torch.load(file, map_location=where)
        assert found["a"].is_cuda and found["a"].tolist() == [0, 1, 2, 3], (file, where)
        assert found["net"]["weight"].is_cuda and found["net"]["weight"].shape == (64, 64)
for where in ("cpu", None, lambda storage, location: storage):
    assert not torch.load("real.pt", map_location=where)["net"]["weight"].is_cuda
assert not torch.load("own.pt", map_location="cpu")["net"]["weight"].is_cuda
assert torch.load("own.pt")["net"]["bias"].is_cuda
net.load_state_dict(torch.load("real.pt", map_location="cuda")["net"])
""",
    "torch.cuda.device is a class": """
assert isinstance(torch.cuda.device, type) and not isinstance(dev, torch.cuda.device)
with torch.cuda.device(0), torch.cuda.device(dev):
    pass
""",
    "generators of the card": """
torch.cuda.default_generators[0].manual_seed(3)
assert len(torch.cuda.default_generators) == torch.cuda.device_count() == len(torch.cuda.get_rng_state_all())
torch.cuda.set_rng_state_all(torch.cuda.get_rng_state_all()); torch.cuda.random.manual_seed_all(1)
""",
    "scripted code": """
@torch.jit.script
def twice(x):
    return torch.nn.functional.relu(x) * 2
assert twice(torch.jit.script(torch.nn.ReLU())(net.weight)).shape == (64, 64)
""",
    "a small weight beside a large tensor of the host": """
head, big = torch.nn.Linear(64, 64), torch.randn(8192, 64)
table, scale = torch.nn.Parameter(torch.randn(20000, 64)), torch.nn.Parameter(torch.ones(64))
both = torch.optim.AdamW([*head.parameters(), table, scale])
(net(head(big).cuda()).sum() + (table * scale).sum().cuda()).backward()
assert head.weight.grad.shape == (64, 64) and not head.weight.grad.is_cuda and not table.grad.is_cuda
torch.nn.utils.clip_grad_norm_([table, scale], 1.0); both.step()
""",
}


@pytest.mark.parametrize("name", LIVES)
def test_it_lives(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"a": torch.arange(4), "net": torch.nn.Linear(64, 64).state_dict()}, "real.pt")
    Path("train.py").write_text(NET + LIVES[name] + TRAINS)
    plain = Path("plain.py")
    plain.write_text(NET + TRAINS)
    trace, alone = trace_script(Script("train.py")), trace_script(Script("plain.py"))
    assert (
        trace.at("optimizer", step=2).optimizer_states
        == alone.at("optimizer", step=2).optimizer_states
    )


def test_a_storage_that_two_tensors_share_is_loaded_once(tmp_path, monkeypatch):
    """torch's own file of tied weights: 4 KiB on the card, not 8."""
    monkeypatch.chdir(tmp_path)
    tied = torch.randn(32, 32)
    torch.save({"a": tied, "b": tied.view(-1)}, "tied.pt")

    def build():
        found = torch.load("tied.pt", map_location="cuda")
        torch.save(found, "again.pt")
        again = torch.load("again.pt")
        return lambda: found["a"].sum() + again["b"].sum()

    births = [
        event.num_bytes for event in trace_script(build, steps=1).events if event.phase == "init"
    ]
    assert births == [4096, 4096]


FSDP2 = """
import os, torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
with torch.device("meta"):
    net = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(3)))
for layer in net:
    fully_shard(layer, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
fully_shard(net)
net.to_empty(device="cuda")
for layer in net:
    layer.reset_parameters()
opt = torch.optim.Adam(net.parameters())
for _ in range(3):
    net(torch.randn(8, 256, device="cuda")).sum().backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0); opt.step(); opt.zero_grad()
"""


def test_fsdp2_as_pytorchs_own_example_has_it(tmp_path, monkeypatch):
    """Made on meta, sharded, given memory, then initialised: a rank of two has half of each tensor, and its states."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(FSDP2)
    half = 3 * 4 * (256 * 256 + 256) // 2
    end = trace_script(Script("train.py", ranks=2)).at("zero_grad", step=2)
    assert half <= end.weights < 1.1 * half and 2 * half <= end.optimizer_states < 2.1 * half


def test_sparse_tensors_are_refused_with_the_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(
        NET
        + (
            "a = torch.sparse_coo_tensor(torch.tensor([[0], [1]]), torch.ones(1), (64, 64)).to(dev)\n"
        )
        + TRAINS
    )
    assert main(["report", "train.py"]) == 2
    assert "train.py:5 <module>: a trace does not follow sparse tensors" in capsys.readouterr().err


def test_an_evaluation_within_the_epoch_is_reached(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("""
import torch
from torch.utils.data import DataLoader, TensorDataset
net = torch.nn.Linear(64, 64).cuda(); opt = torch.optim.AdamW(net.parameters())
for step, (x,) in enumerate(DataLoader(TensorDataset(torch.randn(96, 64)), batch_size=8), 1):
    net(x.cuda()).sum().backward(); opt.step(); opt.zero_grad()
    if step % 5 == 0:
        net.eval()
        with torch.no_grad():
            net(torch.randn(4096, 64, device="cuda"))
        net.train()
""")
    assert main(["report", "train.py", "--until", "eval", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["moment"] == "evaluation of step 5 of 5" and found["own_line"] == "train.py:10"
    assert found["allocated_bytes"] > 2 * 4096 * 64 * 4


def test_a_snapshot_of_torch_2_0_is_read():
    """Its blocks have neither address nor requested size; these follow from the sizes and the history."""
    trace = trace_memory(training_build(TrainingSetup(model=models.TINY_GPT2, seq_len=64)))
    snapshot = predicted_snapshot(replay_trace(trace))
    whole = read_snapshot(snapshot)
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            block["history"] = [
                {
                    "addr": block.pop("address"),
                    "real_size": block.pop("requested_size"),
                    "frames": [],
                }
            ]
    assert [event.num_bytes for event in read_snapshot(snapshot).timeline.events] == [
        event.num_bytes for event in whole.timeline.events
    ]
