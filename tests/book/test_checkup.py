"""``doctor()`` on machines that are played: other packages, other drivers, little memory."""

import inspect
import logging
import os
import pydoc
import subprocess
import sys
from importlib import metadata

import pytest

from book import checkup as doctor_module
from book.checkup import doctor, quietly, torch_backend
from book.driver import DriverAnswer, Gpu, ask_driver, available_ram_bytes, gpu_cap_bytes
from book.gpu_cap import cap_gpu
from memkit.units import GIB, MIB

T4 = Gpu(
    name="Tesla T4",
    uuid="GPU-1",
    driver_version="550.54.15",
    total_bytes=15360 * MIB,
    used_bytes=0,
    free_bytes=15000 * MIB,
    compute_capability=(7, 5),
)
WITH_T4 = DriverAnswer(gpus=(T4,))
NO_CARD = DriverAnswer()


@pytest.fixture
def machine(monkeypatch):
    """Play a machine: package versions (``None``: not installed), torch's backend, the driver, RAM."""

    def play(backend="cuda 13.0", answer=WITH_T4, ram=20 * GIB, platform=None, **versions):
        known = {
            "torch": "2.13.0",
            "ipywidgets": "8.1.9",
            "numpy": "2.4.6",
            "resvg-py": "0.5.0",
            "jupyterlab": "4.6.6",
            "anywidget": "0.11.0",
        } | versions
        monkeypatch.setattr(doctor_module, "installed_version", known.__getitem__)
        monkeypatch.setattr(doctor_module, "torch_backend", lambda: backend)
        monkeypatch.setattr(doctor_module, "ask_driver", lambda environment: answer)
        monkeypatch.setattr(doctor_module, "available_ram_bytes", lambda: ram)
        if platform:
            monkeypatch.setattr(doctor_module.sys, "platform", platform[0])
            monkeypatch.setattr(doctor_module.platform, "machine", lambda: platform[1])

    return play


def test_a_ready_gpu_machine_gets_no_advice(machine):
    machine()
    diagnosis = doctor({})
    assert diagnosis.mode == "GPU"
    assert diagnosis.advice == ()
    assert repr(diagnosis) == str(diagnosis) == diagnosis.table()
    formats = "tf32, bfloat16, float8_e4m3fn, float4_e2m1fn"
    driver = ("Tesla T4", "550.54.15", "14.65 GiB of 15.00 GiB")
    for shown in ("GPU mode", *driver, "2.13.0, cuda 13.0", "multiplies", formats):
        assert shown in diagnosis.table()


@pytest.mark.parametrize("platform, card", [(None, "none"), (("darwin", "arm64"), "Apple GPU")])
def test_a_machine_without_a_card_hears_first_that_all_is_there(machine, platform, card):
    machine(answer=NO_CARD, backend=None, platform=platform)
    diagnosis = doctor({})
    first, *rows = diagnosis.table().splitlines()
    assert "No NVIDIA card" in first and "CPU" in first
    assert any(row.startswith("card") and card in row for row in rows)
    assert (diagnosis.mode, diagnosis.advice) == ("CPU", ())


def test_the_first_line_says_whether_all_is_there(machine):
    machine()
    assert doctor({}).headline.endswith(" Tesla T4.")
    machine(ram=3 * GIB)
    assert doctor({}).headline.startswith("1 thing ")
    machine(ram=3 * GIB, anywidget=None)
    assert doctor({}).headline.startswith("2 things ")


@pytest.mark.parametrize(
    "function", [doctor, ask_driver, gpu_cap_bytes, cap_gpu], ids=lambda f: f.__name__
)
def test_its_help_shows_nothing_of_the_environment(function, monkeypatch):
    # Shift-Tab and `doctor?` show the signature: a default of os.environ put every token into a shared page.
    monkeypatch.setenv("SOME_TOKEN", "hf_secret")
    assert "hf_secret" not in pydoc.render_doc(function)
    assert inspect.signature(function).parameters["environment"].default is None


def test_without_an_argument_it_reads_this_process_s_variables(machine, monkeypatch):
    machine()
    monkeypatch.setenv("MEMKIT_GPU_GIB", "4")
    assert doctor().cap_bytes == gpu_cap_bytes() == 4 * GIB


@pytest.mark.parametrize(
    "played, mode, words",
    [
        ({"answer": DriverAnswer(problem="nvidia-smi fails: x")}, "CPU", "nvidia-smi fails: x."),
        ({"backend": None}, "CPU", "built without CUDA; reinstall"),
        ({"backend": "rocm 6.4"}, "GPU", "this book is not tested there"),
        ({"torch": None}, "CPU", "Install torch 2.13"),
        ({"torch": "2.10.1+cu128"}, "GPU", "hold for torch 2.11 to 2.14"),
        ({"torch": "2.15.0"}, "GPU", "tested with torch 2.11 to 2.14: with yours"),
        ({"torch": "3.0.0"}, "GPU", "tested with torch 2.11 to 2.14: with yours"),
        ({"torch": "2.15.0", "backend": None}, "CPU", "built without CUDA; reinstall"),
        ({"ipywidgets": "7.8.1"}, "GPU", "ipywidgets 7.8.1 lacks what the explorers use"),
        ({"ipywidgets": None}, "GPU", "each explorer is the picture above it"),
        ({"anywidget": None}, "GPU", "screen readers hear no names"),
        ({"ram": 3 * GIB}, "GPU", "3.00 GiB of RAM are free"),
    ],
)
def test_what_is_not_right_gets_one_advice(machine, played, mode, words):
    machine(**played)
    diagnosis = doctor({})
    assert diagnosis.mode == mode
    (advice,) = diagnosis.advice
    assert words in advice
    assert f"1. {advice}" in " ".join(diagnosis.table().split())


@pytest.mark.parametrize("version", ["2.11.0", "2.12.1+cu130", "2.14.1"])
def test_tested_versions_of_torch_are_ok(machine, version):
    machine(torch=version)
    assert doctor({}).advice == ()


def test_the_cap_is_shown_and_counts_as_usable(machine):
    machine()
    diagnosis = doctor({"MEMKIT_GPU_GIB": "1.5"})
    assert diagnosis.cap_bytes == 3 * GIB // 2
    assert diagnosis.advice == (
        "1.50 GiB of the card are usable; chapters make themselves that small.",
    )
    assert "MEMKIT_GPU_GIB" in diagnosis.table()


def test_an_unreadable_cap_is_a_finding_and_no_crash(machine):
    machine()
    diagnosis = doctor({"MEMKIT_GPU_GIB": "lots"})
    assert diagnosis.cap_bytes is None
    assert diagnosis.advice == ("MEMKIT_GPU_GIB='lots' is not a number of GiB above zero.",)


def test_unknown_sizes_are_said_to_be_unknown(machine):
    silent = Gpu(
        name="NVIDIA GB10",
        uuid="",
        driver_version="580",
        total_bytes=None,
        used_bytes=None,
        free_bytes=None,
        compute_capability=None,
    )
    machine(answer=DriverAnswer(gpus=(silent,)), ram=None)
    table = doctor({}).table()
    assert "unknown of unknown" in table
    assert "multiplies" not in table


@pytest.mark.parametrize(
    "text, backend",
    [
        ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", "cuda 13.0"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '6.4.43484'\n", "rocm 6.4.43484"),
        ("cuda = '12.8'\n", "cuda 12.8"),
        ("cuda: Optional[str] = None\n", None),
    ],
)
def test_the_backend_of_other_builds(tmp_path, monkeypatch, text, backend):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('nobody may load this')")
    (tmp_path / "torch" / "version.py").write_text(text)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert torch_backend() == backend


def test_ram_is_the_containers_where_that_is_less(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 100 kB\nMemAvailable:    8388608 kB\n")
    assert available_ram_bytes(tmp_path) == 8 * GIB
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert available_ram_bytes(tmp_path) == 8 * GIB
    (tmp_path / "sys/fs/cgroup/memory.max").write_text(f"{3 * GIB}\n")
    (tmp_path / "sys/fs/cgroup/memory.current").write_text(f"{GIB}\n")
    assert available_ram_bytes(tmp_path) == 2 * GIB
    assert available_ram_bytes(tmp_path / "nowhere") is None


def test_the_real_machine_is_read_without_torch_paths_or_names():
    program = "import sys, book.checkup as d; print(d.doctor()); sys.exit('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert metadata.version("torch").split("+")[0] in done.stdout
    for private in ("/", "\\", os.path.expanduser("~"), sys.prefix):
        assert private not in done.stdout


def test_what_is_imported_quietly_logs_no_warning_and_what_follows_does():
    log = logging.getLogger("torchao")
    with pytest.raises(ImportError), quietly():
        assert not log.isEnabledFor(logging.WARNING) and log.isEnabledFor(logging.ERROR)
        raise ImportError
    assert log.isEnabledFor(logging.WARNING)
