"""The table of promises; the promises themselves are measured by `make bench`, not by a test."""

import subprocess
import sys

from lab_server import ROOT

PLANTED = """
from dev.bench import Row

def run():
    return [Row(name="fast enough", ratio=9.0, at_least=8), Row(name="small enough", ratio={ratio}, at_most=1.5)]
"""


def bench_with(tmp_path, **sources):
    """`python -m dev.bench` in a folder whose benchmarks are these."""
    folder = tmp_path / "dev" / "bench"
    folder.mkdir(parents=True)
    for name in ("__init__.py", "__main__.py"):
        (folder / name).write_text((ROOT / "dev" / "bench" / name).read_text())
    for name, source in sources.items():
        (folder / f"bench_{name}.py").write_text(source)
    command = [sys.executable, "-m", "dev.bench"]
    return subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True)


def test_kept_promises(tmp_path):
    done = bench_with(tmp_path, planted=PLANTED.format(ratio=1.5))
    assert done.returncode == 0, done.stderr
    fast, small = done.stdout.splitlines()[-2:]
    assert fast.split() == ["ok", "fast", "enough", "9.00×", "at", "least", "8×"]
    assert small.split() == ["ok", "small", "enough", "1.50×", "at", "most", "1.5×"]


def test_a_broken_promise_fails(tmp_path):
    done = bench_with(tmp_path, planted=PLANTED.format(ratio=1.51))
    assert done.returncode == 1
    assert "NO" in done.stdout.splitlines()[-1]


def test_a_benchmark_that_raises_does_not_hide_the_others(tmp_path):
    done = bench_with(tmp_path, broken="def run():\n    1 / 0", planted=PLANTED.format(ratio=1))
    assert done.returncode == 1
    assert "fast enough" in done.stdout and "broken: broken" in done.stdout
    assert "ZeroDivisionError" in done.stderr
