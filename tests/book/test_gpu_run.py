"""``make record`` from end to end on the CPU; on a machine with a card each measurement against what it must be."""

import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from book import gpu_run as record
from book import measurements
from book.driver import card_by_driver_name
from book.measurements import MEASUREMENTS, Measured
from book.recordings import load_recordings
from memkit.units import GIB, KIB, MIB

pytestmark = pytest.mark.xdist_group("record")  # one dry run serves all

# As a process without ipywidgets: importing it raises.
DRY_RUN = """
import sys
sys.modules["ipywidgets"] = None
import torch
torch.set_num_threads(1)
from book.gpu_run import main
sys.exit(main(["--dry-run", "--folder", sys.argv[1]]))
"""


@pytest.fixture(scope="module")
def dry_run(tmp_path_factory):
    """The recordings of a whole dry run, by name."""
    folder = tmp_path_factory.mktemp("recordings")
    done = subprocess.run(
        [sys.executable, "-c", DRY_RUN, str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    chapters = {chapter for chapter, _ in MEASUREMENTS}
    found = [recording for chapter in chapters for recording in load_recordings(chapter, folder)]
    return {recording.name: recording for recording in found}


def test_a_dry_run_makes_every_recording_without_ipywidgets(dry_run):
    assert dry_run.keys() == {name for _, name in MEASUREMENTS}
    assert {recording.provenance["card"] for recording in dry_run.values()} == {"CPU, dry run"}


def test_a_recording_holds_formula_trace_and_measurement(dry_run):
    steps = dry_run["training_steps"]
    names = set(measurements.training_setups("cpu"))
    assert steps.timelines.keys() == {
        f"{n}, {s}" for n in names for s in ("formula", "traced", "measured")
    }
    for name in names:
        traced, measured = (
            steps.timelines[f"{name}, {source}"] for source in ("traced", "measured")
        )
        assert steps.numbers[f"{name}, measured_peak_bytes"] == measured.peak_bytes
        assert traced.peak_bytes == pytest.approx(measured.peak_bytes, rel=0.003)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def numbers_of(request, dry_run):
    """What a measurement records: in the dry run, and where there is a card, on it."""
    if request.param == "cpu":
        return lambda name: dry_run[name].numbers
    return lambda name: getattr(measurements, f"record_{name}")(request.param).numbers


def test_flash_keeps_its_output_and_one_number_per_row(numbers_of):
    numbers, heads, width = numbers_of("attention_kernels"), 16, 64
    length = numbers["seq_len"]
    output, log_sum_exp = heads * length * width * 2, heads * length * 4
    loss_and_its_gradient = 2 + 2  # a backward starts from a one in the loss's own dtype
    flash, math = (
        numbers[f"{kernel}, kept for the backward_bytes"] for kernel in ("flash", "math")
    )
    beside = flash - output - log_sum_exp
    if length == 64:  # the dry run
        assert (beside, numbers["cudnn"]) == (loss_and_its_gradient, "no such kernel here")
        assert math > 4 * flash
    assert 0 <= beside < 4 * KIB and math > heads * length * length * 2


def test_autocasts_cache_keeps_every_cast_in_inference(numbers_of):
    numbers = numbers_of("autocast")
    cached, dropped = (
        numbers[f"{kind}, peak of the forward_bytes"]
        for kind in ("inference", "inference without cache")
    )
    one_cast = (cached - dropped) // 3
    assert cached - dropped in (3 * 64 * 64 * 2, 3 * 4096 * 4096 * 2)
    assert numbers["weights_bytes"] == 4 * 2 * one_cast


@pytest.mark.serial  # beside other work gloo's threads free a set of gradients late, and the measured peak has it
def test_ranks_keep_and_send_what_the_formula_says(dry_run):
    numbers = dry_run["ranks"].numbers
    assert (numbers["ranks"], numbers["device"]) == (2, "cpu")
    for way in ("DDP", "ZeRO-3"):
        assert numbers[f"{way}, formula_peak_bytes"] == pytest.approx(
            numbers[f"{way}, measured_peak_bytes"], rel=0.005
        )
        assert numbers[f"{way}, losses off one process's by"] < 1e-5
    # the gradient, once
    assert numbers["ZeRO-3, reduce_scatter_bytes"] == numbers["DDP, allreduce_bytes"]


def test_one_card_makes_no_ranks(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    (words,) = measurements.record_ranks("cuda").numbers.values()
    assert "one card" in words


@pytest.mark.gpu
def test_gpu_ranks_keep_what_the_formula_says():
    numbers = measurements.record_ranks("cuda").numbers
    if torch.cuda.device_count() == 1:
        pytest.skip("one card")
    for way in ("DDP", "ZeRO-3"):
        assert numbers[f"{way}, formula_peak_bytes"] == pytest.approx(
            numbers[f"{way}, measured_peak_bytes"], rel=0.01
        )


def test_what_a_cpu_does_not_have_is_said_in_words(dry_run):
    for name in ("card", "context", "cublas_workspace"):
        (words,) = dry_run[name].numbers.values()
        assert words.startswith("none: a CPU")


def test_without_a_card_it_says_so_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert record.main([]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert "needs a CUDA card" in printed.err and "--dry-run" in printed.err


def test_an_old_torch_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(torch, "__version__", "2.10.1+cu128")
    assert record.main(["--dry-run"]) == 2
    assert (
        capsys.readouterr().err
        == "python -m book.gpu_run needs torch 2.11 or later, not 2.10.1+cu128.\n"
    )


def test_one_that_fails_does_not_cost_the_others(monkeypatch, tmp_path, capsys):
    def fails(device):
        raise RuntimeError("no such kernel")

    played = {
        ("01", "fails"): fails,
        ("01", "works"): lambda device: Measured(numbers={"answer": 42}),
    }
    monkeypatch.setattr(record, "MEASUREMENTS", played)
    assert record.main(["--dry-run", "--folder", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "fails: RuntimeError: no such kernel\n"
    (found,) = load_recordings("01", tmp_path)
    assert found.numbers == {"answer": 42}


def test_a_dry_run_leaves_nothing_in_the_book(monkeypatch, tmp_path):
    kept = tmp_path / "kept"
    monkeypatch.setattr(record, "FOLDER", kept)
    assert record.main(["--dry-run", "--only", "card"]) == 0
    assert not kept.exists()


def test_a_step_that_does_not_fit_is_not_run(monkeypatch):
    setups = measurements.training_setups("cuda")
    tiny = {"tiny Llama, fp32": setups["tiny Llama, fp32"]}
    monkeypatch.setattr(measurements, "training_setups", lambda device: tiny)
    monkeypatch.setattr(measurements, "usable_bytes", lambda: 64 * MIB)
    found = measurements.record_training_steps("cuda")
    assert found.numbers == {
        "tiny Llama, fp32": "not measured: larger than what is free on this card"
    }
    assert found.timelines == {}


def test_a_pretended_card_is_named_in_the_files_and_costs_a_line_for_each_thing_it_cannot_do(
    monkeypatch, tmp_path, capsys
):
    """``make record`` as it runs on a card, on a torch without CUDA: what asks the driver alone is kept."""
    known = {
        "name": "NVIDIA H200",
        "total_memory": 150_110_011_392,
        "L2_cache_size": 62_914_560,
        "shared_memory_per_multiprocessor": 233_472,
        "multi_processor_count": 132,
        "major": 9,
        "minor": 0,
    }
    pretended = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "get_device_name": lambda: "NVIDIA H200",
        "get_device_properties": lambda: SimpleNamespace(**known),
    }
    for name, answer in pretended.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    for name in ("cap_gpu", "give_back"):
        monkeypatch.setattr(record, name, lambda: None)
    assert record.main(["--folder", str(tmp_path)]) == 1
    kept = {path.name for path in tmp_path.iterdir()}
    assert kept == {"01_card_nvidia-h200.json", "11_ranks_nvidia-h200.json"}
    (card,) = load_recordings("01", tmp_path)
    assert card.provenance["card"] == "NVIDIA H200"
    assert (card.numbers["total_memory_bytes"], card.numbers["compute_capability"]) == (
        150_110_011_392,
        "9.0",
    )
    assert card.numbers["table_bytes"] == pytest.approx(150_110_011_392, rel=0.001)
    # what it does not tell is left out
    assert not {"clock_khz", "nvidia_smi_total_bytes"} & card.numbers.keys()
    lines = [
        line.partition(":")[0] for line in capsys.readouterr().err.splitlines() if ": " in line
    ]
    assert {name for _, name in MEASUREMENTS} - {"card", "ranks"} <= set(lines)


@pytest.mark.gpu
def test_gpu_the_card_is_the_one_of_the_table():
    numbers = measurements.record_card("cuda").numbers
    json.dumps(numbers)
    card = card_by_driver_name(torch.cuda.get_device_name())
    if card is None:
        pytest.skip("this card is not in the table")
    assert numbers["total_memory_bytes"] == pytest.approx(card.memory_bytes, rel=0.01)
    assert numbers["num_sms"] == card.num_sms


@pytest.mark.gpu
def test_gpu_a_context_takes_some_hundred_mib_and_grows_with_kernels():
    if not (gpus := record.ask_driver().gpus) or len(gpus) > 1:
        pytest.skip("counts what one card of one machine has free")
    numbers = measurements.record_context("cuda").numbers
    assert 64 * MIB < numbers["context_bytes"] < 2 * GIB
    assert numbers["first_kernels_bytes"] >= numbers["context_bytes"]
    assert abs(numbers["context_by_nvidia_smi_bytes"] - numbers["context_bytes"]) < 64 * MIB


@pytest.mark.gpu
def test_gpu_cublas_keeps_a_workspace_per_thread():
    numbers = measurements.record_cublas_workspace("cuda").numbers
    assert numbers["after_forward_bytes"] == numbers["after_forward, predicted_bytes"]
    assert numbers["after_backward_bytes"] == numbers["after_backward, predicted_bytes"]


@pytest.mark.gpu
def test_gpu_trace_and_measurement_of_training_steps_agree(monkeypatch):
    setups = measurements.training_setups("cuda")
    small = {name: setup for name, setup in setups.items() if name.startswith("tiny")}
    monkeypatch.setattr(measurements, "training_setups", lambda device: small)
    numbers = measurements.record_training_steps("cuda").numbers
    for name in small:
        traced, measured = (
            numbers[f"{name}, {source}_peak_bytes"] for source in ("traced", "measured")
        )
        assert traced == pytest.approx(measured, rel=0.05)


def linked(folder: Path, *wanted: str) -> None:
    """A folder with these installed libraries, and what they require, and nothing else."""
    waiting, seen = list(wanted), set()
    while waiting:
        name = waiting.pop()
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # required on other platforms
        if found.name not in seen:
            seen.add(found.name)
            waiting += [
                re.match(r"[\w.-]+", line)[0]
                for line in found.requires or ()
                if "extra ==" not in line
            ]
            for top in {file.parts[0] for file in found.files} - {"..", "__pycache__"}:
                if not (folder / top).is_symlink():  # a CUDA build's libraries share a folder
                    (folder / top).symlink_to(found.locate_file(top))


WITH_LITTLE = """
import sys
sys.path += sys.argv[1:]
from book.gpu_run import main
sys.exit(main(["--dry-run", "--only", "autocast", "cublas_workspace"]))
"""


def test_a_python_that_has_torch_and_little_else_is_enough(tmp_path):
    """``make record WITH=python3`` brings lazy_loader and tqdm where they are missing."""
    root = Path(__file__).parents[2]
    assert "import lazy_loader; import tqdm" in (root / "Makefile").read_text(encoding="utf-8")
    linked(tmp_path, "torch", "numpy", "lazy_loader", "tqdm")
    assert not (tmp_path / "ipywidgets").exists()
    command = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        WITH_LITTLE,
        str(tmp_path),
        str(root),
        str(root / "chapters"),
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
