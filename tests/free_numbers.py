"""Numbers that stand in a sentence of the book by hand, where a figure that a test proves should stand."""

import re

# A number that stands alone. Glued to letters it is a name (7B, H100, FP32, GPT-2, 5as^2b).
FREE_NUMBER = re.compile(r"(?<![\w.^-])\d[\d.,]*+(?![\w-])")
NAMED_NUMBER = re.compile(
    r"\b(19|20)\d\d\b|(torch|CUDA|Python|Triton|chapter|section|equation|table|figure|version|ZeRO|stage|Llama)"
    r" \d[\d.]*",
    re.IGNORECASE,
)


def free_numbers(template: str) -> list[str]:
    """Numbers written into a sentence by hand instead of being taken from ``figures``.

    >>> free_numbers("{gb} GB for a 7B or 1.5B model on an H100 in FP32 with PyTorch 2.13, see chapter 3.")
    []
    >>> free_numbers("112 GB, 34 sbh")
    ['112', '34']
    """
    without_figures = re.sub(r"\{[^}]*\}", "", template)
    return FREE_NUMBER.findall(NAMED_NUMBER.sub("", without_figures))
