"""Two real processes: equal to one, counted, and none left behind, also when killed half-way."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import patch

import psutil
import pytest
import torch

from book.ranks import environments, join_group, run_on_ranks
from book.small_gpt import make_small_gpt

MODULE = "book.accumulation_ranks"
WHOLE = 8 * sum(parameter.numel() for parameter in make_small_gpt().parameters())
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def two():
    said: list[str] = []
    with patch.dict(os.environ, TQDM_DISABLE=""):
        return run_on_ranks(MODULE, 2, say=said.append) | {"said": said}


def ranks_of(parent: int) -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process(parent).children()
        if "spawn_main" in " ".join(child.cmdline())
    ]


@pytest.mark.serial
def test_every_way_has_the_gradient_and_the_loss_of_one_process(two):
    for way, row in two["ways"].items():
        assert row["difference"] < 1e-12, way
        assert row["losses"] == pytest.approx(row["oracle"], rel=1e-12), way
    # asked once a second: not of every way
    assert any(f"/{len(two['ways'])} [" in words for words in two["said"])
    assert not ranks_of(os.getpid())


@pytest.mark.serial
def test_what_is_sent_and_kept(two):
    """An all-reduce sends P a micro-batch or once a window; FSDP2 keeps a shard, or the whole gradient."""
    ways, whole = two["ways"], WHOLE
    assert ways["DDP"]["sent"] == {"allreduce": 4 * whole} and ways["DDP, no_sync"]["sent"] == {
        "allreduce": whole
    }
    assert ways["DDP, no_sync"]["kept_bytes"] == 2 * whole
    assert ways["DDP, no_sync, bucket view"]["kept_bytes"] == whole
    assert ways["FSDP2"]["kept_bytes"] == pytest.approx(whole / 2, rel=0.01)
    assert ways["FSDP2, no gradient sync"]["kept_bytes"] == whole
    reduced = {way: row["collectives"].get("reduce_scatter", 0) for way, row in ways.items()}
    assert reduced["FSDP2"] == 4 * reduced["FSDP2, no gradient sync"] == 12


@pytest.mark.exhaustive
def test_four_ranks_and_hsdp():
    four = run_on_ranks(MODULE, 4)
    assert all(row["difference"] < 1e-12 for row in four["ways"].values())
    assert four["ways"]["HSDP, no all-reduce"]["kept_bytes"] == pytest.approx(WHOLE / 2, rel=0.01)


@pytest.mark.serial
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_end_half_way_leaves_no_process_behind(how):
    listens = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # a job may ignore it
    program = f"{listens}; from book.ranks import run_on_ranks; run_on_ranks({MODULE!r}, 2)"
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.DEVNULL)
    while len(ranks := ranks_of(process.pid)) < 2 and process.poll() is None:
        time.sleep(0.1)
    os.kill(process.pid, how)
    assert process.wait()
    _, alive = psutil.wait_procs(ranks, timeout=60)
    assert not alive


@pytest.mark.serial
def test_a_rank_that_fails_is_told_in_its_own_words(tmp_path, monkeypatch):
    (tmp_path / "falls.py").write_text("raise ValueError('no such way')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RuntimeError, match=r"falls: rank [01] of 2: ValueError: no such way"):
        run_on_ranks("falls", 2)


RANK_THAT_DIES = """
import os, signal, sys, torch, torch.distributed as dist
moment, dying = sys.argv[1], sys.argv[2]
def die_at(here):
    if here == moment and os.environ["RANK"] == dying:
        os.kill(os.getpid(), signal.SIGKILL)
die_at("start")
dist.init_process_group("gloo")
die_at("in the group")
dist.all_reduce(torch.ones(4))
die_at("after a collective")
dist.barrier()
if os.environ["RANK"] == "0":
    print("result of rank 0: {}", flush=True)
"""


@pytest.mark.serial
@pytest.mark.parametrize(
    "moment, rank", [("start", "0"), ("in the group", "1"), ("after a collective", "2")]
)
def test_a_rank_that_is_killed_ends_the_others_and_is_named(tmp_path, monkeypatch, rank, moment):
    """The others of three wait for it in a collective, or in the store, for half an hour by torch's default."""
    (tmp_path / "dies.py").write_text(RANK_THAT_DIES)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RuntimeError, match=f"dies: rank {rank} of 3: .*signal SIGKILL"):
        run_on_ranks("dies", 3, [moment, rank])
    assert not ranks_of(os.getpid())


@pytest.mark.parametrize("num_cards, backend", [(0, "gloo"), (1, "gloo"), (2, "nccl")])
def test_two_ranks_do_not_share_a_card(num_cards, backend, monkeypatch):
    """nccl refuses two ranks on one device."""
    chosen = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_cards)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.distributed, "init_process_group", chosen.append)
    for name, value in environments(2)[1].items():
        monkeypatch.setenv(name, value)
    assert join_group() == ("cuda" if backend == "nccl" else "cpu")
    assert chosen == ([1, "nccl"] if backend == "nccl" else ["gloo"])


@pytest.mark.parametrize("bad", [0, -1, 9])
def test_a_number_of_ranks_is_one_to_eight(bad):
    with pytest.raises(ValueError, match="num_ranks"):
        run_on_ranks(MODULE, bad)
