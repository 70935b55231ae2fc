"""Bytes per parameter of several recipes: a stacked bar each, every addend with its number."""

from collections.abc import Mapping

from memkit.pictures.axes import Scale
from memkit.pictures.svg import LOOKS, OTHER, PAPER, Chart, text_width


def recipes_figure(recipes: Mapping[str, Mapping[str, float]], title: str = "Bytes per parameter") -> Chart:
    """Addends by recipe, in bytes per parameter, as ``bytes_per_parameter`` gives them; or claims by verdict.

    Raises: ValueError: no recipe.
    """
    if not recipes:
        raise ValueError("no recipe to draw")
    names = list(dict.fromkeys(name for addends in recipes.values() for name in addends))
    chart = Chart(800, 0, title)
    top = chart.legend([(LOOKS.get(name, OTHER), name) for name in names], 10, 46, 780) + 8
    chart.height = top + 34 * len(recipes)
    largest = max(sum(addends.values()) for addends in recipes.values())
    left = 24 + max(text_width(recipe, 12.5) for recipe in recipes)
    x = Scale(low=0, high=largest * 1.09, start=left, end=780)
    for row, (recipe, addends) in enumerate(recipes.items()):
        start, y = 0.0, top + 12 + 34 * row
        for name, size in addends.items():
            tells = {"tip": f"{name}: {size:g}, {recipe}", "data": {"name": name, "size": f"{size:g}"}}
            chart.rect(x(start), y - 12, x(size) - x(0), 24, LOOKS.get(name, OTHER), **tells, stroke=PAPER)
            if size >= max(1, 0.02 * largest):  # room for a number
                chart.words(x(start + size / 2), y, f"{size:g}", 12, anchor="middle", boxed=True)
            start += size
        chart.words(left - 10, y, recipe, 12.5, anchor="end")
        chart.words(x(start) + 8, y, f"{start:.4g}", 12.5, bold=True)
    sums = "; ".join(f"{recipe} {sum(addends.values()):.4g}" for recipe, addends in recipes.items())
    chart.alt = f"{title}: {sums}."
    return chart
