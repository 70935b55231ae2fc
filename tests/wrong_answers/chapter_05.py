"""Wrong answers to the judged exercises of chapter 05, each with a part of what its judge has to say."""

WRONG = {
    "5.7": (
        ((1, 64), "So do 2 sequences at a time, in half as many forwards."),
        ((64, 1), "It peaks at"),
        (
            (4, 16),
            "The first micro-batch fits, at 12.30 GiB; the second has the gradients besides.",
        ),
        ((4, 4), "4 × 4 = 16 sequences; 65,536 tokens are 64 sequences of 1,024."),
        ((64, 1024), "64 × 1024 are tokens."),
        (4, "4 is not a pair of whole numbers above 0"),
        ((3, 21), "3 × 21 = 63 sequences"),
    ),
}
