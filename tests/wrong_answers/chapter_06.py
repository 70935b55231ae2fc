"""Wrong answers to the judged exercises of chapter 06, each with a part of what its judge has to say."""

import torch

from book.exercises.chapter_06 import _cast


def _scaled(factors, back):
    """A product whose matrices are cast times ``factors(a, b)`` and which ``back`` takes back."""

    def product(a, b):
        m_a, m_b = factors(a, b)
        return back(_cast(a * m_a) @ _cast(b * m_b).t(), m_a, m_b)

    return product


def _own(a, b):
    return 448 / a.abs().max(), 448 / b.abs().max()


def _first(a, b):
    return _own(a, a)


def _product_of_elements(a, b):
    return a.to(torch.float8_e4m3fn) @ b.to(torch.float8_e4m3fn).t()


def _cast_only_a(a, b):
    m = 448 / a.abs().max()
    return _cast(a * m) @ b.t() / m


WRONG = {
    "6.4": (
        (_scaled(_first, lambda c, m, n: c * m * n), "times too large"),
        (_scaled(_own, lambda c, m, n: c * m * n), "times too large"),
        (_scaled(_own, lambda c, m, n: c / m), "each of them"),
        (_scaled(_first, lambda c, m, n: c / (m * n)), "is clipped"),
        (_scaled(lambda a, b: (1, 1), lambda c, m, n: c), "each needs a factor from itself"),
        (
            _scaled(lambda a, b: (min(_own(a, b)),) * 2, lambda c, m, n: c / (m * n)),
            "each needs a factor of its own",
        ),
        (
            _scaled(lambda a, b: (448 / a.max(), 448 / b.max()), lambda c, m, n: c / (m * n)),
            "without its sign",
        ),
        (lambda a, b: a @ b.t(), "nothing was cast"),
        (lambda a, b: (a.bfloat16() @ b.bfloat16().t()).float(), "nothing was cast"),
        (_product_of_elements, "The product itself is in eight bits"),
        (_cast_only_a, "only one of the two was cast"),
        (lambda a, b: 1.0, "is to be a tensor"),
    ),
}
