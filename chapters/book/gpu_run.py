"""``make record``: run the chapters' GPU measurements on this machine's card and keep them as files.

``--dry-run`` runs all of them at tiny sizes on the CPU, into a folder that is thrown away.
"""

import argparse
import datetime
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from book.checkup import OLDEST_TORCH, version_numbers
from book.driver import ask_driver
from book.gpu_cap import cap_gpu
from book.measurements import MEASUREMENTS
from book.recordings import FOLDER, Recording, save_recording
from memkit.measure import give_back

COMMAND = "python -m book.gpu_run"


def provenance(device: str) -> dict[str, str]:
    """Card, driver, versions, date, command and commit of a measurement made now."""
    gpus = ask_driver().gpus if device == "cuda" else ()
    return {
        "card": torch.cuda.get_device_name() if device == "cuda" else "CPU, dry run",
        "driver": gpus[0].driver_version if gpus else "unknown",
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "none",
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "command": COMMAND,
        "commit": _commit(),
    }


def record(device: str, folder: Path, names: tuple[str, ...] = ()) -> list[str]:
    """Run the measurements (those in ``names``, if any), write a file each, and return what went wrong."""
    problems = []
    for (chapter, name), measure in MEASUREMENTS.items():
        if names and name not in names:
            continue
        give_back()
        try:
            found = measure(device)
            recording = Recording(
                chapter=chapter,
                name=name,
                provenance=provenance(device),
                numbers=found.numbers,
                timelines=found.timelines,
            )
            path = save_recording(recording, folder)
        except Exception as error:  # noqa: BLE001 (one that fails must not cost the others)
            problems.append(f"{name}: {type(error).__name__}: {error}")
            continue
        print(f"{path.name}\n{recording.table()}\n")
    return problems


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns 0, 1 if a measurement failed, 2 if this machine cannot measure."""
    parser = argparse.ArgumentParser(
        prog=COMMAND, description="Record the chapters' GPU measurements."
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="tiny sizes on the CPU, nothing is kept"
    )
    parser.add_argument("--folder", type=Path, help="where to write (chapters/recordings)")
    parser.add_argument(
        "--only", nargs="+", default=(), choices=[name for _, name in MEASUREMENTS], metavar="NAME"
    )
    options = parser.parse_args(arguments)
    if not options.dry_run and not torch.cuda.is_available():
        print(
            f"{COMMAND} needs a CUDA card and torch sees none here; --dry-run tries it on the CPU.",
            file=sys.stderr,
        )
        return 2
    if version_numbers(torch.__version__) < OLDEST_TORCH:
        print(
            f"{COMMAND} needs torch {'.'.join(map(str, OLDEST_TORCH))} or later, not {torch.__version__}.",
            file=sys.stderr,
        )
        return 2
    cap_gpu()
    device = "cpu" if options.dry_run else "cuda"
    with tempfile.TemporaryDirectory() as thrown_away:
        folder = options.folder or (Path(thrown_away) if options.dry_run else FOLDER)
        problems = record(device, folder, tuple(options.only))
    print(*problems, sep="\n", file=sys.stderr, end="\n" if problems else "")
    return 1 if problems else 0


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent
        )
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
