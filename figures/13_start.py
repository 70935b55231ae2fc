"""Chapter 13's title figure: what one page prints for the same job with two libraries, and one card of 80 GB."""

from pathlib import Path

from memkit.cards import CARDS
from memkit.pictures.timeline import choices_figure
from memkit.timeline import Instant
from memkit.units import GIB


def printed(training: float, logits: float, engine: float, cache: float) -> Instant:
    """The addends of https://unsloth.ai/blog/grpo (February 2025) as it prints them, by the part that they are."""
    sizes = [round(GIB * size) for size in (engine, training + cache, logits)]
    weights, activations, temporary = sizes
    return Instant(
        name="printed",
        weights=weights,
        gradients=0,
        optimizer_states=0,
        activations=activations,
        temporary=temporary,
    )


choices_figure(
    {"TRL": printed(414, 78.3, 16, 2.5), "Unsloth": printed(42, 9.8, 0, 2.5)},
    "Eight answers of 20,480 tokens, as printed",
    "the page's GB, drawn as GiB; dashed: one H100 of 80 GB",
    CARDS["H100 SXM"].memory_bytes,
).write_files(Path(__file__).with_suffix(""))
