"""Programs with the habits of training scripts that write: each finds again what it wrote, and says so by an assert.

Each text stands between ``BEGIN`` and ``END`` and is run in a folder with ``best.pt``, ``log.txt`` and others.
"""

BEGIN = """
import os
import torch
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
def train():
    loss = model(torch.randn(8, 16, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
def state():
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 7,
            "values": torch.tensor([7, 8])}
"""

END = """
for _ in range(9):
    train()
"""

HABITS = {
    "a checkpoint through an open file": """
with open("best.pt", "wb") as f:
    torch.save(state(), f)
assert torch.load("best.pt", map_location="cuda")["step"] == 7
""",
    "saved, loaded and resumed": """
train()
torch.save(state(), "last.pt")
found = torch.load("last.pt", map_location="cuda", weights_only=True)
model.load_state_dict(found["model"])
optimizer.load_state_dict(found["optimizer"])
assert found["model"]["0.weight"].is_cuda and found["model"]["0.weight"].shape == (32, 16)
assert found["values"].is_cuda and found["values"].tolist() == [7, 8]
""",
    "the best so far by os.replace": """
torch.save(state(), "best.pt.tmp")
os.replace("best.pt.tmp", "best.pt")
assert not os.path.exists("best.pt.tmp") and torch.load("best.pt", map_location="cpu")["step"] == 7
assert torch.load("best.pt")["model"]["2.bias"].device.type == "cuda"
""",
    "a log folder that is emptied first": """
import shutil
shutil.rmtree("runs", ignore_errors=False)
assert not os.path.exists("runs/old/events.0") and not os.path.isdir("runs")
os.makedirs("runs/new")
open("runs/new/events.1", "w").write("1")
assert os.listdir("runs") == ["new"] and [f for _, _, fs in os.walk("runs") for f in fs] == ["events.1"]
""",
    "a data set's cache": """
from pathlib import Path
cache = Path("data") / "processed" / "train.npz"
import numpy as np
if not cache.exists():
    cache.parent.mkdir(parents=True, exist_ok=True)
    np.savez(cache, x=np.arange(10))
assert np.load(cache)["x"].sum() == 45 and "processed" in [p.name for p in Path("data").iterdir()]
assert sorted(Path("data").rglob("*.npz")) == [cache]
""",
    "csv": """
import csv
with open("results.csv", "w", newline="") as f:
    csv.writer(f).writerows([["step", "loss"], [1, 2.0]])
assert list(csv.DictReader(open("results.csv")))[0]["loss"] == "2.0"
""",
    "an event file in a thread": """
import threading
def writes():
    with open("runs/events.9", "ab") as f:
        f.write(b"event")
thread = threading.Thread(target=writes)
thread.start(); thread.join()
assert os.path.getsize("runs/events.9") == 5
""",
    "sqlite": """
import sqlite3
with sqlite3.connect("results.db") as base:
    assert base.execute("select n from old").fetchall() == [(3,)]
    base.execute("insert into old values (4)")
base.close()
assert sqlite3.connect("results.db").execute("select sum(n) from old").fetchone() == (7,)
""",
    "a folder for temporary files": """
import tempfile
with tempfile.TemporaryDirectory() as folder:
    open(os.path.join(folder, "x"), "w").close()
    assert os.listdir(folder) == ["x"]
assert not os.path.exists(folder)
with tempfile.NamedTemporaryFile("w", dir=".", suffix=".part", delete=False) as f:
    f.write("whole")
os.rename(f.name, "data/whole.txt")
assert open("data/whole.txt").read() == "whole" and not os.path.exists(f.name)
with tempfile.NamedTemporaryFile(dir="data") as f:
    assert os.path.basename(f.name) in os.listdir("data")
""",
    "an old file is moved over": """
os.rename("log.txt", "data/0.txt")
assert open("data/0.txt").read() == "a long log\\n" and not os.path.isfile("log.txt")
""",
    "a log is gone on with": """
with open("log.txt", "a") as f:
    f.write("more")
assert open("log.txt").read() == "a long log\\nmore" and os.stat("log.txt").st_size == 15
""",
    "bytes in the middle": """
with open("log.txt", "r+") as f:
    f.seek(2); f.write("LONG")
os.truncate("log.txt", 6)
assert open("log.txt").read() == "a LONG"
os.chmod("log.txt", 0o600); os.utime("log.txt", (1, 1))
assert os.stat("log.txt").st_mtime == 1 and os.stat("log.txt").st_mode & 0o777 == 0o600
""",
    "np.memmap": """
import numpy as np
tokens = np.memmap("data/tokens.bin", dtype=np.uint16, mode="r+")
tokens[:] = 5; tokens.flush()
assert np.fromfile("data/tokens.bin", dtype=np.uint16).sum() == 5 * len(tokens)
new = np.memmap("data/new.bin", dtype=np.uint8, mode="w+", shape=(9,)); new[:] = 1; new.flush()
np.ones(3, dtype=np.uint8).tofile("data/three.bin"); np.save("data/a.npy", np.eye(2))
assert np.load("data/a.npy").trace() == 2 and os.path.getsize("data/three.bin") == 3
""",
    "folders and their lists": """
import glob
os.mkdir("out")
for n in range(3):
    open(f"out/{n}.txt", "x").close()
os.remove("out/1.txt"); os.unlink("data/3.txt")
assert sorted(os.listdir("out")) == ["0.txt", "2.txt"] and len(glob.glob("data/*.txt")) == 19
assert sorted(e.name for e in os.scandir("out") if e.is_file()) == ["0.txt", "2.txt"]
try:
    os.mkdir("out")
except FileExistsError as error:
    assert error.filename == "out"
try:
    os.rmdir("data")
except OSError as error:
    assert "not empty" in str(error)
try:
    open("nowhere/x.txt", "w")
except FileNotFoundError as error:
    assert "nowhere/x.txt" in str(error) and "stepscope-" not in str(error)
""",
    "shutil copies and moves": """
import shutil
shutil.copytree("data", "copy")
shutil.copy2("log.txt", "copy/log.txt"); shutil.move("data", "moved")
assert len(os.listdir("copy")) == len(os.listdir("moved")) + 1 and not os.path.exists("data")
assert open("moved/7.txt").read() == "7" * 7 == open("copy/7.txt").read()
open("moved/7.txt", "w").write("other"); os.remove("moved/8.txt"); os.rename("moved", "again")
assert open("again/7.txt").read() == "other" and not os.path.exists("again/8.txt") and len(os.listdir("again")) == 20
shutil.make_archive("packed", "zip", "again"); shutil.unpack_archive("packed.zip", "unpacked")
assert open("unpacked/7.txt").read() == "other"
""",
    "logging": """
import logging
handler = logging.FileHandler("log.txt", mode="w")
log = logging.Logger("of the script"); log.addHandler(handler); log.warning("hello")
assert open("log.txt").read() == "hello\\n"
""",
    "pathlib and json": """
import json
from pathlib import Path
Path("config.json").write_text(json.dumps({"lr": 1e-3}))
assert json.loads(Path("config.json").read_text())["lr"] == 1e-3 and Path("config.json").stat().st_size == 13
Path("config.json").rename("c.json"); Path("c.json").unlink(); Path("touched").touch(); Path("log.txt").unlink()
assert not Path("c.json").exists() and Path("touched").is_file() and not Path("log.txt").exists()
Path("latest").symlink_to("runs"); os.link("best.pt", "hard.pt")
assert Path("latest/old/events.0").read_text() == "0" and Path("latest").resolve() == Path("runs").resolve()
""",
    "flags": """
f = os.open("log.txt", os.O_WRONLY | os.O_TRUNC); os.write(f, b"new"); os.fchmod(f, 0o640); os.close(f)
f = os.open("lock", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644); os.close(f)
assert open("log.txt").read() == "new" and os.path.exists("lock")
try:
    os.open("lock", os.O_CREAT | os.O_EXCL)
except FileExistsError:
    os.remove("lock")
folder = os.open("data", os.O_RDONLY)
os.unlink("4.txt", dir_fd=folder); os.mkdir("d", dir_fd=folder); os.close(folder)
assert not os.path.exists("data/4.txt") and os.path.isdir("data/d")
""",
    "safetensors": """
from safetensors.torch import load_file, save_file
save_file(model.state_dict(), "data/model.safetensors", metadata={"format": "pt"})
found = load_file("data/model.safetensors")
assert found["0.weight"].shape == (32, 16) and os.path.getsize("data/model.safetensors") > 4 * 32 * 16
model.load_state_dict(found)
""",
    "pickle and archives": """
import gzip, pickle, tarfile, zipfile
with open("state.pkl", "wb") as f:
    pickle.dump(state(), f)
found = pickle.load(open("state.pkl", "rb"))
assert found["model"]["0.weight"].is_cuda
with zipfile.ZipFile("a.zip", "w") as z:
    z.write("log.txt")
with tarfile.open("a.tar.gz", "w:gz") as t:
    t.add("state.pkl")
with gzip.open("a.gz", "wt") as z:
    z.write("text")
assert zipfile.ZipFile("a.zip").read("log.txt") == b"a long log\\n" and gzip.open("a.gz", "rt").read() == "text"
assert tarfile.open("a.tar.gz").getnames() == ["state.pkl"]
""",
    "another folder to work in": """
os.makedirs("outputs/today"); home = os.getcwd()
os.chdir("outputs/today")
open("here.txt", "w").write("here")
assert os.getcwd() == home + "/outputs/today" and os.path.abspath("here.txt") == home + "/outputs/today/here.txt"
assert os.listdir(".") == ["here.txt"] and os.path.exists("../../best.pt")
""",
    "workers by fork": """
import multiprocessing
def work(n):
    with open(f"data/{n}.txt", "w") as f:
        f.write("from a worker")
worker = multiprocessing.get_context("fork").Process(target=work, args=(5,))
worker.start(); worker.join()
assert open("data/5.txt").read() == "from a worker"
""",
    "a module that it writes itself": """
import importlib, sys
open("made_by_it.py", "w").write("VALUE = 41 + 1")
sys.path.insert(0, os.getcwd()); importlib.invalidate_caches()
import made_by_it, beside
assert made_by_it.VALUE == 42 and beside.VALUE == 1
""",
    "checkpoints of which the oldest go": """
import glob
torch.save(state(), "ck/4.pt")
found = sorted(glob.glob("ck/*.pt"), key=os.path.getmtime)
assert len(found) == 4 and found[-1] == "ck/4.pt"
for path in found[:-2]:
    os.remove(path)
os.symlink("4.pt", "ck/latest")
assert sorted(os.listdir("ck")) == ["3.pt", "4.pt", "latest"] and torch.load("ck/latest")["step"] == 7
""",
    "links, and what they lead to": """
with open("link", "a") as f:
    f.write("x")
assert os.path.islink("link") and open("log.txt").read() == "a long log\\nx" and os.path.samefile("link", "log.txt")
os.remove("link")
assert not os.path.lexists("link") and os.path.exists("log.txt")
""",
    "older doors": """
import codecs, fileinput, io, shelve
class Mine(io.FileIO):
    pass
with Mine("raw.bin", "w") as f:
    f.write(b"abc")
assert isinstance(f, io.FileIO) and not isinstance(open("raw.bin", "rb", buffering=0), Mine)
with shelve.open("shelf") as shelf:
    shelf["a"] = 1
for line in fileinput.input("log.txt", inplace=True):
    print(line.upper(), end="")
assert shelve.open("shelf")["a"] == 1 and open("log.txt").read() == "A LONG LOG\\n"
f = open("named.txt", "w")
assert f.name == "named.txt"
""",
    "text of numpy, and what C++ writes": """
import numpy as np
np.savetxt("eye.txt", np.eye(2))
assert np.loadtxt("eye.txt").trace() == 2
torch.UntypedStorage.from_file("mapped.bin", True, 8); torch.from_file("mapped.too", shared=True, size=8)
torch.save(state(), "own.pt")
assert torch.load("own.pt", mmap=True, map_location="cpu")["step"] == 7
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
    train()
seen.export_chrome_trace("trace.json")
assert os.path.exists("trace.json") and os.path.getsize("mapped.bin") == 8
""",
    "what is left for the exit": """
import atexit
atexit.register(lambda: open("log.txt", "w").write("the end"))
""",
    "a child that reads": """
import subprocess
assert subprocess.run(["uname"], capture_output=True).returncode == 0
""",
}

REFUSED = {
    "a child that may write": (
        'import subprocess\nsubprocess.run(["touch", "touched"])',
        "touch touched",
    ),
    "a shell": ('os.system("echo 1 > log.txt")', "echo 1 > log.txt"),
    "a shell's word": (
        'import subprocess\nsubprocess.check_output("cat log.txt > b", shell=True)',
        "> b",
    ),
    "a spawned process": (
        'import multiprocessing\nmultiprocessing.get_context("spawn").Process().start()',
        "spawn",
    ),
    "a C library's own open": ("write_past()", "for writing past"),
    "a real file's rights": ('f = open("log.txt")\nos.fchmod(f.fileno(), 0o600)', "os.chmod"),
}
"""Programs that are refused before they do it, and a word of the sentence."""

PAST_EVERY_DOOR = """
import ctypes
ctypes.CDLL(None).rename(b"log.txt", b"lost.txt"); ctypes.CDLL(None).unlink(b"best.pt")
"""
"""What a library in C or Rust does that is on no list: nothing of Python's sees it."""
