"""The exercises of chapter 00: what a check does, and what a batch changes."""

from book.exercises import NumberExercise

EXERCISES = (
    NumberExercise(
        id="0.1",
        letters={"P": 350 * 10**6},
        formula="2 * P",
        tolerance=0.001,
        also=(7e8, "P * 16 // 8", "667.57 * 2**20"),
        because="bfloat16 has 16 bits, and 16 bits are 2 bytes.",
        table="""
        4 * P :: You took 4 bytes per number. That is float32.
        P // 2 :: You divided by 2. A number has 2 bytes: multiply.
        P // 8 :: You divided by 8 and took one bit for a number. It has 16.
        P :: That is the number of parameters. A bfloat16 number is more than one byte.
        8 * P :: You took 8 bytes per number, which is float64; or you multiplied by the 8 bits of a byte.
        16 * P :: That is the number of bits: a byte has 8. (16 bytes a parameter are all that training keeps.)
        0.7 :: That is the number of GB. The answer is in bytes.
        round(2 * P / 2**30, 2) :: That is the number of GiB. The answer is in bytes.
        """,
    ),
    NumberExercise(
        id="0.2",
        letters={"weights": 62, "states": 124, "kept": 66, "logits": 49},
        formula="weights + states + 2 * kept + 4 * logits",
        unit="MiB",
        tolerance=0.005,
        also=(513.94, 514, 512, "0.502 * 1024"),
        because="Weights and states belong to the model and stay; what belongs to the tokens doubles.",
        table="""
        2 * 350 :: You doubled all of it. Weights and states belong to the model: no batch changes them.
        500 :: Rounded to one digit; or 1 GiB taken for 1,000 MiB. It is 1,024.
        350 :: That is the peak with two sequences. Which addends grow with the tokens?
        weights + states + 2 * kept + 2 * logits :: The logits have a row for each token: their two tensors double
            too.
        weights + states + kept + 4 * logits :: The activations are kept for each token: they double too.
        weights + states + 2 * kept + 3 * logits :: Two tensors of the logits' size are there, and both double.
        2 * weights + states + 2 * kept + 4 * logits :: 62 too many: you counted the weights twice, or the
            gradients, which are not there yet.
        weights + 2 * states + 2 * kept + 4 * logits :: AdamW's states are as large as before: they belong to the
            parameters.
        2 * kept + 4 * logits :: That is what doubles. Add the weights and the states.
        weights + 2 * kept + 4 * logits :: AdamW's states, 124 MiB, are there from the second step on.
        states + 2 * kept + 4 * logits :: The weights, 62 MiB, are there too.
        weights + states + 2 * kept :: The two tensors of the logits' size are missing.
        """,
    ),
)
