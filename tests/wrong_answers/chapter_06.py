"""Wrong answers to the judged exercises of chapter 06, each with a part of what its judge has to say."""

import torch

from book.exercises.chapter_06 import _cast


def _as_printed(a, b):
    m = 448 / a.abs().max()
    return _cast(a * m) @ _cast(b * m).t() * m * m


def _only_divided(a, b):
    m = 448 / a.abs().max()
    return _cast(a * m) @ _cast(b * m).t() / (m * m)


def _only_own_factors(a, b):
    m_a, m_b = 448 / a.abs().max(), 448 / b.abs().max()
    return _cast(a * m_a) @ _cast(b * m_b).t() * m_a * m_b


def _divided_once(a, b):
    m_a, m_b = 448 / a.abs().max(), 448 / b.abs().max()
    return _cast(a * m_a) @ _cast(b * m_b).t() / m_a


def _unscaled(a, b):
    return _cast(a) @ _cast(b).t()


def _shared_smallest(a, b):
    m = 448 / torch.maximum(a.abs().max(), b.abs().max())
    return _cast(a * m) @ _cast(b * m).t() / (m * m)


def _without_magnitude(a, b):
    m_a, m_b = 448 / a.max(), 448 / b.max()
    return (_cast(a * m_a) @ _cast(b * m_b).t()) / (m_a * m_b)


def _product_of_elements(a, b):
    return a.to(torch.float8_e4m3fn) @ b.to(torch.float8_e4m3fn).t()


def _cast_only_a(a, b):
    m = 448 / a.abs().max()
    return _cast(a * m) @ b.t() / m


WRONG = {
    "6.4": (
        (_as_printed, "times too large"),
        (_only_own_factors, "times too large"),
        (_divided_once, "each of them"),
        (_only_divided, "is clipped"),
        (_unscaled, "each needs a factor from itself"),
        (_shared_smallest, "each needs a factor of its own"),
        (_without_magnitude, "without its sign"),
        (lambda a, b: a @ b.t(), "nothing was cast"),
        (lambda a, b: (a.bfloat16() @ b.bfloat16().t()).float(), "nothing was cast"),
        (_product_of_elements, "The product itself is in eight bits"),
        (_cast_only_a, "only one of the two was cast"),
        (lambda a, b: 1.0, "is to be a tensor"),
    ),
}
