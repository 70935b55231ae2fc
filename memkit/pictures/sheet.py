"""A sheet of techniques: for each, a bar a job for what is left of its peak, and what it costs in words."""

from collections.abc import Mapping, Sequence

from matplotlib.patches import Rectangle

from memkit.pictures.picture import GREY, INK, OKABE_ITO, Picture, hatched

LONGEST = 1.3
"""A bar longer than this share of the plain job's peak is cut, with a break in it; its number says how long it is."""

LOOKS = ((OKABE_ITO[0], ""), (OKABE_ITO[2], "///"), (OKABE_ITO[3], "..."))


def sheet_figure(rows: Sequence[tuple[str, Mapping[str, float], Sequence[str]]], columns: Sequence[str],
                 title: str) -> Picture:  # fmt: skip
    """Rows of (name, job → share of its plain peak, words); ``columns`` head the words.

    Raises: ValueError: no rows, or more jobs than looks.
    """
    if not rows:
        raise ValueError("no rows to draw")
    jobs = list(rows[0][1])
    if len(jobs) > len(LOOKS):
        raise ValueError(f"{len(jobs)} jobs; {len(LOOKS)} at most can be told apart")
    picture = Picture(10.5, 1.25 + 0.44 * len(rows))
    height = picture.get_figheight()
    plot = picture.surface((0.012, 0.015, 0.976, 1 - 1.15 / height), xlim=(0, 100), ylim=(len(rows) - 0.4, -0.65))
    left, width = 25, 28
    plot.plot([left + width / LONGEST] * 2, [-0.55, len(rows) - 0.45], color=GREY, linewidth=0.8, linestyle=":")
    longest = [max(len(row[2][number]) for row in rows) for number in range(len(columns))]
    wide = [max(each, len(head)) + 4 for each, head in zip(longest, columns, strict=True)]
    places = [59 + 41 * sum(wide[:number]) / sum(wide) for number in range(len(columns))]
    for place, words in zip(places, columns, strict=True):
        picture_text(plot, place, -0.85, words, color=GREY)
    for row, (name, shares, words) in enumerate(rows):
        picture_text(plot, 0, row, name)
        for number, job in enumerate(jobs):
            colour, hatch = LOOKS[number]
            tall = 0.74 / len(jobs)
            top = row - 0.37 + number * tall
            bar = width * min(shares[job], LONGEST) / LONGEST
            plot.add_patch(hatched(Rectangle, (left, top), bar, tall, facecolor=colour, hatch=hatch, linewidth=0))
            if shares[job] > LONGEST:
                for style in ({"color": INK, "linewidth": 6}, {"color": "white", "linewidth": 3.6}):
                    plot.plot((left + bar - 2.1, left + bar - 1.3), (top, top + tall), solid_capstyle="butt", **style)
            picture_text(plot, left + bar + 0.7, top + tall / 2, f"{shares[job]:.0%}", size=8.5)
        for place, text in zip(places, words, strict=True):
            picture_text(plot, place, row, text)
    picture.text(0.012, 1 - 0.2 / height, title, fontsize=12, fontweight="bold", va="center", color=INK)
    legend = picture.surface((0.012, 1 - 0.62 / height, 0.976, 0.3 / height), xlim=(0, 100), ylim=(0, 1))
    for number, job in enumerate(jobs):
        colour, hatch = LOOKS[number]
        legend.add_patch(hatched(Rectangle, (left + 22 * number, 0.2), 2, 0.6, facecolor=colour, hatch=hatch,
                                 linewidth=0))  # fmt: skip
        picture_text(legend, left + 22 * number + 2.6, 0.5, job, color=GREY)
    lines = (f"{name} {', '.join(f'{share:.0%}' for share in shares.values())}" for name, shares, _ in rows)
    picture.alt = f"{title}, for {' and '.join(jobs)}: {'; '.join(lines)}."
    return picture


def picture_text(axes: object, x: float, y: float, text: str, color: str = INK, size: float = 9.5) -> None:
    """Text on one line, from ``x`` to the right."""
    axes.text(x, y, text, fontsize=size, va="center", ha="left", color=color)
