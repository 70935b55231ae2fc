"""The largest number with which a script still fits a card: ``--vary N --card "RTX 4090" -- --batch-size N``."""

from collections.abc import Callable
from dataclasses import dataclass

from memkit.units import format_bytes

MOST = 2**16
"""No larger number is tried."""

FOLLOWS_A_LINE = 8
"""After so many tries halves are taken: what is needed grows by no line."""


class TooFewRows(Exception):
    """Of a batch that was to have ``args[1]`` rows the data have ``args[0]`` in all."""


@dataclass(frozen=True)
class Largest:
    """The largest number that was traced and fits, 0 if 1 does not, and what is left or lacking at it and one above."""

    number: int
    spare_bytes: dict[int, int]
    is_all_rows: bool = False

    def __str__(self) -> str:
        if not self.number:
            return f"1 does not fit ({format_bytes(-self.spare_bytes[1])} too much)"
        words = f"{self.number:,} ({format_bytes(self.spare_bytes[self.number])} to spare"
        above = self.spare_bytes.get(self.number + 1)
        if above is not None:
            return f"{words}; {self.number + 1:,}: {format_bytes(-above)} too much)"
        return f"{words}; {'the data have no more rows' if self.is_all_rows else 'no larger one was tried'})"


def largest_that_fits(spare_of: Callable[[int], int]) -> Largest:
    """The largest number for which ``spare_of``, bytes that are left, is not negative; it and the next one are tried.

    What a step needs grows with a batch nearly in a line, so a line through the last two numbers says the next one.
    Where ``spare_of`` raises ``TooFewRows``, a batch is taken to grow as the number does.

    >>> largest_that_fits(lambda number: 1000 - 7 * number).number
    142
    """
    spare = {1: spare_of(1)}
    fits, too_large, before = (1, MOST + 1, 0) if spare[1] >= 0 else (0, 1, 0)
    is_all_rows = False
    while too_large - fits > 1:
        other = too_large if too_large in spare else before
        guess = 2 * fits
        if other and spare[other] != spare[fits]:
            guess = fits + spare[fits] * (fits - other) // (spare[other] - spare[fits])
        if len(spare) > FOLLOWS_A_LINE:
            guess = (fits + too_large) // 2
        guess = min(max(guess, fits + 1), too_large - 1)
        try:
            spare[guess] = spare_of(guess)
        except TooFewRows as few:
            num_rows, batch_size = few.args
            too_large, is_all_rows = max(fits + 1, min(guess, guess * num_rows // batch_size + 1)), True
            continue
        if spare[guess] >= 0:
            before, fits = fits, guess
        else:
            too_large = guess
    return Largest(fits, spare, is_all_rows)
