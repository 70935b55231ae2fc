"""``python -m course.labs FOLDER``: a course folder for nbgrader, with the sources and the release of the labs."""

import os
import subprocess
import sys
from pathlib import Path

from course.labs.sources import write_sources

CONFIG = Path(__file__).parents[1] / "nbgrader_config.py"


def make_labs(folder: Path) -> None:
    """Sources, the configuration, and nbgrader's release. Raises: RuntimeError: nbgrader refuses."""
    folder.mkdir(parents=True, exist_ok=True)
    write_sources(folder)
    (folder / "nbgrader_config.py").write_text(
        f"load_subconfig({str(CONFIG)!r})\n", encoding="utf-8"
    )
    nbgrader(folder, "generate_assignment", "--assignment=*", "--force")


def nbgrader(folder: Path, *arguments: str) -> str:
    """What one of nbgrader's commands logs; it calls alembic by its name, which stands beside this Python."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    environment = os.environ | {"PATH": path}
    command = [sys.executable, "-m", "nbgrader", *arguments]
    done = subprocess.run(
        command, check=False, cwd=folder, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"nbgrader {' '.join(arguments)}:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


if __name__ == "__main__":
    make_labs(Path(sys.argv[1]))
    print(f"The release stands in {sys.argv[1]}/release.")
