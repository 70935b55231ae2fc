"""Wrong answers to the judged exercises of chapter 01, each with a part of what its judge has to say."""

from book.exercises.chapter_01 import CONTEXT_BYTES, FILL_A100
from memkit.units import GIB

largest_batch, CARD, ROOM_BYTES = FILL_A100.largest_batch, FILL_A100.card, FILL_A100.room_bytes

WRONG = {
    "1.5": (
        (1024, "still at the optimizer peak"),
        (8192, "it had moved already"),
        (5000, "not a multiple of 1,024"),
        (4, "multiply by that"),
        ("4096", "is not a number of tokens"),
        (-1024, "is not a number of tokens"),
    ),
    "1.6": (
        (largest_batch(ROOM_BYTES, "none"), "without recomputation"),
        (largest_batch(CARD.memory_bytes), "You used the whole card"),
        (largest_batch(CARD.label_gb * GIB - CONTEXT_BYTES), "the label for GiB"),
        (largest_batch(CARD.label_gb * 10**9 - CONTEXT_BYTES), "for 10**9 bytes"),
        (60, "It does not fit"),
        (1, "try one more"),
    ),
}
