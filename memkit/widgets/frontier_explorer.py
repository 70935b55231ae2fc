"""The frontier explorer (chapter 04): strategies by FLOPs run again and peak, and their front."""

from memkit.cards import CARDS
from memkit.fit import NO_CARD, fit_on
from memkit.models import GPT2_LARGE, LLAMA_3_8B, LLAMA_32_1B
from memkit.pictures.planes import frontier_figure
from memkit.recipes import FUSED_ADAMW, PURE_BF16
from memkit.recomputation import beats, cheapest, pareto_front, points, shown_strategies
from memkit.setup import TrainingSetup
from memkit.units import format_bytes
from memkit.widgets.explorer import Choice, Explorer, View, rows_of, takes_length

MODELS = {model.name: model for model in (GPT2_LARGE, LLAMA_32_1B, LLAMA_3_8B)}
RECIPE = {"precision": PURE_BF16, "optimizer": FUSED_ADAMW}
LENGTHS = (512, 1024, 2048, 4096, 8192)
BATCHES = (1, 2, 4, 8, 16)
CHEAPEST = "cheapest that fits"
NAMES = [strategy.name for strategy in shown_strategies(next(iter(MODELS.values())))]


class FrontierExplorer(Explorer, verdict=(88,), status=(88, 140, 92, *[1] * 4)):
    """Model, micro-batch, sequence, card and strategy → the memory-compute plane, the plan and its code.

    A click on a point chooses its strategy, as the menu does.
    """

    def view(
        self,
        model=Choice("Model", MODELS, "Llama-3.2-1B"),
        micro_batch_size=Choice("Micro-batch", BATCHES, 8),
        seq_len=Choice("Sequence", LENGTHS, 1024, takes_length(MODELS)),
        card=Choice("Card", [NO_CARD, *CARDS], "RTX 4090"),
        strategy=Choice("Strategy", [CHEAPEST, *NAMES], CHEAPEST),
    ) -> View:
        """The plane for these values, the chosen strategy framed."""
        shape = {"micro_batch_size": micro_batch_size, "seq_len": seq_len}
        found = points(TrainingSetup(model=MODELS[model], **RECIPE, **shape))
        front = pareto_front(found)
        fits = [] if card == NO_CARD else [fit_on(CARDS[card], each.peak_bytes) for each in found]
        room = fits[0].room_bytes if fits else None
        own = found[NAMES.index(strategy)] if strategy in NAMES else cheapest(found, room)
        chosen = found.index(own)
        saved = 1 - own.peak_bytes / found[0].peak_bytes
        against = f"{saved:.0%} below none, for {own.overhead:.1%} more FLOPs"
        costs = f"peak {format_bytes(own.peak_bytes)}, {against if chosen else 'and nothing runs again'}"
        on_front = "It is on the front: nothing is both cheaper and smaller."
        if better := [each for each in front if beats(each.worth, own.worth)]:
            name = min(better, key=lambda each: each.worth).strategy.name
            on_front = f"It is not on the front: {name} costs no more and its peak is no higher."
        notes = [fit.verdict for fit in fits] or [""] * len(found)
        columns = {
            "strategy": NAMES,
            "FLOPs run again": [f"{each.overhead:.1%}" for each in found],
            "peak": [format_bytes(each.peak_bytes) for each in found],
            "front": ["yes" if each in front else "no" for each in found],
            "fits": notes,
        }
        title = f"{model}, micro-batch {micro_batch_size} × {seq_len:,} tokens"
        limit = (f"room on {card}", room) if fits else None
        chart = frontier_figure(title, found, front, notes, limit)
        chart.marked = chosen
        chart.alt = f"{title}: {len(found)} strategies by FLOPs run again. "
        chart.alt += f"Chosen: {own.strategy.name}, {costs}."
        words = (f"{own.strategy.name}: {costs}.", *([str(fits[chosen])] if fits else []), on_front)
        picks, code = {"strategy": NAMES}, own.strategy.code
        answer = {"headline": fits[chosen].headline, "verdict": notes[chosen]} if fits else {}
        table = rows_of(columns)
        return View(chart=chart, words=words, table=table, code=code, picks=picks, **answer)
