"""The moving picture at the top of README: the first step of chapter 00's film, as ``figures/film.gif``.

Where the peak is, the reader of the chapter is to guess, so the second step is left out. Chromium plays it.

``python dev/film_gif.py`` after ``make test`` has set up Playwright; Chromium has to be there. It is no
part of ``make figures``, which needs no browser.
"""

import shutil
import tempfile
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from memkit import TrainingSetup, models, trace_memory, training_build
from stepscope.widgets import SavedFilm

TARGET = Path(__file__).resolve().parents[1] / "figures" / "film.gif"
FRAMES, SECONDS, COLOURS = 44, 11, 48


def frames(address: str, num_events: int) -> list[Image.Image]:
    """Screenshots of the film at even steps over so many of its first events."""
    shots = []
    with sync_playwright() as playwright:
        chromium = next(
            filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
        )
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 900, "height": 640})
        for frame in range(FRAMES):
            page.goto(f"{address}#event={round(frame * (num_events - 1) / (FRAMES - 1))}")
            page.reload()
            page.wait_for_timeout(150)
            shots.append(Image.open(BytesIO(page.locator(".memkit-film").screenshot())))
        browser.close()
    return shots


def main() -> None:
    setup = TrainingSetup(model=models.TINY_GPT2, micro_batch_size=2, seq_len=128, device="cpu")
    steps = trace_memory(training_build(setup), device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "film.html"
        SavedFilm(steps, title="Two training steps of a small GPT-2", asks=True).save(page)
        shots = frames(page.as_uri(), sum(event.step == 1 for event in steps.events))
    # one palette for all, made of the fullest frame, so that nothing flickers
    palette = shots[len(shots) * 2 // 3].convert("RGB").quantize(COLOURS)
    small = [
        shot.convert("RGB").quantize(palette=palette, dither=Image.Dither.NONE) for shot in shots
    ]
    # without the buttons, which do nothing
    small = [shot.crop((0, 0, shot.width, shot.height - 60)) for shot in small]
    small[0].save(
        TARGET,
        save_all=True,
        append_images=small[1:],
        loop=0,
        optimize=True,
        duration=SECONDS * 1000 // FRAMES,
    )
    print(f"{TARGET.name}: {TARGET.stat().st_size / 1000:.0f} kB, {small[0].size}")


if __name__ == "__main__":
    main()
