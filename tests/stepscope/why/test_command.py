"""``stepscope why`` as it is typed: a file, a pipe, JSON, a recording, what it cannot use, and a long log."""

import io
import json
import time
from types import SimpleNamespace

import pytest

from memkit import TrainingSetup, estimate_memory, models
from memkit.units import GIB, MIB
from stepscope.allocator import predicted_snapshot, replay_trace, write_snapshot
from stepscope.tool.command_line import main

LOG = """Traceback (most recent call last):
  File "/home/me/train.py", line 12, in <module>
    optimizer.step()
  File "/usr/lib/python3.11/site-packages/torch/optim/adamw.py", line 220, in step
    adamw(
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 24.00 GiB of which
512.00 MiB is free. Including non-PyTorch memory, this process has 23.50 GiB memory in use. Of the allocated memory
22.00 GiB is allocated by PyTorch, and 512.00 MiB is reserved by PyTorch but unallocated.
"""


def piped(monkeypatch, content: bytes) -> None:
    stdin = SimpleNamespace(buffer=io.BytesIO(content), isatty=lambda: False)
    monkeypatch.setattr("sys.stdin", stdin)


@pytest.mark.parametrize("words", [["why"], ["why", "-"]])
def test_a_log_that_is_piped(words, monkeypatch, capsys):
    piped(monkeypatch, LOG.encode())
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "Your line: train.py:12 in <module>: optimizer.step()" in out
    assert "fused=True" in out and "1.00 GiB." in out


def test_a_file_as_json(tmp_path, capsys):
    path = tmp_path / "train.log"
    path.write_bytes(b"\xff\x00 not UTF-8\n" + LOG.encode())
    assert main(["why", str(path), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["row"], data["phase"], data["chapter"]) == ("step", "optimizer.step()", "09")
    assert data["outside_bytes"] == 23.5 * GIB - 22 * GIB - 512 * MIB
    assert sum(data["holders"].values()) == data["message"]["total"] == 24 * GIB
    [own] = data["own_lines"]
    assert (own["line"], own["code"]) == (12, "optimizer.step()")


def test_a_recording_goes_on_to_snapshot(tmp_path, capsys):
    timeline = estimate_memory(TrainingSetup(model=models.GPT2_SMALL, seq_len=128))
    path = str(write_snapshot(predicted_snapshot(replay_trace(timeline)), tmp_path / "a.pickle"))
    assert main(["why", path]) == main(["snapshot", path]) == 0
    out = capsys.readouterr().out
    half = len(out) // 2
    assert out[:half] == out[half:]


def test_what_cannot_be_used_is_said_in_one_line(monkeypatch, capsys):
    piped(monkeypatch, b"all went well")
    assert main(["why"]) == 2
    assert main(["why", "nowhere.log"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(
        "stepscope: nothing here says that memory ran out (the text begins 'all went"
    )
    assert second == "stepscope: 'nowhere.log' is no file"


@pytest.mark.parametrize("line", ["1" * 100_000, "1234567890 " * 10_000, "x" * 100_000])
def test_a_long_line_takes_seconds(line, monkeypatch, capsys):
    piped(monkeypatch, f"{line}\n{LOG}".encode())
    begun = time.perf_counter()
    assert main(["why", "--json"]) == 0
    assert time.perf_counter() - begun < 5
    assert json.loads(capsys.readouterr().out)["row"] == "step"


def test_a_long_log_takes_seconds(monkeypatch, capsys):
    steps = "".join(
        f"\r {n * 100 // 20000}%|▏| {n}/20000 [00:12<1:15:06, 1.44it/s]{{'loss': 2.5, 'epoch': 0.1}}\n"
        for n in range(20_000)
    )
    piped(monkeypatch, (steps + LOG).encode())
    begun = time.perf_counter()
    assert main(["why", "--json"]) == 0
    assert time.perf_counter() - begun < 20
    data = json.loads(capsys.readouterr().out)
    assert (data["row"], data["step"]) == ("longest", 19_999)
