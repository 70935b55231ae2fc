"""Bytes per parameter of several recipes: a stacked bar each, every addend with its number."""

from collections.abc import Mapping

from matplotlib.patches import Rectangle

from memkit.pictures.picture import GREY, INK, OKABE_ITO, Picture, hatched

LOOK = {
    "weight": (OKABE_ITO[0], ""),
    "gradient": (OKABE_ITO[2], "///"),
    "main gradient": (OKABE_ITO[1], "xxx"),
    "master weight": (OKABE_ITO[5], "..."),
    "remainder": (OKABE_ITO[7], "\\\\\\"),
    "momentum_buffer": (OKABE_ITO[5], "///"),
    "exp_avg": (OKABE_ITO[3], "---"),
    "exp_avg_sq": (OKABE_ITO[4], "|||"),
    "wrong": (OKABE_ITO[1], "///"),
    "outdated": (OKABE_ITO[7], "..."),
    "conditional": (OKABE_ITO[2], ""),
    "true": (OKABE_ITO[3], "---"),
}
OTHER = (OKABE_ITO[6], "++")


def recipes_figure(recipes: Mapping[str, Mapping[str, float]], title: str = "Bytes per parameter") -> Picture:
    """Addends by recipe, in bytes per parameter, as ``bytes_per_parameter`` gives them; or claims by verdict."""
    if not recipes:
        raise ValueError("no recipe to draw")
    picture = Picture(8.0, 1.35 + 0.36 * len(recipes))
    height = picture.get_figheight()
    largest = max(sum(addends.values()) for addends in recipes.values())
    left_edge = max(0.29, 0.0065 + 0.00885 * max(map(len, recipes)))
    plot = picture.surface((left_edge, 0.1 / height, 0.97 - left_edge, 1 - 1.15 / height))
    plot.set(xlim=(0, largest * 1.09), ylim=(len(recipes) - 0.4, -0.6))
    drawn = {}
    for row, (recipe, addends) in enumerate(recipes.items()):
        left = 0.0
        for name, size in addends.items():
            colour, hatch = LOOK.get(name, OTHER)
            bar = hatched(Rectangle, (left, row - 0.36), size, 0.72, facecolor=colour, hatch=hatch, linewidth=1)
            drawn.setdefault(name, (colour, hatch))
            plot.add_patch(bar)
            if size >= max(1, 0.02 * largest):  # room for a number
                box = {"facecolor": "white", "edgecolor": "none", "pad": 1.2}
                plot.text(left + size / 2, row, f"{size:g}", ha="center", va="center", fontsize=9, color=INK, bbox=box)
            left += size
        plot.text(-largest * 0.015, row, recipe, ha="right", va="center", fontsize=9.5, color=INK)
        plot.text(left + largest * 0.012, row, f"{left:.4g}", ha="left", va="center", fontsize=9.5, color=INK,
                  fontweight="bold")  # fmt: skip
    picture.text(0.012, 1 - 0.22 / height, title, fontsize=11.5, fontweight="bold", va="center", color=INK)
    legend = picture.surface((0.012, 1 - 0.82 / height, 0.98, 0.4 / height), xlim=(0, 98), ylim=(0, 1))
    place = 0.0
    for name, (colour, hatch) in drawn.items():
        legend.add_patch(hatched(Rectangle, (place, 0.2), 2.4, 0.6, facecolor=colour, hatch=hatch, linewidth=0))
        legend.text(place + 3.0, 0.5, name, fontsize=9, va="center", color=GREY)
        place += 4.6 + 1.0 * len(name)
    sums = "; ".join(f"{recipe} {sum(addends.values()):.4g}" for recipe, addends in recipes.items())
    picture.alt = f"{title}: {sums}."
    return picture
