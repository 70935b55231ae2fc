"""From key press to changed picture in a real browser: the memory explorer against ``ipywidgets.interact``.

Both notebooks draw the same picture from the same estimates and say the same words. ``interact`` does it as most
notebooks do: a new pyplot figure at each move, shown inline. Both are open side by side in one JupyterLab and one
Chromium; blocks of moves alternate in random order, so that a busy moment of the machine falls on both.

The clock starts with the browser's own keydown event and stops after the first frame that has the new picture.
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

from bench import Row

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))  # the tests know how to start a JupyterLab

from lab_server import QUIET_LAB, free_port, running_server
from live_notebook import open_and_run, running_chromium, write_notebook

ROUNDS = 6
MOVES = 6
START = 12
"""Micro-batch in the middle of a range in which the axis, with its line for the card, stands still."""

EXPLORER = f"""
from memkit.fitting.advice import steady_step
from memkit.widgets.memory_explorer import MemoryExplorer

class Uncached(MemoryExplorer):
    def view(self, **state):
        steady_step.cache_clear()
        return super().view(**state)

panel = Uncached(micro_batch_size={START})
panel
"""

INTERACT = f"""
import matplotlib.pyplot as plt
from ipywidgets import IntSlider, interact
from memkit.hardware.cards import CARDS
from memkit.setup.models import GPT2_SMALL
from memkit.pictures.timeline import TimelinePicture
from memkit.setup.training import TrainingSetup
from memkit.fitting.advice import advice_in_words, steady_step, verdict

class Inline(TimelinePicture):
    _repr_mimebundle_ = None  # leaves the display to pyplot's inline backend

    def __init__(self, **kwargs):
        super().__init__()

def show(micro_batch_size):
    steady_step.cache_clear()
    setup = TrainingSetup(model=GPT2_SMALL, micro_batch_size=micro_batch_size)
    figure = plt.figure(FigureClass=Inline)
    figure.redraw(steady_step(setup), capacity_bytes=CARDS["RTX 4090"].memory_bytes, card_name="RTX 4090")
    plt.show()
    print(verdict(setup, "RTX 4090"), *advice_in_words(setup), sep="\\n")

interact(show, micro_batch_size=IntSlider({START}, 1, 64))
"""

PROBE = """
(slider) => {
  const area = slider.closest('.jp-OutputArea-output'), channel = new MessageChannel(), waiting = [];
  const probe = window.probe = { pressed: 0, shown: [], frames: 0, missing: 0 };
  const picture = () => [...area.querySelectorAll('img')].find((img) => img.getBoundingClientRect().height > 100);
  const source = () => { const img = picture(); return img && img.complete && img.naturalWidth ? img.src : null; };
  let last = source();
  channel.port1.onmessage = () => probe.shown.push(waiting.shift() && performance.now());
  document.addEventListener('keydown', (event) => { probe.pressed = event.timeStamp; }, true);
  const frame = () => {
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

SLIDER = ".jp-OutputArea-output [role=slider]"


class Page:
    """One notebook, its micro-batch slider and the probe."""

    def __init__(self, browser, lab: dict, name: str):
        self.page = browser.new_page(viewport={"width": 1400, "height": 1000})
        open_and_run(self.page, lab, name, wait_for=SLIDER)
        self.slider = self.page.locator(SLIDER).first
        self.slider.evaluate(PROBE)

    def press(self, key: str) -> float:
        """Milliseconds from the key press to the new picture."""
        number = self.page.evaluate("probe.shown.length")
        self.page.keyboard.press(key)
        self.page.wait_for_function(f"probe.shown.length > {number}", timeout=15_000, polling=20)
        took = self.page.evaluate(f"probe.shown[{number}] - probe.pressed")
        self.page.wait_for_timeout(300 + random.uniform(0, 100))  # late messages of this move
        return took

    def moves(self, *keys: str) -> list[float]:
        """The milliseconds of each key, from ``START`` on; one move there and back is not counted."""
        self.page.bring_to_front()
        self.slider.focus()
        for key in ["Home"] + ["ArrowRight"] * (START - 1):
            self.page.keyboard.press(key)
            self.page.wait_for_timeout(30)
        self.page.wait_for_timeout(1500)
        for key in ("ArrowRight", "ArrowLeft"):
            self.press(key)
        return [self.press(key) for key in keys]


def blank_share(page: Page) -> tuple[int, int]:
    """Blank frames, and all frames, that the compositor showed while the slider moved: by pixels, not by the DOM."""
    page.page.bring_to_front()
    page.slider.focus()
    box = page.page.locator(".jp-OutputArea-output img").first.bounding_box()
    corners = (box["x"], box["y"], box["x"] + box["width"], min(box["y"] + box["height"], 1000))
    session, frames = page.page.context.new_cdp_session(page.page), []

    def keep(event):
        frames.append(event["data"])
        session.send("Page.screencastFrameAck", {"sessionId": event["sessionId"]})

    session.on("Page.screencastFrame", keep)
    session.send("Page.startScreencast", {"format": "png", "everyNthFrame": 1})
    for key in ["ArrowRight"] * MOVES + ["ArrowLeft"] * MOVES:
        page.press(key)
    session.send("Page.stopScreencast")
    crops = [Image.open(io.BytesIO(base64.b64decode(data))).convert("L").crop(corners) for data in frames]
    ink = [float((np.asarray(crop) < 200).mean()) for crop in crops]
    return sum(share < statistics.median(ink) / 4 for share in ink), len(ink)


def latencies() -> tuple[dict[str, dict[str, list[float]]], tuple[int, int]]:
    """Milliseconds by axis and by notebook, and the explorer's blank and all frames."""
    took = {axis: {"explorer": [], "interact": []} for axis in ("fixed", "rescaled")}
    keys = {
        "fixed": ["ArrowRight"] * MOVES + ["ArrowLeft"] * MOVES,
        "rescaled": ["End", "Home"] * (MOVES // 2),
    }
    with tempfile.TemporaryDirectory() as folder:
        root, port, token = Path(folder), free_port(), secrets.token_hex(16)
        write_notebook(root / "explorer.ipynb", EXPLORER)
        write_notebook(root / "interact.ipynb", INTERACT)
        lab = {"url": f"http://127.0.0.1:{port}", "token": token}
        options = [f"--port={port}", f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={root}"]
        command = [sys.executable, "-m", "jupyterlab", *QUIET_LAB, *options]
        chromium = shutil.which("chromium") or shutil.which("chromium-browser")
        with (
            running_server(command, f"{lab['url']}/api?token={token}", folder=root),
            running_chromium(chromium) as browser,
        ):
            pages = {name: Page(browser, lab, f"{name}.ipynb") for name in ("explorer", "interact")}
            for _ in range(ROUNDS):
                for axis, name in random.sample([(a, n) for a in took for n in pages], 4):
                    took[axis][name] += pages[name].moves(*keys[axis])
            blank = blank_share(pages["explorer"])
    return took, blank


def run() -> list[Row]:
    took, (blank, frames) = latencies()
    rows = []
    for axis, at_least in (("fixed", 5.0), ("rescaled", 2.5)):
        ours, theirs = took[axis]["explorer"], took[axis]["interact"]
        middle = [statistics.median(times) for times in (theirs, ours)]
        rows.append(
            Row(
                name=f"slider, {axis} axis: interact / explorer",
                ratio=middle[0] / middle[1],
                at_least=at_least,
                detail=f"medians {middle[0]:.0f} ms / {middle[1]:.0f} ms, {len(ours)} key presses each",
            )
        )
    detail = f"{blank} of {frames} frames on the screen while the explorer's slider moved"
    return [*rows, Row(name="slider: blank frames", ratio=blank / frames, at_most=0.0, detail=detail)]
