"""The exercise of chapter 00: what a check does."""

from memkit.book.exercises import Mistake, NumberExercise

NUM_PARAMETERS = 350 * 10**6

EXERCISES = (
    NumberExercise(
        id="0.1",
        title="Weights of a model",
        right=2 * NUM_PARAMETERS,
        because="bfloat16 has 16 bits, and 16 bits are 2 bytes.",
        mistakes=(
            Mistake(answer=4 * NUM_PARAMETERS, diagnosis="You took 4 bytes per number. That is float32."),
            Mistake(answer=NUM_PARAMETERS, diagnosis="You took 1 byte per number. That is an 8-bit format."),
        ),
    ),
)
