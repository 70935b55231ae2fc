"""What matplotlib draws in a cell, as SVG beside its pixels: as it is, and laid out anew for a phone.

An extension of IPython that ``run_notebooks`` loads into its kernels. Both pictures are in the pixels' metadata, where
the site finds them; GitHub, and a notebook that nobody has trusted yet, show no SVG.
"""

import pickle
import re
import warnings
from io import BytesIO
from itertools import combinations, pairwise
from textwrap import fill
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a notebook that draws nothing does not load matplotlib
    from IPython import InteractiveShell
    from matplotlib.figure import Figure

PHONE = 4.0
"""Inches across on a phone: 10 points are 11 pixels of a page's 320."""
TITLE, WORDS = 30, 42
"""Letters of a bold line of 11 points, and of a line of 10 points, that are so wide."""
GREY = re.compile(r"#([0-9a-f]{2})\1\1\b")
INK, PAPER = 0xEC, 0x16
"""A dark page's, as ``memkit.pictures`` draws on it."""


def load_ipython_extension(shell: "InteractiveShell") -> None:
    """Each figure is shown with its SVGs in the metadata of its pixels."""
    bundles = shell.display_formatter.mimebundle_formatter
    bundles.for_type_by_name("matplotlib.figure", "Figure", lambda figure, **_: ({}, told(figure)))


def told(figure: "Figure") -> dict:
    """The metadata of a figure's pixels. Words that touch only on a phone say that it has no picture of its own."""
    from matplotlib import pyplot

    twin = pickle.loads(pickle.dumps(figure))
    pyplot.close(twin)  # or it is shown too
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # a layout that has no room: what cannot be read is not kept
        pictures, before = {"svg": for_a_page(twin)}, touching(twin)
        for_a_phone(twin)
        if touching(twin) <= before:
            pictures["narrow"] = for_a_page(twin)
    return {"image/png": pictures}


def for_a_phone(figure: "Figure") -> None:
    """Change a figure: long words in lines, axes below each other, and below them what the colours mean."""
    axes, height, names = figure.axes, figure.get_figheight(), {}
    below = figure.add_gridspec(len(axes), 1)
    for row, ax in enumerate(axes):
        if (grid := ax.get_gridspec()) and grid.ncols > 1:
            ax.set_subplotspec(below[row])
            ax.tick_params(labelleft=True, labelbottom=True)
        for title in (ax.title, ax._left_title, ax._right_title):
            title.set_text(fill(title.get_text(), TITLE))
        ax.xaxis.label.set_text(fill(ax.get_xlabel(), WORDS))
    for legend in filter(None, [*(ax.get_legend() for ax in axes), *figure.legends]):
        for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
            names[fill(text.get_text(), WORDS - 4)] = handle
        legend.remove()
    figure.set_size_inches(PHONE, max(3.4, height) + 0.2 * len(names))
    if names:
        figure.legend(list(names.values()), list(names), loc="outside lower left")


def touching(figure: "Figure") -> int:
    """How many pairs of words touch."""
    figure.draw_without_rendering()
    words = figure.findobj(lambda each: hasattr(each, "get_fontsize") and each.get_visible())
    boxes = [text.get_window_extent() for text in words if text.get_text()]
    boxes = [box.padded(2, 0) for box in boxes if box.width > 3]
    return sum(one.overlaps(other) for one, other in combinations(boxes, 2))


def for_a_page(figure: "Figure") -> str:
    """A figure as SVG for a light or a dark page: its greys go from the page's ink to its paper.

    What no reader sees goes: names of groups, what made it, a hundredth of a point.
    """
    drawn = BytesIO()
    figure.savefig(drawn, format="svg", bbox_inches="tight", metadata={"Date": None})
    _, _, svg = drawn.getvalue().decode().partition("<svg")
    svg = re.sub("<metadata>.*?</metadata>|<!--.*?-->", "", f"<svg{svg}", flags=re.DOTALL)
    svg = re.sub(r"\s*\n\s*", "", re.sub(r' id="[a-zA-Z\d.]+_\d+"', "", svg))

    def short(tag: re.Match) -> str:
        return re.sub(r"\d+\.\d+", lambda size: f"{round(float(size[0]), 1):g}", tag[0])

    def pixels(side: re.Match) -> str:
        return f'{side[1]}="{float(side[2]) * figure.dpi / 72:.0f}"'

    svg = re.sub("<[^>]+>", short, re.sub(r'(width|height)="([\d.]+)pt"', pixels, svg))
    svg = re.sub(r'(?<= d="M )[-\d. L]+', lambda path: straight(path[0]), svg)
    greys = {grey: int(grey, 16) / 255 for grey in sorted({*GREY.findall(svg), "00", "ff"})}
    light = "".join(f"--g{grey}:#{grey * 3};" for grey in greys)
    inks = {grey: f"{round(INK + (PAPER - INK) * shade):02x}" for grey, shade in greys.items()}
    dark = "".join(f"--g{grey}:#{ink * 3};" for grey, ink in inks.items())
    style = f"svg{{fill:var(--g00);{light}}}@media(prefers-color-scheme:dark){{svg{{{dark}}}}}"
    head, end, inside = GREY.sub(r"var(--g\1)", svg).partition(">")
    return f"{head}{end}<style>{style}</style>{inside}"


def straight(path: str) -> str:
    """A path without the points that lie on the way from one neighbour to the other, across or down.

    >>> straight("1 5L 2 5L 3 5L 3 9L 3 5")
    '1 5L 3 5L 3 9L 3 5'
    """
    points = [(*map(float, point.split()), point) for point in path.split("L ")]

    def is_between(before: tuple, here: tuple, after: tuple) -> bool:
        return any(
            before[axis] == here[axis] == after[axis]
            and sorted((before, here, after), key=lambda point: point[1 - axis])[1] == here
            for axis in (0, 1)
        )

    kept = points[:1]
    for here, after in pairwise(points[1:]):
        if not is_between(kept[-1], here, after):
            kept.append(here)
    return "L ".join(text for _, _, text in (*kept, *points[1:][-1:]))
