"""What a GPU's streams did and when, as bars on one clock: copies under computations, and gaps."""

from collections.abc import Sequence

from matplotlib.patches import Rectangle

from memkit.pictures.picture import INK, OKABE_ITO, Picture, bare, hatched, mix


def streams_figure(events: Sequence[dict], title: str = "Kernels and copies on their streams") -> Picture:
    """One row a stream, one bar an event of an execution trace with ``ts`` and ``dur`` in microseconds.

    Raises: ValueError: no event that ran on a stream.
    """
    ran = [event for event in events if event.get("ph") == "X" and "stream" in event.get("args", {})]
    if not ran:
        raise ValueError(f"{len(events)} events, none of them on a stream")
    rows = sorted({event["args"]["stream"] for event in ran})
    picture = Picture(8.0, 1.0 + 0.42 * len(rows))
    height = picture.get_figheight()
    plot = picture.add_axes((0.11, 0.42 / height, 0.86, 1 - 0.86 / height))
    kinds = list(dict.fromkeys(event["cat"] for event in ran))
    first, last = min(e["ts"] for e in ran), max(e["ts"] + e["dur"] for e in ran)
    for event in ran:
        look, row = kinds.index(event["cat"]), rows.index(event["args"]["stream"])
        colour = mix(OKABE_ITO[look % len(OKABE_ITO)], 0.375)
        place = (event["ts"], row - 0.33)
        plot.add_patch(
            hatched(Rectangle, place, event["dur"], 0.66, facecolor=colour, hatch=("", "///")[look % 2], linewidth=1)
        )
        has_room = event["dur"] >= (last - first) / 10
        words = f"{event['name']}, {event['dur']:g}" if has_room else event["name"]
        plot.text(event["ts"] + event["dur"] / 2, row, words, fontsize=8.5, ha="center", va="center", color=INK)
    plot.set(xlim=(first - 1, last + 1), ylim=(len(rows) - 0.5, -0.5))
    plot.set_yticks(range(len(rows)), [f"stream {row}" for row in rows])
    bare(plot, "µs", grid="x", hides=("top", "right", "left"), length=0)
    picture.text(0.012, 1 - 0.22 / height, title, fontsize=11.5, fontweight="bold", va="center", color=INK)
    spans = "; ".join(
        f"stream {e['args']['stream']}, {e['name']} from {e['ts']:g} to {e['ts'] + e['dur']:g} µs" for e in ran
    )
    picture.alt = f"{title}: {spans}."
    return picture
