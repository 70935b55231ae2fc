"""Wrong answers to the judged exercise of chapter 11, as readers gave them, each with words of its diagnosis."""

WRONG = {
    "11.6": (
        ((3, 2), "It peaks at"),
        ((2, 2), "It peaks at"),
        ((3, 4), "The other stage fits on as many"),
        ((3, 8), "So does a run on 4 ranks"),
        ((2, 8), "So does a run on 4 ranks"),
        ((4, 2), "The stage comes first"),
        ((1, 8), "take stage 2 or 3"),
        (3, "is not a pair"),
        ("stage 2", "is not a pair"),
    ),
}
