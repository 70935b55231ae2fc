"""A hub that was killed: its port is kept, and its proxy ended. Real processes and ports."""

import socket
import subprocess
import sys

import pytest

from course.hub.restart import answers, end_orphaned_proxy, kept_port


def test_the_port_stays_until_another_program_has_it(tmp_path):
    port = kept_port(tmp_path)
    assert kept_port(tmp_path) == port
    with socket.create_server(("127.0.0.1", port)):
        assert answers(port) and (other := kept_port(tmp_path)) != port
    assert kept_port(tmp_path) == other
    (tmp_path / "hub_port").write_text("none")
    assert not answers(kept_port(tmp_path))


@pytest.fixture
def started(tmp_path):
    """Starts a process of a name that sleeps, and writes its number as the hub's proxy."""
    processes = []

    def start(name: str) -> subprocess.Popen:
        program = tmp_path / name
        program.write_text("import time; print(flush=True); time.sleep(100)")
        processes.append(subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE))
        # it runs: for a moment after exec Linux shows no command line
        processes[-1].stdout.readline()
        (tmp_path / "proxy.pid").write_text(str(processes[-1].pid))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.skipif(sys.platform != "linux", reason="what a process is stands in Linux's /proc")
def test_only_the_proxy_of_a_hub_that_is_gone_is_ended(tmp_path, started):
    end_orphaned_proxy(tmp_path)  # no hub was here
    another = started("another-program")
    kept_port(tmp_path)
    end_orphaned_proxy(tmp_path)
    assert another.poll() is None, "the number was given to another program meanwhile"
    proxy = started("configurable-http-proxy")
    with socket.create_server(("127.0.0.1", kept_port(tmp_path))):
        end_orphaned_proxy(tmp_path)
        assert proxy.poll() is None, "its hub lives"
    end_orphaned_proxy(tmp_path)
    assert proxy.wait(timeout=100) is not None
