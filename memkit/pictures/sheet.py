"""A sheet of techniques: for each, a bar a job for what is left of its peak, and what it costs in words."""

from collections.abc import Mapping, Sequence

from memkit.pictures.svg import GREY, OKABE_ITO, PAPER, Chart, text_width

LONGEST = 1.3
"""A bar longer than this share of the plain job's peak is cut, with a break in it; its number says how long it is."""
LOOKS = ((OKABE_ITO[0], ""), (OKABE_ITO[2], "///"), (OKABE_ITO[3], "..."))


def sheet_figure(
    rows: Sequence[tuple[str, Mapping[str, float], Sequence[str]]], columns: Sequence[str], title: str
) -> Chart:
    """Rows of (name, job → share of its plain peak, words); ``columns`` head the words.

    Raises: ValueError: no rows, or more jobs than looks.
    """
    if not rows:
        raise ValueError("no rows to draw")
    jobs = list(rows[0][1])
    if len(jobs) > len(LOOKS):
        raise ValueError(f"{len(jobs)} jobs; {len(LOOKS)} at most can be told apart")
    left, width = 24 + max(text_width(name, 12) for name, *_ in rows), 250
    texts = [[head, *(row[2][number] for row in rows)] for number, head in enumerate(columns)]
    wide = [18 + max(text_width(text, 12) for text in column) for column in texts]
    start = left + width + 60
    chart = Chart(start + sum(wide), 108 + 44 * len(rows), title)
    chart.legend([(LOOKS[number], job) for number, job in enumerate(jobs)], 10, 48, chart.width)
    plain = left + width / LONGEST
    chart.line([(plain, 86), (plain, chart.height - 8)], shade=GREY, stroke_dasharray="1 3")
    for number, column in enumerate(texts):
        place = start + sum(wide[:number])
        chart.words(place, 80, column[0], 12, shade=GREY)
        for row, text in enumerate(column[1:]):
            chart.words(place, 112 + 44 * row, text, 12)
    tall = 34 / len(jobs)
    for row, (name, shares, _) in enumerate(rows):
        chart.words(10, 112 + 44 * row, name, 12)
        for number, job in enumerate(jobs):
            bar, y = width * min(shares[job], LONGEST) / LONGEST, 95 + 44 * row + number * tall
            tells = {
                "tip": f"{name}, {job}: {shares[job]:.1%}",
                "data": {"job": job, "share": f"{shares[job]:.6g}"},
            }
            chart.rect(left, y, bar, tall, LOOKS[number], **tells)
            if shares[job] > LONGEST:
                chart.area(
                    [[(left + bar - a, y + b) for a, b in ((20, tall), (14, 0), (9, 0), (15, tall))]],
                    (PAPER, ""),
                )
            chart.words(left + bar + 6, y + tall / 2, f"{shares[job]:.0%}", 11)
    lines = (f"{name} {', '.join(f'{share:.0%}' for share in shares.values())}" for name, shares, _ in rows)
    chart.alt = f"{title}, for {' and '.join(jobs)}: {'; '.join(lines)}."
    return chart
