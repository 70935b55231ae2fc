"""Wrong answers to the judged exercises of chapter 01, each with a part of what its judge has to say."""

import inspect
from dataclasses import replace

from book.exercises import exercises_of
from book.exercises.chapter_01 import CONTEXT_BYTES, largest_batch, peak_by_hand
from memkit.units import GIB

SETUP, CARD = exercises_of(1)["1.6"].values.values()
ROOM_BYTES = CARD.memory_bytes - CONTEXT_BYTES


def with_sum(right: str, wrong: str):
    """``peak_by_hand`` with another sum in one of its three last lines."""
    source, names = inspect.getsource(peak_by_hand), {}
    assert source.count(right) == 1
    exec(source.replace(right, wrong), names)
    return names["peak_by_hand"]


START, END = "W + S + A + 2 * logits", "W + S + G + (2 * width * table if tied else 0)"
STEP = "W + S + G + (W if foreach else 0)"

WRONG = {
    "1.a": (
        (with_sum(START, "W + S + A + logits"), "that is one"),
        (with_sum(START, "W + S + A"), "are missing: they come on top of A"),
        (with_sum(START, "W + S + A + 3 * logits"), "A counts the log-softmax already"),
        (with_sum(START, "W + S + G + A + 2 * logits"), "zero_grad has freed the gradients"),
        (with_sum(START, "W + S + G + A"), "the sum of all"),
        (with_sum(START, "W + A + 2 * logits"), "The states are missing"),
        (with_sum(START, "W + S + 2 * logits"), "The activations are missing"),
        (with_sum(START, "(W + S + A + 2 * logits) / 2**30"), "9.31e-10 times what it should be"),
        (with_sum(END, "W + S + G"), "A tied head's two tables are missing"),
        (with_sum(END, "W + S + G + 2 * width * table"), "see `tied`"),
        (with_sum(END, "W + S + G + (width * table if tied else 0)"), "One table is not enough"),
        (with_sum(END, "W + S + G + (2 * table if tied else 0)"), "times width they are bytes"),
        (with_sum(END, "W + S + G + A"), "The activations are gone"),
        (with_sum(END, "W + S + (2 * width * table if tied else 0)"), "The gradients are missing"),
        (with_sum(STEP, "W + S + G"), "one copy of the weights comes on top"),
        (with_sum(STEP, "W + S + G + W"), "see `foreach`"),
        (with_sum(STEP, "W + S + G + (2 * W if foreach else 0)"), "not two"),
        (with_sum(STEP, "W + S + (W if foreach else 0)"), "until zero_grad frees them"),
        (with_sum(STEP, "W + S + G + A"), "The activations are gone"),
        (lambda **run: sum(peak_by_hand(**run).values()), "Wanted is a dictionary of three"),
        (35.86, "is not a function"),
    ),
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
