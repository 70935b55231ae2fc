"""What The Littlest JupyterHub needs for this book beside ``tljh-config``; TLJH.md says where it goes.

A student's server does not see where the labs' solutions stand, cannot start processes without end, and sees the one
card that is drawn for it. Each student has an account of her own, so files need no wall.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # the hub's Python is another than the students'

from tljh.user_creating_spawner import UserCreatingSpawner

from course.hub.limits import Cards, KeepsCard

HIDDEN = [f"-{ROOT / name}" for name in ("course", "tests", "build", ".git")]


def prepare(spawner) -> None:
    """Before a server starts: its card, and what a student's may not see ("-": where it is there)."""
    limits = {"TasksMax": os.environ.get("MEMKIT_HUB_TASKS", "512")}
    if not spawner.user.admin:
        limits["InaccessiblePaths"] = " ".join(HIDDEN)
    spawner.unit_extra_properties = limits
    if card := spawner.cards.card_of(spawner.user.name):
        spawner.environment = {**spawner.environment, "CUDA_VISIBLE_DEVICES": card}


c = get_config()  # noqa: F821 - JupyterHub runs this file with it


class CardSpawner(KeepsCard, UserCreatingSpawner):
    """TLJH's own, whose servers outlive the hub."""

    cards = Cards.of_environment()


c.JupyterHub.spawner_class = CardSpawner
c.Spawner.pre_spawn_hook = prepare
c.Spawner.default_url = "/lab/tree/chapters/00_start_here.ipynb"
c.Spawner.environment = {
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(ROOT / "chapters"),  # and so `import book`
    "MALLOC_TRIM_THRESHOLD_": "131072",  # a kernel that has run chapter 01 holds 364 MB instead of 483
    "MALLOC_MMAP_THRESHOLD_": "131072",
}
if gib := os.environ.get("MEMKIT_GPU_GIB"):
    c.Spawner.environment["MEMKIT_GPU_GIB"] = gib
