"""What a GPU's streams did and when, as bars on one clock: copies under computations, and gaps."""

from collections.abc import Sequence

from memkit.pictures.axes import Scale, round_ticks, ticks_below
from memkit.pictures.svg import OKABE_ITO, Chart, text_width


def streams_figure(events: Sequence[dict], title: str = "Kernels and copies on their streams") -> Chart:
    """One row a stream, one bar an event of an execution trace with ``ts`` and ``dur`` in microseconds.

    Raises: ValueError: no event that ran on a stream.
    """
    ran = [event for event in events if event.get("ph") == "X" and "stream" in event.get("args", {})]
    if not ran:
        raise ValueError(f"{len(events)} events, none of them on a stream")
    rows = sorted({event["args"]["stream"] for event in ran})
    kinds = list(dict.fromkeys(event["cat"] for event in ran))
    bottom = 44 + 44 * len(rows)
    chart = Chart(800, bottom + 50, title)
    first, last = min(e["ts"] for e in ran), max(e["ts"] + e["dur"] for e in ran)
    x = Scale(low=first - 1, high=last + 1, start=88, end=782)
    ticks_below(chart, x, [(t, f"{t:,g}") for t in round_ticks(x.low, x.high, 8)], 38, bottom, "µs")
    for row, stream in enumerate(rows):
        chart.words(80, 64 + 44 * row, f"stream {stream}", 12, anchor="end")
    for event in ran:
        kind, y = kinds.index(event["cat"]), 64 + 44 * rows.index(event["args"]["stream"])
        left, wide = x(event["ts"]), x(event["ts"] + event["dur"]) - x(event["ts"])
        long = f"{event['name']}, {event['dur']:g}"
        chart.rect(
            left,
            y - 15,
            wide,
            30,
            (OKABE_ITO[kind % len(OKABE_ITO)], ("", "///")[kind % 2]),
            shade=0.38,
            stroke="currentColor",
            stroke_opacity=0.5,
            tip=f"{long} µs from {event['ts']:g}",
            data={"start": f"{event['ts']:g}", "duration": f"{event['dur']:g}"},
        )
        words = long if text_width(long, 11.5) <= wide else event["name"]
        if text_width(words, 11.5) <= wide + 24:
            chart.words(left + wide / 2, y, words, 11.5, anchor="middle")
    spans = "; ".join(
        f"stream {e['args']['stream']}, {e['name']} from {e['ts']:g} to {e['ts'] + e['dur']:g} µs"
        for e in ran
    )
    chart.alt = f"{title}: {spans}."
    return chart
