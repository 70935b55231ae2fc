"""What a hub that was killed leaves behind, and how the next one takes over: its port, and its proxy."""

import os
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path


def answers(port: int, host: str = "127.0.0.1") -> bool:
    """Whether somebody listens on a TCP port."""
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


def kept_port(folder: Path) -> int:
    """The hub's own port, the same at every start: students' servers that outlived a hub know no other.

    It stands in ``hub_port`` of the folder; a new one is drawn where there is none, or where another program took it.
    """
    file = folder / "hub_port"
    with suppress(OSError, ValueError):
        if not answers(port := int(file.read_text())):
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    file.write_text(str(port))
    return port


def end_orphaned_proxy(folder: Path) -> None:
    """End the proxy of a hub that was killed: it would answer at the address in the place of the new one's.

    A proxy whose hub still answers at the kept port is left alone. Linux says what a process is; elsewhere nothing
    is ended.
    """
    with suppress(OSError, ValueError):
        pid = int((folder / "proxy.pid").read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        if b"configurable-http-proxy" not in command or answers(
            int((folder / "hub_port").read_text())
        ):
            return
        os.kill(pid, signal.SIGTERM)
        for _ in range(50):
            os.kill(pid, 0)  # raises once the process is gone
            time.sleep(0.1)
