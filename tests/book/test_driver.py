"""What ``nvidia-smi`` answers, played by a script of that name on PATH; no card and no torch is needed."""

import pytest

from book.driver import DriverAnswer, ask_driver, gpu_cap_bytes, visible_gpus
from memkit.units import GIB, MIB

# name, uuid, driver_version, memory.total, memory.used, memory.free, compute_cap of a machine with two cards
TWO_CARDS = """\
NVIDIA H200, GPU-91a535d7-4157-249a-65e5-73883afa626e, 580.82.07, 143771, 4, 143158, 9.0
NVIDIA GeForce RTX 4090, GPU-c522954a-1111-529b-aa8c-222222222222, 580.82.07, 24564, 300, 23790, 8.9
"""


@pytest.fixture
def machine(tmp_path):
    """Make an environment in which ``nvidia-smi`` prints a text and exits with a code."""

    def with_answer(text: str, code: int = 0, **variables) -> dict[str, str]:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        (folder / "answer").write_text(text)
        script = folder / "nvidia-smi"
        script.write_text(
            f'#!/bin/sh\necho "$@" > "{folder}/asked"\ncat "{folder}/answer"\nexit {code}\n'
        )
        script.chmod(0o755)
        return {"PATH": f"{folder}:/usr/bin:/bin", **variables}

    return with_answer


def test_cards_are_read(machine):
    answer = ask_driver(machine(TWO_CARDS))
    first, second = answer.gpus
    assert (first.name, first.driver_version) == ("NVIDIA H200", "580.82.07")
    assert (first.total_bytes, first.used_bytes, first.free_bytes) == (
        143771 * MIB,
        4 * MIB,
        143158 * MIB,
    )
    assert (first.compute_capability, second.compute_capability) == ((9, 0), (8, 9))
    assert answer.problem == ""


def test_what_the_driver_does_not_tell_is_none(machine):
    line = "NVIDIA GB10, GPU-1, 580.95.05, [N/A], [N/A], [Insufficient Permissions], [N/A]\n"
    (gpu,) = ask_driver(machine(line)).gpus
    assert gpu.name == "NVIDIA GB10"
    assert (gpu.total_bytes, gpu.used_bytes, gpu.free_bytes, gpu.compute_capability) == (None,) * 4


def test_no_nvidia_smi_is_no_card_and_no_problem(tmp_path):
    assert ask_driver({"PATH": str(tmp_path)}) == DriverAnswer()


def test_a_driver_that_does_not_answer_is_a_problem(machine):
    words = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    answer = ask_driver(machine(f"{words}\nMake sure that ...\n", code=9))
    assert answer.gpus == ()
    assert answer.problem == f"nvidia-smi fails: {words}"
    assert ask_driver(machine("", code=6)).problem == "nvidia-smi fails: exit 6"


@pytest.mark.parametrize(
    "setting, names",
    [
        (None, ["NVIDIA H200", "NVIDIA GeForce RTX 4090"]),
        ("1", ["NVIDIA GeForce RTX 4090"]),
        ("1,0", ["NVIDIA GeForce RTX 4090", "NVIDIA H200"]),
        ("GPU-c522", ["NVIDIA GeForce RTX 4090"]),
        ("MIG-1234", ["NVIDIA H200"]),
        ("", []),
        ("-1", []),
        ("2", []),  # the first number above the last card
        ("-1,0", []),  # CUDA stops reading at the first number that is no card
        ("0,7,1", ["NVIDIA H200"]),
        ("GPU-ffff", []),
    ],
)
def test_visible_cards_as_cuda_reads_the_variable(machine, setting, names):
    gpus = ask_driver(machine(TWO_CARDS)).gpus
    assert [gpu.name for gpu in visible_gpus(gpus, setting)] == names


def test_hidden_cards_are_said(machine):
    answer = ask_driver(machine(TWO_CARDS, CUDA_VISIBLE_DEVICES=""))
    assert answer == DriverAnswer(problem="CUDA_VISIBLE_DEVICES hides every card")


@pytest.mark.parametrize(
    "text, size", [("2", 2 * GIB), ("0.5", GIB // 2), (" 1e1 ", 10 * GIB), ("", None)]
)
def test_cap_is_read_in_gib(text, size):
    assert gpu_cap_bytes({"MEMKIT_GPU_GIB": text}) == size


@pytest.mark.parametrize(
    "text", ["0", "-1", "two", "nan", "inf", "2 GiB", "1/0", "0.0000000001", "1e400", "1e-400"]
)
def test_a_cap_that_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="MEMKIT_GPU_GIB='.*' is not a number of GiB above zero"):
        gpu_cap_bytes({"MEMKIT_GPU_GIB": text})
