"""The cache explorer: a model, a card and sequences → weights, key and value cache, and what fits."""

from memkit.fitting.room import planned_room
from memkit.formula.inference import inference_bytes, kv_cache_bytes_per_token
from memkit.hardware.cards import CARDS
from memkit.pictures.lines import memory_lines
from memkit.setup.models import PUBLISHED_MODELS
from memkit.units import format_bytes
from memkit.widgets.explorer import Choice, Explorer, Number, View

WEIGHTS = ("bfloat16", "float8_e4m3fn", "int4")
CACHES = ("bfloat16", "float8_e4m3fn")
SHOWN = 8
"""Places on the axis of sequences: up to the next power of two above the chosen number."""


class CacheExplorer(Explorer):
    """Model, dtypes, sequences at once, tokens in each, card → weights and cache, and how many sequences fit."""

    def view(
        self,
        model=Choice("Model", PUBLISHED_MODELS, "Llama-2-7B"),
        weight_dtype=Choice("Weights in", WEIGHTS, WEIGHTS[0]),
        cache_dtype=Choice("Cache in", CACHES, CACHES[0]),
        num_sequences=Number("Sequences", 8, low=1, high=256),
        seq_len=Number("Tokens in each", 4096, low=128, high=32768, step=128),
        card=Choice("Card", CARDS, "A100 SXM 40 GB"),
    ) -> View:
        """Bytes over the number of sequences, with the card as a line."""
        config, own = PUBLISHED_MODELS[model], CARDS[card]
        last = 1 << max(num_sequences, SHOWN).bit_length()
        numbers = sorted({1, num_sequences, *range(last // SHOWN, last + 1, last // SHOWN)})
        dtypes = {"weight_dtype": weight_dtype, "cache_dtype": cache_dtype}
        bytes_of = {n: inference_bytes(config, batch_size=n, seq_len=seq_len, **dtypes) for n in numbers}
        curves = {
            "weights and cache": [sum(bytes_of[n].values()) for n in numbers],
            "weights": [bytes_of[n]["weights"] for n in numbers],
        }
        title = f"{model} answers {num_sequences} sequences of {seq_len:,} tokens"
        chart = memory_lines(title, numbers, curves, "sequences at once", (card, own.memory_bytes))
        weights, cache = bytes_of[num_sequences].values()
        each = kv_cache_bytes_per_token(config, cache_dtype)
        room = planned_room(own.memory_bytes) - weights
        words = (
            f"Weights {format_bytes(weights)}, cache {format_bytes(cache)}: together {format_bytes(weights + cache)}.",
            f"A token leaves {format_bytes(each)} in the cache, a sequence {format_bytes(each * seq_len)}.",
            fitting_in_words(room, each * seq_len, num_sequences, card),
        )
        rows = [(str(n), *map(format_bytes, (*parts.values(), sum(parts.values())))) for n, parts in bytes_of.items()]
        return View(chart=chart, words=words, table=[("sequences", "weights", "cache", "together"), *rows])


def fitting_in_words(room: int, sequence_bytes: int, num_sequences: int, card: str) -> str:
    """How many sequences fit beside the weights, and how many tokens that is."""
    if room < sequence_bytes:
        return f"On one {card} {'not even the weights fit' if room < 0 else 'not one such sequence fits'}."
    most = room // sequence_bytes
    fits = "fit" if num_sequences <= most else "do not fit"
    counted = "beside the weights, context and slack counted"
    return f"On one {card} {most:,} such sequences fit {counted}; {num_sequences} {fits}."
