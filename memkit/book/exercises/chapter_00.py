"""The exercise of chapter 00: what a check does."""

from memkit.book.exercises import NumberExercise

NUM_PARAMETERS = 350 * 10**6

EXERCISES = (
    NumberExercise(
        id="0.1",
        title="Weights of a model",
        right=2 * NUM_PARAMETERS,
        tolerance=0.001,
        because="bfloat16 has 16 bits, and 16 bits are 2 bytes.",
        mistakes=(
            (4 * NUM_PARAMETERS, "You took 4 bytes per number. That is float32."),
            (NUM_PARAMETERS // 2, "You divided by 2. A number has 2 bytes: multiply."),
            (NUM_PARAMETERS // 8, "You divided by 8 and took one bit for a number. It has 16."),
            (NUM_PARAMETERS, "That is the number of parameters. A bfloat16 number is more than one byte."),
            (8 * NUM_PARAMETERS, "You took 8 bytes per number. That is float64."),
            (16 * NUM_PARAMETERS, "16 bits taken for 16 bytes, or all that training keeps. Asked are the weights."),
            (0.7, "That is the number of GB. The answer is in bytes."),
        ),
        accepted=(7e8, 350_000_000 * 16 // 8, 667.57 * 2**20),
    ),
)
