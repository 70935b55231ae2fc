"""The limits of a class's hub, each tried on a process, a folder or a clock of its own."""

import asyncio
import subprocess
import sys

import pytest

from course.hub.limits import (
    LONGEST_WAIT_SECONDS,
    Cards,
    Guesses,
    NoRoom,
    bytes_under,
    limit_process,
    refuse_full_home,
)

MIB = 2**20


def run_limited(code: str, **limits) -> subprocess.CompletedProcess:
    """A Python of its own under limits of the hub."""
    limits = {"memory_bytes": 1024 * MIB, "file_bytes": 1024 * MIB, "num_processes": 4096} | limits
    return subprocess.run(
        [sys.executable, "-c", code],
        preexec_fn=lambda: limit_process(**limits),
        capture_output=True,
        check=True,
        text=True,
        timeout=60,
    )


@pytest.mark.skipif(sys.platform != "linux", reason="macOS enforces no limit")
def test_memory_and_a_file_end_at_their_limits_and_the_process_lives_on(tmp_path):
    code = f"""
try:
    bytearray({200 * MIB})
except MemoryError:
    print("memory")
file = open({str(tmp_path / "large")!r}, "wb")
try:
    for _ in range(8):
        file.write(bytes({MIB}))
        file.flush()
except OSError as error:
    print(error.strerror, file.tell() // {MIB})
"""
    assert (
        run_limited(code, memory_bytes=100 * MIB, file_bytes=4 * MIB).stdout
        == "memory\nFile too large 4\n"
    )
    assert run_limited(code).stdout == ""


def test_the_limit_of_processes_reaches_those_that_a_student_starts():
    child = "import resource; print(resource.getrlimit(resource.RLIMIT_NPROC)[0])"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    assert run_limited(code, num_processes=333).stdout == "333\n"


def test_a_home_is_refused_from_its_limit_on(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/file").write_bytes(b"1" * 3 * MIB)
    (tmp_path / "link").symlink_to(sys.executable)
    (tmp_path / "hole").touch()
    assert 3 * MIB <= bytes_under(tmp_path) < 3 * MIB + 16_384
    refuse_full_home(tmp_path, 4 * MIB)
    refuse_full_home(tmp_path / "not made yet", 0)
    with pytest.raises(NoRoom, match="Your files take 0.0 GB") as refusal:
        refuse_full_home(tmp_path, 2 * MIB)
    assert "Your files take" in refusal.value.jupyterhub_message


def test_servers_are_spread_over_the_cards_and_an_ended_one_makes_room():
    cards = Cards(("0", "1", "2"))
    drawn = {f"student{number}": cards.card_of(f"student{number}") for number in range(20)}
    assert sorted(map(list(drawn.values()).count, cards.names)) == [6, 7, 7]
    for student in [student for student, card in drawn.items() if card == "1"]:
        cards.free(student)
    assert [cards.card_of(student) for student in ("late", "later")] == ["1", "1"]
    assert Cards(()).card_of("ada") is None


@pytest.fixture
def waits(monkeypatch):
    """How long each guess would have waited."""
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    monkeypatch.setattr("course.hub.limits.asyncio.sleep", sleep)
    return slept


def test_wrong_guesses_wait_longer_and_a_right_one_starts_anew(waits):
    guesses = Guesses()

    async def guess(answer, address="10.0.0.7"):
        async def judge():
            return answer

        return await guesses.judged(address, judge)

    async def attack():
        for _ in range(12):
            assert await guess(None) is None
        assert await guess("ann", "10.0.0.8") == "ann"
        assert await guess("eve") == "eve"
        await guess(None)

    asyncio.run(attack())
    assert waits[:5] == [0, 0, 0, 0.25, 0.5] and waits[11] == LONGEST_WAIT_SECONDS
    assert waits[12:] == [0, LONGEST_WAIT_SECONDS, 0]


def test_guesses_made_at_once_are_judged_one_after_the_other(waits):
    guesses, running, most = Guesses(), 0, 0

    async def judge():
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(3):
            await asyncio.get_running_loop().run_in_executor(None, lambda: None)
        running -= 1

    async def attack():
        await asyncio.gather(*(guesses.judged("10.0.0.7", judge) for _ in range(20)))

    asyncio.run(attack())
    assert most == 1 and sum(waits) > 12 * LONGEST_WAIT_SECONDS
