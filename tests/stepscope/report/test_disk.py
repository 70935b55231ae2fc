"""A report leaves the disk as it found it: every byte and time of a tree, after programs that write in many ways."""

import contextlib
import ctypes
import functools
import hashlib
import io
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from writing_habits import BEGIN, END, HABITS, PAST_EVERY_DOOR, REFUSED

from stepscope.tool.command_line import main
from stepscope.tool.script import Script
from stepscope.tracing import scratch_disk as module_of_disk
from stepscope.tracing.scratch_disk import on_scratch_disk
from stepscope.tracing.trace import trace_script

HELD = {"open": open, "remove": os.remove}
"""As C code calls them: not through a module."""


def tree_with_files(folder: Path) -> Path:
    """A project of 200 files, with an earlier run's results."""
    for name in ("ck", "data", "runs/old", "src/deep/er"):
        (folder / name).mkdir(parents=True)
    for n in range(20):
        (folder / f"data/{n}.txt").write_text(str(n) * n)
    for n in range(170):
        (folder / f"src/deep/{n}.txt").write_bytes(bytes([n]) * n)
    for n in (1, 2, 3):
        (folder / f"ck/{n}.pt").write_bytes(bytes(n))
    (folder / "data/tokens.bin").write_bytes(bytes(1000))
    (folder / "runs/old/events.0").write_text("0")
    (folder / "best.pt").write_bytes(b"weights of a week")
    (folder / "log.txt").write_text("a long log\n")
    (folder / "beside.py").write_text("VALUE = 1\n")
    (folder / "link").symlink_to("log.txt")
    with sqlite3.connect(folder / "results.db") as base:
        base.execute("create table old (n int)")
        base.execute("insert into old values (3)")
    base.close()
    return folder


def seen(folder: Path) -> dict[str, tuple]:
    """Of every path in a tree its kind and rights, its time, and a hash of its bytes or its link."""
    found = {}
    for path in sorted([folder, *folder.rglob("*")]):
        state = path.lstat()
        data = (
            os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else ""
        )
        content = hashlib.sha256(data if isinstance(data, bytes) else data.encode()).hexdigest()
        found[str(path)] = state.st_mode, state.st_mtime_ns, state.st_ino, state.st_nlink, content
    return found


@pytest.fixture
def tree(tmp_path, monkeypatch):
    folder = tree_with_files(tmp_path / "project")
    monkeypatch.chdir(folder)
    return folder


def write_script(folder: Path, text: str, name: str = "train.py") -> str:
    path = folder.parent / name
    path.write_text(BEGIN + textwrap.dedent(text) + END)
    return str(path)


def test_no_byte_and_no_time_differs_after_programs_that_write(tree):
    """One process traces them all; each program asserts that it finds again what it wrote."""
    assert len(seen(tree)) >= 200
    before, outside = seen(tree), os.listdir(tree.parent)
    for name, text in HABITS.items():
        path = write_script(tree, text)
        assert len(trace_script(Script(path)).events) > 0, name
        assert seen(tree) == before, name
    assert set(os.listdir(tree.parent)) == {*outside, "train.py"}
    assert Path.cwd() == tree and "made_by_it" not in os.listdir(tree)


PRETRAINED = """
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
config = GPT2Config(n_layer=1, n_head=2, n_embd=64, vocab_size=99, n_positions=64, bos_token_id=1, eos_token_id=2)
GPT2LMHeadModel(config).save_pretrained("first")
rows = [{"input_ids": torch.zeros(8, dtype=torch.long), "labels": torch.zeros(8, dtype=torch.long)}] * 16
options = TrainingArguments("out", per_device_train_batch_size=2, max_steps=3, report_to=[], save_steps=1,
                            save_total_limit=1, disable_tqdm=True)
Trainer(GPT2LMHeadModel.from_pretrained("first"), options, train_dataset=rows).train()
"""


@pytest.mark.filterwarnings("ignore")
def test_what_a_hugging_face_trainer_saves_it_finds_and_nobody_else(tree):
    """The model's own file of safetensors is read again; a checkpoint comes after each step, and the oldest goes."""
    before = seen(tree)
    (tree.parent / "hf.py").write_text("import torch\n" + PRETRAINED)
    trace = trace_script(Script(str(tree.parent / "hf.py")), steps=2)
    assert trace.at("optimizer", step=2).optimizer_states > 0 and seen(tree) == before


@pytest.mark.parametrize("name", REFUSED)
def test_what_could_change_the_disk_is_refused_before_it_happens(tree, name, capsys, monkeypatch):
    text, words = REFUSED[name]
    monkeypatch.setattr(
        "builtins.write_past", functools.partial(HELD["open"], "log.txt", "w"), raising=False
    )
    before = seen(tree)
    assert main(["report", write_script(tree, text)]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert words in error and "STEPSCOPE_REPORT" in error and "train.py" in error
    assert seen(tree) == before


def test_what_was_refused_is_said_where_the_program_goes_on_without_it(tree, capsys):
    text = "import subprocess\ntry:\n    subprocess.run(['rsync', 'a', 'b'])\nexcept OSError:\n    pass\n"
    assert main(["report", write_script(tree, text)]) == 0
    page = capsys.readouterr().out
    assert (
        "About this number: this was refused, and the program went on without it: train.py:" in page
    )
    assert "starts another program, 'rsync a b'." in page


def test_a_function_that_was_held_before_is_refused_too(tree):
    with on_scratch_disk(), pytest.raises(PermissionError, match="os.remove"):
        HELD["remove"]("log.txt")
    assert (tree / "log.txt").exists()


def test_a_pipe_of_the_disk_and_links_in_a_circle(tree):
    """A rename would take a real pipe's place; of links that lead in a circle the system says so."""
    os.mkfifo("pipe")
    for link, target in (("one", "other"), ("other", "one")):
        os.symlink(target, link)
    with on_scratch_disk():
        os.rename("log.txt", "pipe")
        assert Path("pipe").read_text() == "a long log\n" and not os.path.exists("log.txt")
        for flags in (os.O_RDONLY, os.O_WRONLY | os.O_TRUNC):
            with pytest.raises(OSError, match="Too many levels of symbolic links: 'one'"):
                os.open("one", flags)
    assert Path("pipe").is_fifo() and Path("log.txt").read_text() == "a long log\n"
    assert os.readlink("one") == "other"


@pytest.mark.parametrize(
    "command",
    [
        ["git", "-C", "/tmp", "rev-parse", "HEAD"],
        "git rev-parse --short HEAD 2>/dev/null",
        ["/usr/bin/nvidia-smi", "-L"],
        "nvidia-smi --query-gpu=memory.used --format=csv | tail -n 1",
        ["/bin/sh", "-c", "uname -a"],
        ["nvcc", "--version"],
    ],
)
def test_programs_that_only_read_are_started(command):
    assert module_of_disk.is_only_read(command)


@pytest.mark.parametrize(
    "command",
    [
        ["git", "checkout", "."],
        "git status && rm x",
        "cat a > b",
        "ls | tee b",
        ["python", "train.py"],
        ["sh", "-c", "rm x"],
        "echo `rm x`",
        ["git", "diff", "--output=x"],
        "",
        [],
        ["bash", "run.sh"],
        "head x; touch y",
    ],
)
def test_programs_that_may_write_are_not(command):
    assert not module_of_disk.is_only_read(command)


def test_a_failed_program_leaves_the_disk_too(tree, capsys):
    before = seen(tree)
    text = HABITS["a log folder that is emptied first"] + "\nraise RuntimeError('no data')"
    assert main(["report", write_script(tree, text)]) == 2
    assert "no data" in capsys.readouterr().err and seen(tree) == before


def heed_interrupts() -> None:
    """A job that a shell has put in the background ignores them, and so do its children."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL, None])
def test_a_command_that_ends_is_stopped_or_killed_leaves_the_disk(tree, how):
    """The program writes, and leaves something to be done at the exit and in a thread; then it waits or trains on."""
    before = seen(tree)
    text = "".join(
        HABITS[name]
        for name in (
            "shutil copies and moves",
            "a log is gone on with",
            "what is left for the exit",
            "logging",
        )
    )
    text += "import threading, time\n"
    text += "threading.Thread(target=lambda: (time.sleep(2), open('log.txt', 'w')), daemon=True).start()\n"
    text += "print('written', flush=True)\n" + ("time.sleep(60)" if how else "")
    place = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path), TMPDIR=str(tree.parent))
    command = [sys.executable, "-m", "stepscope", "report", write_script(tree, text)]
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=place,
        preexec_fn=heed_interrupts,  # noqa: PLW1509 - no thread runs here
    )
    for line in child.stdout:
        if how and "written" in line:
            time.sleep(0.1)
            child.send_signal(how)
            break
    said, _ = child.communicate()
    assert child.returncode == {signal.SIGINT: 130, signal.SIGKILL: -9, None: 0}[how], said
    assert seen(tree) == before
    left = [path for path in os.listdir(tree.parent) if path.startswith("stepscope-")]
    assert len(left) == (how == signal.SIGKILL)


def landlock() -> bool:
    """Whether the kernel can seal a process, asked as stepscope asks it."""
    return ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1) > 0


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or not landlock(), reason="a kernel without Landlock"
)
def test_the_kernel_refuses_what_passes_every_door(tree):
    before, script = seen(tree), write_script(tree, PAST_EVERY_DOOR)
    place = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    command = [sys.executable, "-m", "stepscope", "report", script, "--film", "film.html"]
    child = subprocess.run(command, capture_output=True, text=True, env=place, check=False)
    assert child.returncode == 0, child.stderr
    assert (tree / "film.html").stat().st_size > 1000
    (tree / "film.html").unlink()
    after = seen(tree)
    assert {path: state[2:] for path, state in after.items()} == {
        path: state[2:] for path, state in before.items()
    }


def test_a_model_is_downloaded_once_and_a_checkpoint_is_not_found_again(tree, monkeypatch):
    """Every trace of a report begins on the disk as it was found, but for the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tree.parent / "cache"))
    text = """
cache = os.environ["XDG_CACHE_HOME"] + "/hub"
times = len(os.listdir(cache)) if os.path.exists(cache) else 0
os.makedirs(cache, exist_ok=True)
open(f"{cache}/{times}", "w").close()
print("downloads", times, "resumes", os.path.exists("resume.pt"))
torch.save(state(), "resume.pt")
"""
    script = Script(write_script(tree, text))
    with on_scratch_disk(), contextlib.redirect_stdout(io.StringIO()) as said:
        for _ in range(3):
            trace_script(script)
    assert said.getvalue().splitlines() == [f"downloads {n} resumes False" for n in range(3)]
    assert not (tree.parent / "cache").exists()


def test_a_large_data_set_is_mapped_and_not_copied(tree, monkeypatch):
    monkeypatch.setattr(module_of_disk, "LARGE_BYTES", 999)
    before = seen(tree)
    text = """
import numpy as np
tokens = np.memmap("data/tokens.bin", dtype=np.uint16)
tokens[:] = 7
assert tokens.sum() == 7 * 500 and np.fromfile("data/tokens.bin", dtype=np.uint16).sum() == 0
assert np.memmap("data/tokens.bin", np.uint8, "r", offset=10).size == 990
"""
    assert len(trace_script(Script(write_script(tree, text))).events) > 0 and seen(tree) == before


def test_where_there_is_no_scratch_disk_what_would_write_is_refused(tree, monkeypatch):
    """Windows, whose paths have other rules: tried here without doors."""
    monkeypatch.setattr(module_of_disk, "CAN_REDIRECT", False)
    before = seen(tree)
    text = """
import tempfile
with tempfile.TemporaryDirectory() as folder:
    open(folder + "/x", "w").close()
for write in (lambda: open("best.pt", "wb"), lambda: torch.save(1, "best.pt"), lambda: os.remove("log.txt"),
              lambda: os.replace("log.txt", "other"), lambda: os.mkdir("new"), lambda: os.utime("log.txt")):
    try:
        write()
    except PermissionError as error:
        assert "STEPSCOPE_REPORT" in str(error)
    else:
        raise AssertionError("it wrote")
"""
    assert len(trace_script(Script(write_script(tree, text))).events) > 0 and seen(tree) == before
