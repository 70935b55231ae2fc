"""From key press to changed picture in a real browser: every widget, and the explorer against ``ipywidgets.interact``.

``interact`` draws the explorer's picture from the same estimates and says the same words, as most notebooks do it: a
new pyplot figure at each move, shown inline. All stand in one notebook of one JupyterLab and one Chromium; blocks of
moves alternate in random order, so that a busy moment of the machine falls on all of them.

The clock starts with the browser's own keydown event and stops after the first frame that has the new picture. Most of
that time is the way of a key through JupyterLab and the kernel to the screen, which no panel can shorten. A slider that
moves one rectangle measures it, and it is taken off both sides of a ratio.
"""

import base64
import io
import random
import secrets
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import TimeoutError as PlaywrightTimeoutError

from dev.bench import Row

# the tests know how to start a JupyterLab
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from lab_server import QUIET_LAB, free_port, running_server
from live_notebook import PANEL, open_and_run, running_chromium, write_notebook

ROUNDS = 3
MOVES = 16
RUN = 4
"""Moves in one direction, and then back: no control ends before."""

START = 12
"""The explorer's micro-batch: its axis, with the line for the card, rescales once in the moves after it."""

SETUP = """
from memkit import widgets
from memkit.formula.estimate import second_step
from stepscope import widgets as more
from memkit.widgets.memory_explorer import MemoryExplorer

class Uncached(MemoryExplorer):
    def view(self, **state):
        second_step.cache_clear()
        return super().view(**state)

"""

INTERACT = f"""
import matplotlib.pyplot as plt
from ipywidgets import IntSlider, interact
from memkit.cards import CARDS
from memkit.models import GPT2_SMALL
from memkit.pictures.timeline import drawn_instants
from memkit.setup import TrainingSetup
from memkit.formula.estimate import second_step
from memkit.fit import peak_in_words
from stepscope.advice.changes import advice_in_words
from memkit.timeline import PARTS

def show(micro_batch_size):
    second_step.cache_clear()
    setup = TrainingSetup(model=GPT2_SMALL, micro_batch_size=micro_batch_size)
    instants = drawn_instants(second_step(setup))
    figure, axes = plt.subplots(figsize=(8, 4.3))
    bottom = [0] * len(instants)
    for part, hatch in zip(PARTS, ("", "///", "...", "xxx", "---")):
        heights = [getattr(instant, part) for instant in instants]
        axes.bar(range(len(instants)), heights, bottom=bottom, hatch=hatch, edgecolor="white", label=part)
        bottom = [low + high for low, high in zip(bottom, heights)]
    axes.axhline(CARDS["RTX 4090"].memory_bytes, linestyle="--")
    axes.legend()
    plt.show()
    print(peak_in_words(second_step(setup).peak, "RTX 4090"), advice_in_words(setup), sep="\\n")

interact(show, micro_batch_size=IntSlider({START}, 1, 64))
"""

WAY = """
from ipywidgets import HTML, IntSlider, VBox

number, mark = IntSlider(12, 1, 64, description="Number"), HTML()
mark.add_class("memkit-view")

def show(change=None):
    mark.value = f'<svg id="m{number.value}" width="200" height="200"><rect width="{number.value}" height="9"/></svg>'

number.observe(show, "value")
show()
panel = VBox([number, mark])
panel.add_class("memkit-panel")
panel
"""
"""A slider and one rectangle: what the way from the key through JupyterLab and the kernel to the screen takes."""

ALONE = "the way alone"
PICTURE = "the picture: arrow keys go through its marks"
OURS = {
    "memory explorer": (
        f'Uncached(model="GPT-2 small", micro_batch_size={START}, card="RTX 4090")',
        "Micro-batch",
    ),
    "frontier": ("widgets.FrontierExplorer()", "Strategy"),
    "frontier, length": ("widgets.FrontierExplorer()", "Sequence"),
    "bit explorer": ("widgets.BitExplorer()", PICTURE),
    "allocator lab": ("more.AllocatorLab(step=0)", "Event"),
    "adapter explorer": ("more.AdapterExplorer()", "Rank"),
    "sharding explorer": ("more.ShardingExplorer()", "Micro-batch"),
    "plan explorer": ("more.PlanExplorer()", "Plan"),
    ALONE: (WAY, "Number"),
}
"""Each widget and the control that is moved: a slider, a menu, or the picture, where a mark is pressed."""
INTERACTS = "interact"

PROBE = """
(control) => {
  const area = control.closest('.jp-OutputArea-output'), channel = new MessageChannel(), waiting = [];
  const probe = window.probe = { pressed: 0, shown: [], frames: 0, missing: 0, area };
  const tall = (each) => each.getBoundingClientRect().height > 100;
  const framed = () => [...area.querySelectorAll('style')].map((style) => style.textContent).join('');
  const source = () => {
    const picture = [...area.querySelectorAll('.memkit-view svg, img')].find(tall);
    if (!picture) return null;
    if (picture.tagName !== 'IMG') return picture.id + framed();  // the id is that of what is drawn
    return picture.complete && picture.naturalWidth ? picture.src : null;
  };
  let last = source();
  channel.port1.onmessage = () => probe.shown.push(waiting.shift() && performance.now());
  document.addEventListener('keydown', (event) => { probe.pressed = event.timeStamp; }, true);
  const frame = () => {
    if (window.probe !== probe) return;
    const now = source();
    probe.frames += 1;
    if (now === null) probe.missing += 1;
    else if (now !== last) { last = now; waiting.push(1); channel.port2.postMessage(0); }
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
}
"""
"""Looks at the picture in every animation frame; notes when a new one has been painted, and frames without any."""


class Book:
    """A notebook with every widget and ``interact``, one in a cell, and the probe on one of them at a time."""

    def __init__(self, browser, lab: dict, name: str, names: list[str]):
        self.page = browser.new_page(viewport={"width": 1400, "height": 1000})
        open_and_run(self.page, lab, name, wait_for=f"{PANEL} svg")
        cells = self.page.locator(".jp-Cell.jp-CodeCell")
        self.cells = {name: cells.nth(number) for number, name in enumerate(names, start=1)}
        last = (
            self.cells[names[-1]].locator(".jp-OutputArea-output :is(img, .memkit-view svg)").first
        )
        last.wait_for(state="attached", timeout=120_000)

    def control(self, name: str):
        """The control that is moved."""
        cell = self.cells[name]
        if name in (INTERACTS, ALONE):
            return cell.locator("[role=slider]").first
        label = OURS[name][1]
        kinds = [
            cell.get_by_role(role, name=label, exact=True)
            for role in ("slider", "combobox", "group")
        ]
        return next(kind.first for kind in kinds if kind.count())

    def press(self, key: str, name: str) -> float | None:
        """Milliseconds from the key press to the new picture; ``None`` if none came."""
        number = self.page.evaluate("probe.shown.length")
        self.page.keyboard.press(key)
        try:
            self.page.wait_for_function(f"probe.shown.length > {number}", timeout=3_000, polling=20)
        except PlaywrightTimeoutError:
            return None
        took = self.page.evaluate(f"probe.shown[{number}] - probe.pressed")
        self.page.wait_for_timeout(250 + random.uniform(0, 100))  # late messages of this move
        return took

    def moves(self, name: str) -> list[float]:
        """The milliseconds of each move, there and back; the first two are not counted."""
        self.page.bring_to_front()
        self.cells[name].scroll_into_view_if_needed()
        control = self.control(name)
        control.scroll_into_view_if_needed()
        control.focus()
        control.evaluate(PROBE)
        self.page.wait_for_timeout(600)
        there, back = KEYS[control.evaluate("e => e.role || e.tagName")]
        if back == "Enter":
            # it goes to a mark, which is then pressed and pressed again
            self.page.keyboard.press("ArrowRight")
        keys = ([there] * RUN + [back] * RUN) * (MOVES // (2 * RUN))
        return [took for took in [self.press(key, name) for key in keys][2:] if took]

    def blank_share(self, name: str) -> tuple[int, int]:
        """Blank frames, and all, that the compositor showed while the slider moved: by pixels, not by the DOM."""
        control, frames = self.control(name), []
        control.focus()
        control.evaluate(PROBE)
        box = (
            self.cells[name]
            .locator(".jp-OutputArea-output :is(img, .memkit-view svg)")
            .first.bounding_box()
        )
        corners = (box["x"], box["y"], box["x"] + box["width"], min(box["y"] + box["height"], 1000))
        session = self.page.context.new_cdp_session(self.page)

        def keep(event):
            frames.append(event["data"])
            session.send("Page.screencastFrameAck", {"sessionId": event["sessionId"]})

        session.on("Page.screencastFrame", keep)
        session.send("Page.startScreencast", {"format": "png", "everyNthFrame": 1})
        for key in ["ArrowRight"] * (MOVES // 2) + ["ArrowLeft"] * (MOVES // 2):
            self.press(key, name)
        session.send("Page.stopScreencast")
        crops = [
            Image.open(io.BytesIO(base64.b64decode(data))).convert("L").crop(corners)
            for data in frames
        ]
        ink = [float((np.asarray(crop) < 200).mean()) for crop in crops]
        return sum(share < statistics.median(ink) / 4 for share in ink), len(ink)


KEYS = {
    "slider": ("ArrowRight", "ArrowLeft"),
    "SELECT": ("ArrowDown", "ArrowUp"),
    "group": ("Enter", "Enter"),
}
"""There and back, by what takes the key: a slider, a menu, a picture."""


def latencies(names: list[str]) -> tuple[dict[str, list[float]], tuple[int, int]]:
    """Milliseconds by widget, and the first one's blank and all frames."""
    took = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        root, port, token = Path(folder), free_port(), secrets.token_hex(16)
        sources = [INTERACT if name == INTERACTS else OURS[name][0] for name in names]
        write_notebook(root / "widgets.ipynb", SETUP, *sources)
        lab = {"url": f"http://127.0.0.1:{port}", "token": token}
        options = [
            f"--port={port}",
            f"--IdentityProvider.token={token}",
            f"--ServerApp.root_dir={root}",
        ]
        command = [sys.executable, "-m", "jupyterlab", *QUIET_LAB, *options]
        chromium = shutil.which("chromium") or shutil.which("chromium-browser")
        with (
            running_server(command, f"{lab['url']}/api?token={token}", folder=root),
            running_chromium(chromium) as browser,
        ):
            book = Book(browser, lab, "widgets.ipynb", names)
            for _ in range(ROUNDS):
                for name in random.sample(names, len(names)):
                    took[name] += book.moves(name)
            blank = book.blank_share(names[0])
    return took, blank


def run() -> list[Row]:
    took, (blank, frames) = latencies([*OURS, INTERACTS])
    theirs, way = statistics.median(took.pop(INTERACTS)), statistics.median(took.pop(ALONE))
    rows = []
    for name, times in took.items():
        middle, slow = statistics.median(times), sorted(times)[round(0.95 * (len(times) - 1))]
        detail = f"{theirs:.0f} and {middle:.0f} ms, of them {way:.0f} the way; p95 {slow:.0f} ms of {len(times)} keys"
        ratio = (theirs - way) / max(middle - way, 1.0)
        rows.append(
            Row(
                name=f"slider, beside the way: interact / {name}",
                ratio=ratio,
                at_least=5.0,
                detail=detail,
            )
        )
    detail = f"{blank} of {frames} frames on the screen while the explorer's slider moved"
    return [
        *rows,
        Row(name="slider: blank frames", ratio=blank / frames, at_most=0.0, detail=detail),
    ]
