"""What a student's program can do to a teacher's machine: each attack once, and the machine looked at afterwards."""

import socket
import subprocess
import time
from pathlib import Path

import pytest
from handing_in import needs_sandbox

from course.labs.answers import Answers
from course.labs.sandbox import FILE_BYTES, MISSING, ROOT, require_sandbox, sandboxed

pytestmark = needs_sandbox
TRIES = """
def tried(attempt):
    try:
        return attempt()
    except BaseException as error:
        return type(error).__name__
"""


@pytest.fixture
def course(tmp_path):
    """A teacher's folder: a gradebook, solutions, and two students who handed in, one of them a link."""
    for place in ("submitted/ada/lab2", "submitted/eve/lab2", "source/lab2"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "lab2.ipynb").write_text("theirs")
    (tmp_path / "gradebook.db").write_text("marks")
    (tmp_path / "submitted/eve/lab2/peek").symlink_to(tmp_path / "gradebook.db")
    return tmp_path


def seen_by(course: Path, code: str) -> object:
    """What ``value`` is after the code has run as eve's."""
    with Answers([TRIES, code, ["value"]], course / "submitted/eve/lab2", "eve") as answers:
        return answers.answer("value")


def outside(course: Path) -> dict[str, str]:
    """All files of the teacher's folder."""
    return {str(path): path.read_text() for path in course.rglob("*") if path.is_file()}


READS = {
    "the gradebook": "open('{course}/gradebook.db').read()",
    "solutions of the labs": "open('{course}/source/lab2/lab2.ipynb').read()",
    "a neighbour's answer": "open('{course}/submitted/ada/lab2/lab2.ipynb').read()",
    "the gradebook by a link that was handed in": "open('peek').read()",
    "the records of the tasks": "open('{root}/course/labs/lab_2.py').read()",
    "the judges": "__import__('book.exercises', fromlist=['x']).exercises_of(2)",
    "the labs": "__import__('course.labs', fromlist=['x']).load_lab('lab2')",
    "another process": "[number for number in __import__('os').listdir('/proc') if number.isdecimal()][2]",
    "the teacher's key": "open('{home}/.profile').read() + open('/etc/shadow').read()",
}
WRITES = {
    "the gradebook": "open('{course}/gradebook.db', 'w').write('75')",
    "a neighbour's folder": "__import__('shutil').rmtree('{course}/submitted/ada')",
    "what was handed in": "open('lab2.ipynb', 'w').write('better')",
    "the kit that all are graded with": "open('{root}/memkit/units.py', 'a').write('#')",
    "more than its home holds": "__import__('pathlib').Path('much').write_bytes(bytes({too_much}))",
}


@pytest.mark.parametrize("attack", READS)
def test_what_is_not_a_student_s_cannot_be_read(course, attack):
    code = READS[attack].format(course=course, root=ROOT, home=Path.home())
    seen = seen_by(course, f"value = tried(lambda: {code})")
    assert seen in (
        "FileNotFoundError",
        "ImportError",
        "ModuleNotFoundError",
        "AttributeError",
        "IndexError",
    )


@pytest.mark.parametrize("attack", WRITES)
def test_nothing_outside_is_changed(course, attack):
    before = outside(course)
    code = WRITES[attack].format(course=course, root=ROOT, too_much=FILE_BYTES + 1)
    assert seen_by(course, f"value = tried(lambda: {code})") in ("FileNotFoundError", "OSError")
    assert outside(course) == before and not (ROOT / "memkit/units.py").read_text().endswith("#")


def test_a_home_can_be_written_and_what_was_handed_in_read(course):
    code = "open('mine', 'w').write('x')\nvalue = open('lab2.ipynb').read() + open('mine').read()"
    assert seen_by(course, code) == "theirsx"
    assert not (course / "submitted/eve/lab2/mine").exists()


def test_there_is_no_network(course):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        code = f"import socket\nvalue = tried(lambda: socket.create_connection({address!r}, 5))"
        assert seen_by(course, code) in ("OSError", "ConnectionRefusedError")
        with socket.create_connection(address):
            assert server.accept()[0], "from outside it answers"


def test_no_variable_of_the_teacher_s_is_told(course, monkeypatch):
    monkeypatch.setenv("TEACHERS_TOKEN", "secret")
    seen = seen_by(course, "import os\nvalue = [sorted(os.environ), os.environ['HOME']]")
    assert "TEACHERS_TOKEN" not in seen[0] and seen[1] == "/home/student"


@pytest.mark.parametrize("last", ["", "import os; os._exit(0)"])
def test_all_that_was_started_ends_with_the_notebook(course, last):
    """A process of a new session, and one whose parent has ended."""
    code = f"""import subprocess
for command in ("sleep 601", "(sleep 602 &) ; sleep 603"):
    subprocess.Popen(["sh", "-c", command], start_new_session=True)
subprocess.run("sleep 0.5", shell=True)
value = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
{last}"""
    started = {"sleep 601", "sleep 602", "sleep 603"}
    if last:
        with pytest.raises(ChildProcessError, match="ended its own process"):
            seen_by(course, code)
    else:
        assert started <= set(seen_by(course, code).splitlines()), "they ran"
    deadline = time.monotonic() + 60
    while started & running() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not started & running()


def test_a_signal_reaches_nobody_outside(course):
    """Sent to one process of ours, so that a sandbox that leaks ends no other."""
    bystander = subprocess.Popen(["sleep", "604"])
    try:
        code = f"import os, signal\nvalue = tried(lambda: os.kill({bystander.pid}, signal.SIGKILL))"
        assert seen_by(course, code) == "ProcessLookupError"
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def running() -> set[str]:
    """Commands of this machine."""
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return set(listed.stdout.splitlines())


def test_without_bubblewrap_nothing_is_graded(course, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="sudo apt install bubblewrap"):
        seen_by(course, "value = 1")


def test_a_system_that_forbids_namespaces_is_told(monkeypatch, tmp_path):
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho 'No permissions' >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    require_sandbox()
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    with pytest.raises(RuntimeError, match="it does not start here: No permissions"):
        require_sandbox()
    assert "grade on a Linux machine" in MISSING
    assert sandboxed(["true"], tmp_path)[-1] == "true"
