"""Start a JupyterLab as a reader would, wait until it answers, and end it with everything it started."""

import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent
QUIET_LAB = (
    "--no-browser",
    "--allow-root",
    "--ip=127.0.0.1",
    "--ServerApp.port_retries=0",
    "--LabApp.news_url=None",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
)


def free_port() -> int:
    """A TCP port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def running_server(
    command: list[str], url: str, *, folder: Path, seconds: float = 120
) -> Iterator[Path]:
    """Start a server and wait until ``url`` answers; gives its log, and ends it with all that it started."""
    log = folder / "server.log"
    with log.open("w") as output:
        server = subprocess.Popen(
            command, cwd=ROOT, stdout=output, stderr=output, start_new_session=True
        )
    try:
        deadline = time.monotonic() + seconds
        while True:
            try:
                with urllib.request.urlopen(url, timeout=5):
                    break
            except OSError:
                assert server.poll() is None, f"{command} ended:\n{log.read_text()}"
                assert time.monotonic() < deadline, (
                    f"{url} did not answer in {seconds} s:\n{log.read_text()}"
                )
                time.sleep(0.2)
        yield log
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait(20)
