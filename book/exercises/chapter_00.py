"""The exercises of chapter 00: what a check does, and what a batch changes."""

from book.exercises import NumberExercise

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
    NumberExercise(
        id="0.2",
        title="Twice the batch",
        right=62 + 124 + 2 * 66 + 2 * 2 * 49,
        unit="MiB",
        tolerance=0.005,
        because="Weights and states belong to the model and stay; what belongs to the tokens doubles.",
        mistakes=(
            (2 * 350, "You doubled all of it. Weights and states belong to the model: no batch changes them."),
            (500, "Rounded to one digit; or 1 GiB taken for 1,000 MiB. It is 1,024."),
            (350, "That is the peak with two sequences. Which addends grow with the tokens?"),
            (62 + 124 + 2 * 66 + 98, "The logits have a row for each token: their two tensors double too."),
            (62 + 124 + 66 + 2 * 98, "The activations are kept for each token: they double too."),
            (62 + 124 + 2 * 66 + 3 * 49, "Two tensors of the logits' size stand there, and both double."),
            (2 * 62 + 124 + 2 * 66 + 2 * 98, "62 too many: the weights twice, or gradients, and none is alive yet."),
            (62 + 2 * 124 + 2 * 66 + 2 * 98, "AdamW's states are as large as before: they belong to the parameters."),
            (2 * 66 + 2 * 98, "That is what doubles. Weights and states stand beside it."),
            (62 + 2 * 66 + 2 * 98, "AdamW's states, 124 MiB, are there from the second step on."),
            (124 + 2 * 66 + 2 * 98, "The weights, 62 MiB, stand there too."),
            (62 + 124 + 2 * 66, "The two tensors of the logits' size are missing."),
        ),
        accepted=(513.94, 514, 512, 0.502 * 1024),
    ),
)
