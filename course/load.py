"""A class on the real hub: everybody logs in, runs chapter 01 and moves a slider; three of them break things.

    python course/load.py                                40 students, two minutes of one move a second
    python course/load.py --students 3 --seconds 9 --cells 2
    python course/load.py --url http://hub.example --password ...       a hub that runs already

Without --url it starts the hub of course/hub in a folder of its own and ends it. A student is what a browser is to
the hub: a login with cookies, and a WebSocket that speaks JupyterLab's binary protocol to the kernel; no browser is
started, so the figures are the server's side. All students run on this machine, and their work is counted with the
hub's. Exit code 1: a limit was passed, or a student lost something.
"""

import argparse
import itertools
import json
import os
import random
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import requests
import websocket
from jupyter_server.services.kernels.connection.base import (
    deserialize_msg_from_ws_v1,
    serialize_msg_to_ws_v1,
)

ROOT = Path(__file__).resolve().parents[1]
CHAPTER = "chapters/01_memory_breakdown.ipynb"
PROTOCOL = "v1.kernel.websocket.jupyter.org"
PANEL = "from memkit.widgets import MemoryExplorer\npage = MemoryExplorer()\nowner_of_this_kernel = {name!r}\npage"
KILLS = "import os\nos._exit(1)"
FILLS = "hoard = []\nwhile True:\n    hoard.append(b'1' * 2**27)"
OVERFLOWS = """
import torch
from stepscope.small_card import capped_card
with capped_card(2**28) as card:
    kept = [torch.ones(2**22, device=card.device) for _ in range(32)]
"""
PATIENCE_SECONDS = 600
MOST_MOVE_MS, MOST_BYTES = 60, 210 * 10**6
"""What issue and README promise: a move's 95th percentile, and a student's memory before torch is loaded."""


@dataclass(kw_only=True)
class Move:
    """One position of the slider: when it was sent (seconds on the common clock), and when its picture came."""

    sent: float
    seconds: float | None = None


@dataclass(kw_only=True)
class Student:
    """One student's cookies, kernel and connection, and what happened to her."""

    name: str
    hub: str
    password: str
    web: requests.Session = field(default_factory=requests.Session)
    kernel: str = ""
    socket: websocket.WebSocket | None = None
    slider: str = ""
    moves: list[Move] = field(default_factory=list)
    mishaps: list[tuple[float, float]] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)

    @property
    def server(self) -> str:
        return f"{self.hub}/user/{self.name}"

    def log_in(self) -> float:
        """Fill in the login form and wait for the server; returns the seconds."""
        started = time.monotonic()
        self.web.get(f"{self.hub}/hub/login", timeout=60)
        form = {"username": self.name, "password": self.password, "_xsrf": self._token("/hub/")}
        answer = self.web.post(f"{self.hub}/hub/login", data=form, timeout=120)
        answer.raise_for_status()
        while not answer.url.startswith(f"{self.server}/"):
            if time.monotonic() - started > PATIENCE_SECONDS:
                raise TimeoutError(f"{self.name}'s server did not start: {answer.url}")
            time.sleep(0.5)
            answer = self.web.get(f"{self.hub}/hub/spawn-pending/{self.name}", timeout=120)
            answer.raise_for_status()
        return time.monotonic() - started

    def _token(self, path: str) -> str:
        return next(c.value for c in self.web.cookies if c.name == "_xsrf" and c.path == path)

    def ask(self, path: str, method: str = "GET", **kwargs) -> requests.Response:
        """The answer of the student's own server."""
        headers = {"X-XSRFToken": self._token(f"/user/{self.name}/")}
        answer = self.web.request(
            method, f"{self.server}/api/{path}", headers=headers, timeout=120, **kwargs
        )
        answer.raise_for_status()
        return answer

    def open_chapter(self, path: str = CHAPTER) -> None:
        """Start the chapter's kernel and connect to it."""
        body = {"path": path, "name": "chapter", "type": "notebook", "kernel": {"name": "python3"}}
        self.kernel = self.ask("sessions", "POST", json=body).json()["kernel"]["id"]
        self.connect()

    def close_chapter(self) -> None:
        """Shut the kernel down, as the guide asks at a chapter's end."""
        self.socket.close()
        self.socket = None
        self.ask(f"kernels/{self.kernel}", "DELETE")

    def connect(self) -> None:
        """A WebSocket to the kernel, as JupyterLab opens it."""
        if self.socket:
            self.socket.close()
        address = f"{self.server}/api/kernels/{self.kernel}/channels?session_id={uuid.uuid4().hex}"
        request = requests.Request("GET", address, cookies=self.web.cookies)
        cookie = self.web.prepare_request(request).headers["Cookie"]
        self.socket = websocket.create_connection(
            address.replace("http", "ws", 1),
            cookie=cookie,
            origin=self.hub,
            subprotocols=[PROTOCOL],
            timeout=60,
        )

    def send(self, kind: str, content: dict) -> str:
        """Send a message to the kernel's shell; returns its id."""
        header = {
            "msg_id": uuid.uuid4().hex,
            "msg_type": kind,
            "username": self.name,
            "session": self.name,
            "version": "5.3",
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content}
        self.socket.send_binary(
            serialize_msg_to_ws_v1(message, "shell", lambda part: json.dumps(part).encode())
        )
        return header["msg_id"]

    def answers(self, msg_id: str, seconds: float) -> Iterator[tuple[str, dict]]:
        """What the kernel says to a message, as (kind, content), until it is idle again.

        Raises: TimeoutError: it is not idle after ``seconds``.
        """
        deadline, unseen = time.monotonic() + seconds, {"idle"}
        while unseen:
            self.socket.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                parts = deserialize_msg_from_ws_v1(self.socket.recv())[1]
            except websocket.WebSocketTimeoutException:
                raise TimeoutError(f"{self.name}: no answer in {seconds:.0f} s") from None
            header, parent, content = (json.loads(parts[i]) for i in (0, 1, 3))
            if parent.get("msg_id") == msg_id:
                unseen -= {content.get("execution_state")}
                yield header["msg_type"], content
            elif content.get("execution_state") in ("restarting", "dead"):
                raise ConnectionError(f"{self.name}: the kernel is {content['execution_state']}")

    def run(self, code: str, seconds: float = PATIENCE_SECONDS) -> tuple[str, list[dict]]:
        """Run code; returns its error's name (or nothing) and the comms that it opened."""
        error, opened = "", []
        request = {"code": code, "silent": False, "store_history": True, "allow_stdin": False}
        for kind, content in self.answers(self.send("execute_request", request), seconds):
            error = content["ename"] if kind == "error" else error
            opened += [content] if kind == "comm_open" else []
        return error, opened

    def open_panel(self) -> None:
        """Show the memory explorer; remembers the comm of its first slider, the micro-batch."""
        error, opened = self.run(PANEL.format(name=self.name))
        if error:
            raise RuntimeError(f"{self.name}: the panel failed: {error}")
        states = {content["comm_id"]: content["data"]["state"] for content in opened}
        self.slider = next(
            c for c, state in states.items() if state.get("_model_name") == "IntSliderModel"
        )

    def run_chapter(self, num_cells: int | None) -> list[str]:
        """Run the chapter's code cells in order; returns those that failed."""
        cells = self.ask(f"contents/{CHAPTER}").json()["content"]["cells"]
        code = [cell for cell in cells if cell["cell_type"] == "code"][:num_cells]
        return [cell["id"] for cell in code if self.run(cell["source"])[0]]

    def move(self, value: int, clock: Callable[[], float]) -> None:
        """Move the slider; notes when the picture that answers it has come."""
        move = Move(sent=clock())
        self.moves.append(move)
        data = {"method": "update", "state": {"value": value}, "buffer_paths": []}
        try:
            for kind, content in self.answers(
                self.send("comm_msg", {"comm_id": self.slider, "data": data}), 30
            ):
                if kind == "comm_msg" and "<svg" in str(
                    content["data"].get("state", {}).get("value", "")
                ):
                    move.seconds = clock() - move.sent
        except (TimeoutError, OSError, websocket.WebSocketException) as error:
            self.troubles.append(f"{type(error).__name__}: {error}")
            self.connect()

    def still_there(self) -> bool:
        """Whether what the first cell left in the kernel is still in it."""
        self.connect()
        return self.run(f"assert owner_of_this_kernel == {self.name!r}")[0] == ""


def move_slider(student: Student, seconds: int, started: float, mishaps: Sequence[str]) -> None:
    """Move once a second, at a moment of it drawn by lot; a third of the way on, her mishaps."""

    def clock() -> float:
        return time.monotonic() - started

    lot = random.Random(student.name)
    student.connect()  # who waited for the others has answered no ping
    for second, value in zip(range(seconds), itertools.cycle(range(2, 64))):
        time.sleep(max(0, second + lot.random() - clock()))
        if second == seconds // 3:
            for mishap in mishaps:
                student.mishaps.append((clock(), MISHAPS[mishap](student) or clock()))
        student.move(value, clock)


def kill_kernel(student: Student) -> None:
    """End the kernel from inside; the server starts another, where the panel is opened again."""
    try:
        student.run(KILLS, 60)
    except (ConnectionError, TimeoutError):
        student.connect()
        student.open_panel()
        return
    student.troubles.append("the kernel survived os._exit")


def fill_memory(student: Student) -> None:
    """Fill the memory until Python refuses, and throw it away."""
    error = student.run(FILLS, 120)[0]
    if error != "MemoryError" or student.run("hoard = None")[0]:
        student.troubles.append(
            f"filling the memory ended in {error or 'nothing'}, not in MemoryError"
        )


def fill_card(student: Student) -> None:
    """Run out of a played card of 256 MiB."""
    error = student.run(OVERFLOWS, 120)[0]
    if error != "OutOfMemoryError":
        student.troubles.append(
            f"the played card ended in {error or 'nothing'}, not in OutOfMemoryError"
        )


MISHAPS = {
    "kills the kernel": kill_kernel,
    "fills the memory": fill_memory,
    "fills a played card": fill_card,
}


@contextmanager
def running_hub(folder: Path, password: str, port: int = 8123) -> Iterator[psutil.Process]:
    """The hub of course/hub with its files in ``folder``; ended as Ctrl-C ends it.

    Raises: RuntimeError: it does not start, or leaves a process behind.
    """
    names = {"FOLDER": str(folder), "PASSWORD": password, "ADDRESS": f"http://127.0.0.1:{port}"}
    environment = os.environ | {f"MEMKIT_HUB_{name}": value for name, value in names.items()}
    command = [
        sys.executable,
        "-m",
        "jupyterhub",
        "-f",
        str(ROOT / "course/hub/jupyterhub_config.py"),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "hub.log").open("w") as log:
        hub = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    process, seen = psutil.Process(hub.pid), set()
    try:
        wait_for(f"http://127.0.0.1:{port}/hub/health", hub, folder / "hub.log")
        yield process
    finally:
        if hub.poll() is None:
            seen = {process, *process.children(recursive=True)}
            hub.send_signal(signal.SIGINT)
            try:
                hub.wait(120)
            except subprocess.TimeoutExpired:
                hub.kill()
        left = psutil.wait_procs(seen, timeout=10)[1]
        for child in left:
            child.kill()
    if left:
        raise RuntimeError(f"the hub left behind: {left}")


def wait_for(url: str, process: subprocess.Popen, log: Path, seconds: float = 300) -> None:
    """Wait until the address answers.

    Raises: RuntimeError: the process ended, or it does not answer in time.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return requests.get(url, timeout=5).raise_for_status()
        except requests.RequestException:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{url} does not answer:\n{log.read_text()}") from None
            time.sleep(0.2)


def bytes_by_student(hub: psutil.Process | None) -> dict[str, int]:
    """Memory of each student's server and kernels: resident pages, a shared one split among those who share it."""
    found = defaultdict(int)
    for process in hub.children(recursive=True) if hub else ():
        try:
            if name := process.environ().get("JUPYTERHUB_USER"):
                found[name] += process.memory_full_info().pss
        except (psutil.NoSuchProcess, AttributeError):  # ended meanwhile; macOS has no such figure
            continue
    return dict(found)


def percentile(values: Sequence[float], share: int) -> float:
    """The value that so many percent do not pass."""
    return (
        statistics.quantiles(values, n=100, method="inclusive")[share - 1]
        if len(values) > 1
        else sum(values)
    )


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, 95th percentile and maximum."""
    return {
        "p50": percentile(values, 50),
        "p95": percentile(values, 95),
        "max": max(values, default=0),
    }


@dataclass(kw_only=True)
class Class:
    """Students who do the same thing at once, and the figures of each stage."""

    students: list[Student]
    hub: psutil.Process | None
    say: Callable = print
    figures: dict = field(default_factory=dict)

    def all_at_once(self, what: str, act: Callable[[Student], object]) -> list:
        """Everybody does it; returns the results, and says how long the last one took and what a student takes."""
        started, pool = time.monotonic(), ThreadPoolExecutor(len(self.students))
        try:
            results = list(pool.map(act, self.students))
        finally:  # after Ctrl-C the hub ends first, and with it what the students wait for
            pool.shutdown(wait=False, cancel_futures=True)
        seconds, held = time.monotonic() - started, list(bytes_by_student(self.hub).values())
        self.figures[what] = {
            "seconds": round(seconds, 1),
            "bytes_each": spread(held) if held else None,
        }
        words = (
            f"; {statistics.mean(held) / 1e6:.0f} MB each, {sum(held) / 1e9:.1f} GB together"
            if held
            else ""
        )
        self.say(f"{what}: {seconds:.1f} s{words}", flush=True)
        return results

    def lost(self) -> list[str]:
        """Unanswered moves, troubles, and kernels that are not what they were."""
        lost = [
            f"{s.name}: a move at {m.sent:.0f} s"
            for s in self.students
            for m in s.moves
            if m.seconds is None
        ]
        lost += [f"{s.name}: {trouble}" for s in self.students for trouble in s.troubles]
        there = self.all_at_once("the first cell's name asked for again", Student.still_there)
        return lost + [
            f"{s.name}: her kernel forgot" for s, kept in zip(self.students, there) if not kept
        ]


def run_class(
    options: argparse.Namespace, url: str, password: str, hub: psutil.Process | None
) -> dict:
    """The whole lesson; returns its figures."""
    names = [f"student{number:02}" for number in range(options.students)]
    room = Class(
        students=[Student(name=name, hub=url, password=password) for name in names], hub=hub
    )
    room.figures["login"] = spread(room.all_at_once("logged in", Student.log_in))
    room.all_at_once("chapter 01 opened", Student.open_chapter)
    room.all_at_once("the memory explorer stands, no torch", Student.open_panel)
    failed = room.all_at_once("chapter 01 run", lambda student: student.run_chapter(options.cells))
    breakers = breakers_of(names)
    started = time.monotonic()
    room.all_at_once(
        "sliders moved",
        lambda s: move_slider(s, options.seconds, started, breakers.get(s.name, ())),
    )
    during = [when for student in room.students for mishap in student.mishaps for when in mishap]
    others = [
        move for s in room.students if s.name not in breakers for move in s.moves if move.seconds
    ]
    shaken = [move for move in others if during and min(during) <= move.sent <= max(during)]
    room.figures |= {
        "students": options.students,
        "breakers": breakers,
        "moves": len(others),
        "move_ms": spread([1000 * move.seconds for move in others]),
        "moves_in_mishaps": len(shaken),
        "move_ms_in_mishaps": spread([1000 * move.seconds for move in shaken]),
        "failed_cells": sorted({cell for cells in failed for cell in cells}),
        "lost": room.lost(),
    }
    return room.figures


def breakers_of(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Who breaks what: the last three of the class; in a smaller one the first only watches."""
    last = names[1:][-len(MISHAPS) :]
    return {name: tuple(MISHAPS)[i :: len(last)] for i, name in enumerate(last)}


def verdicts(figures: dict) -> list[tuple[bool, str]]:
    """The promises, each kept or not."""
    held = figures["the memory explorer stands, no torch"]["bytes_each"]
    found = [
        (not figures["lost"], f"lost: {'; '.join(figures['lost']) or 'nothing'}"),
        (
            not figures["failed_cells"],
            f"cells that failed: {', '.join(figures['failed_cells']) or 'none'}",
        ),
    ]
    for when, what in (
        ("", "a move of who breaks nothing"),
        ("_in_mishaps", "the same, while three break things"),
    ):
        count, ms = figures[f"moves{when}"], figures[f"move_ms{when}"]
        words = f"{what}: p50 {ms['p50']:.0f}, p95 {ms['p95']:.0f}, max {ms['max']:.0f} ms of {count} (limit: p95"
        found.append((count > 0 and ms["p95"] <= MOST_MOVE_MS, f"{words} {MOST_MOVE_MS})"))
    if held:
        words = (
            f"a student before torch: p50 {held['p50'] / 1e6:.0f}, p95 {held['p95'] / 1e6:.0f} MB"
        )
        found.append((held["p95"] <= MOST_BYTES, f"{words} (limit: p95 {MOST_BYTES / 1e6:.0f})"))
    return found


def parser() -> argparse.ArgumentParser:
    """The arguments."""
    doc, _, rest = __doc__.partition("\n\n")
    main = argparse.ArgumentParser(
        description=doc, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    main.add_argument("--students", type=int, default=40)
    main.add_argument("--seconds", type=int, default=120, help="of one slider move a second (120)")
    main.add_argument("--cells", type=int, help="of chapter 01, from its first (all)")
    main.add_argument("--url", help="a hub that runs already, such as http://127.0.0.1:8000")
    main.add_argument("--password", default=secrets.token_hex(8), help="the class's, with --url")
    main.add_argument("--json", metavar="FILE", help="write the figures")
    return main


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the lesson; returns the exit code."""
    options = parser().parse_args(arguments)
    if options.url:
        figures = run_class(options, options.url.rstrip("/"), options.password, None)
    else:
        with (
            tempfile.TemporaryDirectory() as folder,
            running_hub(Path(folder), options.password) as hub,
        ):
            figures = run_class(options, "http://127.0.0.1:8123", options.password, hub)
    if options.json:
        Path(options.json).write_text(json.dumps(figures, indent=1))
    found = verdicts(figures)
    print("\n".join(f"{'kept  ' if kept else 'BROKEN'} {words}" for kept, words in found))
    return 0 if all(kept for kept, _ in found) else 1


if __name__ == "__main__":
    sys.exit(main())
