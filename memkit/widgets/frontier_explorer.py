"""The frontier explorer: every strategy on the memory-compute plane, the front, the plan and its code."""

from memkit.fitting.room import fit_on
from memkit.hardware.cards import CARDS
from memkit.pictures.planes import frontier_figure
from memkit.recomputation.frontier import (
    MODELS,
    Point,
    beats,
    overhead_of,
    pareto_front,
    points,
    shown_strategies,
)
from memkit.units import format_bytes
from memkit.widgets.explorer import Choice, Explorer, View, model_takes

NO_CARD = "no card"
LENGTHS = (512, 1024, 2048, 4096, 8192)
BATCHES = (1, 2, 4, 8, 16)
CHEAPEST = "cheapest that fits"
NAMES = [strategy.name for strategy in shown_strategies(next(iter(MODELS.values())))]


def cheapest_that_fits(found: tuple[Point, ...], room_bytes: int | None) -> int:
    """Index of the point with the fewest FLOPs that fits, of equals the first; of the lowest peak if none fits."""
    fitting = [p for p in found if room_bytes is None or p.peak_bytes <= room_bytes]
    if fitting:
        return found.index(min(fitting, key=lambda point: point.overhead))
    return found.index(min(found, key=lambda point: point.peak_bytes))


class FrontierExplorer(Explorer):
    """Model, micro-batch, sequence, card and strategy → the memory-compute plane, the plan and its code.

    A click on a point chooses its strategy, as the menu does.
    """

    def __init__(self, **values):
        for config in MODELS.values():  # a move then finds its FLOPs counted
            for length in LENGTHS:
                for strategy in shown_strategies(config):
                    if length <= config.max_seq_len:
                        overhead_of(config, strategy, length)
        super().__init__(**values)

    def view(
        self,
        model=Choice("Model", MODELS, "Llama-3.2-1B"),
        micro_batch_size=Choice("Micro-batch", BATCHES, 8),
        seq_len=Choice("Sequence", LENGTHS, 1024, model_takes),
        card=Choice("Card", [NO_CARD, *CARDS], "RTX 4090"),
        strategy=Choice("Strategy", [CHEAPEST, *NAMES], CHEAPEST),
    ) -> View:
        """The plane for these values."""
        config = MODELS[model]
        found = points(config, micro_batch_size, seq_len)
        room = fit_on(CARDS[card], 0).room_bytes if card != NO_CARD else None
        chosen = cheapest_that_fits(found, room) if strategy == CHEAPEST else NAMES.index(strategy)
        title = f"{model}, micro-batch {micro_batch_size} × {seq_len:,} tokens"
        title += f", {card} with {format_bytes(room)} of room" if room else ""
        chart = frontier_figure(found, chosen, title=title, room_bytes=room)
        said, code = words(found, chosen, card), found[chosen].strategy.code
        return View(chart=chart, words=said, table=table(found, card), code=code, picks={"strategy": NAMES})


def words(found: tuple[Point, ...], chosen: int, card: str) -> tuple[str, ...]:
    """What the chosen strategy costs and saves, and whether it fits."""
    point, plain = found[chosen], found[0]
    saved = 1 - point.peak_bytes / plain.peak_bytes
    peak = format_bytes(point.peak_bytes)
    against = f"{saved:.0%} below none, for {point.overhead:.1%} more FLOPs"
    if chosen == 0:
        against = "and nothing runs again"
    elif saved <= 0:
        against = f"no lower than none, for {point.overhead:.1%} more FLOPs"
    sentences = [f"{point.strategy.name}: peak {peak}, {against}."]
    if card != NO_CARD:
        sentences.append(str(fit_on(CARDS[card], point.peak_bytes)))
    better = [each for each in pareto_front(found) if beats(each.worth, point.worth)]
    if not better:
        sentences.append("It is on the front: nothing is both cheaper and smaller.")
    else:
        name = min(better, key=lambda each: each.worth).strategy.name
        sentences.append(f"It is not on the front: {name} costs no more and its peak is no higher.")
    return tuple(sentences)


def table(found: tuple[Point, ...], card: str) -> list[tuple[str, ...]]:
    """The points as rows."""
    front = pareto_front(found)
    rows = [("strategy", "FLOPs run again", "peak", "front", "fits")]
    for point in found:
        fits = "" if card == NO_CARD else fit_on(CARDS[card], point.peak_bytes).verdict
        on_front = "yes" if point in front else "no"
        rows.append((point.strategy.name, f"{point.overhead:.1%}", format_bytes(point.peak_bytes), on_front, fits))
    return rows
