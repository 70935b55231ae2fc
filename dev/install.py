"""Install the book for the Python that runs this: ``python dev/install.py lab``, which ``make lab`` calls.

The arguments are extras of pyproject.toml, such as ``test zoo``; ``--path`` alone installs nothing and lets every
notebook find ``book``, where conda or Binder has installed the rest. PyTorch comes first, and torchvision
with it where an extra needs it, so that both are builds of one index. On Linux that index is PyPI's with CUDA
(3 GB) where an NVIDIA driver is found, else PyTorch's own without (0.2 GB); ``TORCH_INDEX`` names another one.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
SMALL = "No NVIDIA driver was found: PyTorch's CPU build is taken, 0.2 GB instead of 3"
ANOTHER = "TORCH_INDEX=https://pypi.org/simple takes the CUDA build."


def answers(index: str) -> bool:
    """Whether pip finds a PyTorch for this Python at ``index``; asked once, so that a closed network costs seconds."""
    once = ("--isolated", "--retries", "0", "--timeout", "10")
    command = [*PIP, *once, "index", "versions", "torch", "--index-url", index]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def torch_index(wanted: str, *, platform: str, has_driver: bool) -> tuple[str, str]:
    """The index that PyTorch is taken from besides pip's own ('' for none), and a line that says so ('' for none)."""
    if wanted:
        return wanted, f"PyTorch is taken from {wanted}."
    if platform != "linux" or has_driver:  # PyPI's builds for macOS and Windows are the small ones
        return "", ""
    if answers(CPU_INDEX):
        return CPU_INDEX, f"{SMALL}. {ANOTHER}"
    return (
        "",
        f"No NVIDIA driver was found, but {CPU_INDEX} does not answer: pip takes the build that it finds.",
    )


def torch_packages(extras: list[str]) -> list[str]:
    """PyTorch's packages among the project's requirements and those of ``extras``, as they stand there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lists = [
        project["dependencies"],
        *(project["optional-dependencies"][extra] for extra in extras),
    ]
    return [
        line for lines in lists for line in lines if line.startswith(("torch>", "torchvision>"))
    ]


def install(*arguments: str) -> None:
    """``pip install`` under the book's constraints; ends this program if pip fails."""
    command = [*PIP, "install", "--quiet", "--constraint", "dev/constraints.txt", *arguments]
    done = subprocess.run(command, cwd=ROOT, check=False)
    if done.returncode:
        sys.exit(done.returncode)


def find_book() -> None:
    """Put ``chapters/`` on this Python's path: ``import book`` works in every folder of notebooks, and in a copy.

    A kernel that runs in ``chapters/`` itself finds ``book`` there, and the wheel does not have it.
    """
    path = Path(sysconfig.get_path("purelib")) / "memkit_book_chapters.pth"
    path.write_text(f"{ROOT / 'chapters'}\n", encoding="utf-8")


def main(extras: list[str]) -> None:
    """Install PyTorch, then the book with these extras; with ``--path`` only ``find_book``."""
    wanted = os.environ.get("TORCH_INDEX", "").strip()
    if extras == ["--path"]:
        find_book()
        return
    has_driver = shutil.which("nvidia-smi") is not None
    index, line = torch_index(wanted, platform=sys.platform, has_driver=has_driver)
    if line:
        print(line, flush=True)
    print("Installing PyTorch (1 of 2): a minute or more, in which pip says nothing.", flush=True)
    install(*torch_packages(extras), *(("--extra-index-url", index) if index else ()))
    print("Installing the rest (2 of 2).", flush=True)
    install("--editable", f".[{','.join(extras)}]")
    find_book()
    # matplotlib lists the machine's fonts once, and would say so in the first cell that plots
    subprocess.run(
        [sys.executable, "-c", "import matplotlib.font_manager"], check=False, capture_output=True
    )


if __name__ == "__main__":
    main(sys.argv[1:])
