"""A hub, and then its proxy, killed with -9: a student's kernel, its names and her card are as they were."""

from types import SimpleNamespace

import pytest
from lab_server import free_port

from course import load

pytestmark = pytest.mark.serial
PASSWORD = "three of us"


def test_a_kernel_and_its_card_outlive_a_hub_and_a_proxy_that_are_killed(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMKIT_HUB_CARDS", "5,6")
    port, folder = free_port(), tmp_path / "hub"
    ann = load.Student(name="ann", hub=f"http://127.0.0.1:{port}", password=PASSWORD)
    ask = "import os; assert (kept, os.environ['CUDA_VISIBLE_DEVICES']) == (42, '5')"
    with load.running_hub(folder, PASSWORD, port) as hub:
        ann.log_in()
        ann.open_chapter()
        assert ann.run("kept = 6 * 7")[0] == ""
        assert ann.run(ask)[0] == ""
        hub.kill()
        hub.wait(60)
    with load.running_hub(folder, PASSWORD, port) as hub:
        ann.log_in()
        ann.connect()
        assert ann.run(ask)[0] == ""
        bob = load.Student(name="bob", hub=ann.hub, password=PASSWORD)
        bob.log_in()
        bob.open_chapter()
        told = "import os; assert os.environ['CUDA_VISIBLE_DEVICES'] == '6'"
        assert bob.run(told)[0] == "", "ann's card was drawn before the hub was killed"
        [proxy] = [
            each for each in hub.children() if "configurable-http-proxy" in str(each.cmdline())
        ]
        proxy.kill()
        proxy.wait(60)
        lives = SimpleNamespace(poll=lambda: None if hub.is_running() else 1)
        load.wait_for(f"{ann.hub}/hub/health", lives, folder / "hub.log")  # it starts another
        for student in (ann, bob):
            student.connect()
        assert [ann.run(ask)[0], bob.run(told)[0]] == ["", ""]
