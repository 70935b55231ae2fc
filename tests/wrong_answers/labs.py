"""Wrong answers to the judged tasks of the labs: the book's own, and where they depend on numbers, wrong ways to them.

A wrong way is the solution with one thing changed, and a part of what the judge has to say of where it leads.
"""

WAYS = {
    "1.6": (
        ('recomputation="full"', 'recomputation="none"', "without recomputation"),
        (" - 2 * GIB", "", "You used the whole card"),
        (".memory_bytes", ".label_gb * GIB", "the label for GiB"),
        (".memory_bytes", ".label_gb * 10**9", "for 10**9 bytes"),
        ("max(fits)", "min(fits)", "try one more"),
        ("max(fits)", "999", "It does not fit"),
        ("max(fits)", "max(fits) / 2 + 0.25", "is not a number of sequences"),
    ),
    "5.7": (
        ("=max(steps, 1)", "=1", "the second has the gradients besides"),
        ("fits[-1]", "fits[-2]", "in half as many forwards"),
        ("fits[-1]", "(1, mine['sequences'])", "So do 2 sequences at a time"),
        ("fits[-1]", "(mine['sequences'], 1)", "It peaks at"),
        ("(b, steps)", "(b, steps * 1024)", "are tokens"),
        ("(b, steps)", "(b, steps + 1)", "tokens are"),
        ("fits[-1]", "fits[-1][0]", "is not a pair"),
    ),
}
WORTHLESS = {
    "1.6": ("try one more", "It does not fit", "is not a number of sequences"),
    "3.3": (
        "wrong sign",
        "Still uphill, and",
        "both missing",
        "I cannot tell",
        "returns the new BF16 weights",
    ),
    "4.4": ("You still save mm", "is one name", "An empty list", "is not one of mm"),
    "5.7": ("So do 2 sequences", "It peaks at", "are tokens", "tokens are", "is not a pair"),
    "6.4": ("nothing was cast", "is to be a tensor", "itself is in eight bits"),
}
"""By task the words that are worth no points: no known mistake, several at once, or what needs no thought."""
