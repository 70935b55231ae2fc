"""A file system of the students' own that is full: said in words, and the hub and who is in it go on."""

import subprocess
from pathlib import Path

import pytest
import requests
from lab_server import free_port

from course import load

pytestmark = pytest.mark.serial
PASSWORD = "three of us"


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 60 MB in memory."""
    place = tmp_path / "disk"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=60M", "tmpfs", str(place)]
    try:
        mounted = subprocess.run(words, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("only root may mount, and not everywhere")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_is_said_and_the_hub_goes_on(tmp_path, monkeypatch, small_disk):
    monkeypatch.setenv("MEMKIT_HUB_HOMES", str(small_disk))
    port = free_port()
    hub = f"http://127.0.0.1:{port}"
    with load.running_hub(tmp_path / "hub", PASSWORD, port):
        ann = load.Student(name="ann", hub=hub, password=PASSWORD)
        ann.log_in()
        ann.open_chapter()
        fill = (
            "with open('all.bin', 'wb') as file:\n    while True:\n        file.write(bytes(2**20))"
        )
        assert ann.run(fill)[0] == "OSError"  # no space left, in her own kernel
        bob = load.Student(name="bob", hub=hub, password=PASSWORD)
        with pytest.raises(requests.HTTPError) as refused:
            bob.log_in()
        assert "The disk of the class is full" in refused.value.response.text
        assert ann.run("import os; os.remove('all.bin')")[0] == ""
        cyd = load.Student(name="cyd", hub=hub, password=PASSWORD)
        cyd.log_in()
        assert Path(small_disk, "cyd/chapters/00_start_here.ipynb").is_file()
