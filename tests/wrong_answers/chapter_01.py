"""Wrong answers to the judged exercises of chapter 01, each with a part of what its judge has to say."""

from dataclasses import replace

from book.exercises import exercises_of
from book.exercises.chapter_01 import CONTEXT_BYTES, largest_batch
from memkit.units import GIB

SETUP, CARD = exercises_of(1)["1.6"].values.values()
ROOM_BYTES = CARD.memory_bytes - CONTEXT_BYTES

WRONG = {
    "1.5": (
        (1024, "still inside the optimizer's step"),
        (5120, "check that your run has precision=PURE_BF16"),
        (8192, "it had moved already"),
        (5000, "not a multiple of 1,024"),
        (4, "multiply by that"),
        ("4096", "is not a number of tokens"),
        (-1024, "is not a number of tokens"),
    ),
    "1.6": (
        (largest_batch(replace(SETUP, recomputation="none"), ROOM_BYTES), "without recomputation"),
        (largest_batch(SETUP, CARD.memory_bytes), "You used the whole card"),
        (largest_batch(SETUP, CARD.label_gb * GIB - CONTEXT_BYTES), "the label for GiB"),
        (largest_batch(SETUP, CARD.label_gb * 10**9 - CONTEXT_BYTES), "for 10**9 bytes"),
        (60, "It does not fit"),
        (1, "try one more"),
    ),
}
