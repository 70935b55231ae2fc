"""What a reader's answer is: still open, a number, a function that uses some names; and how far off it is, in words."""

import dis
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from numbers import Integral, Real
from types import CodeType, FunctionType


def plain(answer: object) -> object:
    """A number that stands in a tensor or an array without dimensions, as a number; anything else as it is."""
    return answer.item() if getattr(answer, "shape", None) == () else answer


def listed(result: object) -> object:
    """What a generator yields, as a list; any other result as it is."""
    return list(result) if isinstance(result, Iterator) else result


def whole(answer: object) -> object:
    """A whole number of any type as an int; anything else, a bool as well, as it is."""
    answer = plain(answer)
    is_whole = (
        isinstance(answer, Integral) or isinstance(answer, Real) and float(answer).is_integer()
    )
    return int(answer) if is_whole and not isinstance(answer, bool) else answer


def names_in(function: Callable) -> list[str]:
    """Names of globals and attributes in a function's code, and in the functions inside it; "/" where it divides."""
    found, todo = [], [getattr(inspect.unwrap(function), "__code__", None)]
    while todo:
        code = todo.pop()
        if isinstance(code, CodeType):
            found += code.co_names
            found += [
                step.argrepr for step in dis.get_instructions(code) if step.opname == "BINARY_OP"
            ]
            todo += code.co_consts
    return found


class NotAttempted(Exception):
    """A reader's function returned the dots of its stub."""


def is_open(answer: object, blanks: tuple = (..., None)) -> bool:
    """Whether an answer, or a part of it, is still what the stub left open."""
    if isinstance(answer, Mapping):
        answer = list(answer.values())
    if isinstance(answer, list | tuple | set):
        return any(is_open(part, blanks) for part in answer)
    return any(answer is blank for blank in blanks)


def guarded(function: FunctionType) -> Callable:
    """The function, which raises where it returns what a stub leaves open."""

    @functools.wraps(function)
    def watched(*args, **kwargs):
        result = function(*args, **kwargs)
        if is_open(result, blanks=(...,)):  # a None in it may be the reader's, as in a state dict
            raise NotAttempted
        return result

    return watched


def is_stub_error(error: Exception) -> bool:
    """Whether an error comes from computing with the dots of a stub, or from a stub that raises it."""
    if isinstance(error, TypeError) and "ellipsis" in str(error).lower():
        return True
    return isinstance(error, NotAttempted) or (
        isinstance(error, NotImplementedError) and not str(error)
    )


def kind_of(answer: object) -> str:
    """An answer with its type, as the beginning of a sentence."""
    name = type(answer).__name__
    return f"{answer!r} is a{'n' * (name[0].lower() in 'aeiou')} {name}"


def shown(value: object, shows: Callable[[object], str]) -> str:
    """A result in a message: a float with six digits, so that 0.09999999999999432 reads 0.1."""
    if isinstance(value, float) and shows is repr:
        return f"{value:.6g}"
    if isinstance(value, list) and shows is repr:
        return f"[{', '.join(shown(item, shows) for item in value)}]"
    try:
        return shows(value)
    except (TypeError, ValueError):
        return repr(value)


def how_far(given: float, right: float) -> str:
    """By how much or by which factor a number is off, in a sentence."""
    if not math.isfinite(given):
        return f"{given} is not a number of anything."
    if not right or given / right <= 0:
        return f"{given:,.6g} has the wrong sign or size."
    ratio = given / right
    size = "large" if ratio > 1 else "small"
    off = abs(given - right)
    if 0.99 < ratio < 1.01:
        return f"Too {size} by {off:,}." if isinstance(off, int) else f"Too {size} by {off:,.3g}."
    return f"Too {size} by a factor of {max(ratio, 1 / ratio):.3g}."
