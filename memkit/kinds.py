"""The check at every door of the package: an argument of the wrong type is refused in one sentence, and nowhere else.

A function says in its annotations what it takes. A door hands it out ``checked``; the modules below import it as it is
written, and call it without a check. What an annotation cannot say (a size is at least 1, a name is on a list), a
function still refuses itself.
"""

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from numbers import Real
from types import NoneType, UnionType
from typing import Union, get_args, get_origin, get_type_hints

from memkit.units import as_kind, as_whole_number, shown

MOST = 2**64 - 1
"""The largest whole number that a door lets in: no count of bytes or steps, and no code, is above it."""

ANYTHING = (object, inspect.Parameter.empty)


@functools.cache
def checked(offered: Callable) -> Callable:
    """A function that compares its arguments with its annotations first; of a class, the ``__init__`` does.

    >>> @checked
    ... def doubled(number: int) -> int:
    ...     return 2 * number
    >>> doubled("two")
    Traceback (most recent call last):
    ValueError: number='two' is not a whole number
    """
    if inspect.isclass(offered):
        if inspect.isfunction(offered.__init__) and not hasattr(offered.__init__, "is_checked"):
            offered.__init__ = checked(offered.__init__)
        return offered

    @functools.wraps(offered)
    def checked_call(*args, **named):
        by_place, kinds = kinds_of(offered)
        names = [*by_place, *[by_place[-1] if by_place else ""] * len(args)]  # the last one may stand for ``*rest``
        args = [as_annotated(name, kinds.get(name, object), value) for name, value in zip(names, args)]
        named = {name: as_annotated(name, kinds.get(name, object), value) for name, value in named.items()}
        return offered(*args, **named)

    checked_call.is_checked = True
    return checked_call


@functools.cache
def kinds_of(function: Callable) -> tuple[list[str], dict[str, object]]:
    """Of a function: the names of what it takes by place, a ``*rest`` at the end, and each argument's annotation."""
    hints = get_type_hints(function)
    parameters = [p for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]
    by_place = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    return by_place, {p.name: hints.get(p.name, object) for p in parameters}


parts_of = functools.cache(lambda kind: (get_origin(kind) or kind, get_args(kind)))
"""Of an annotation such as ``tuple[int, ...]``: ``tuple`` and ``(int, ...)``."""


def as_annotated(name: str, kind: object, value: object) -> object:
    """``value`` if it is what the annotation ``kind`` says; a whole number as ``int``, what a tuple takes as a tuple.

    Raises: ValueError: it is not; the sentence shows it.

    >>> as_annotated("shape", tuple[int, ...], [2, 3])
    (2, 3)
    """
    outer, parts = parts_of(kind)
    if outer in ANYTHING:
        return value
    if outer in (Union, UnionType):
        return _as_one_kind(name, parts, value)
    if outer is int:
        return as_whole_number(name, value, -MOST, MOST)
    if outer is float:
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ValueError(f"{name}={shown(value)} is not a number")
        return value
    if outer in (tuple, list, Sequence, Iterable):
        return _as_row(name, outer, parts, value)
    return as_kind(name, value, outer)


def _as_one_kind(name: str, kinds: Sequence, value: object) -> object:
    """The value as the first kind that takes it has it; where only one is not ``None``, its sentence refuses."""
    kinds = [kind for kind in kinds if kind is not NoneType or value is None]
    for kind in kinds[:-1]:
        try:
            return as_annotated(name, kind, value)
        except ValueError:
            continue
    try:
        return as_annotated(name, kinds[-1], value)
    except ValueError:
        if len(kinds) == 1:
            raise
        return as_kind(name, value, *(get_origin(kind) or kind for kind in kinds))


def _as_row(name: str, outer: type, parts: tuple, value: object) -> object:
    """A list, a tuple or another row of items, each of its kind; of what can be read once only that it can be."""
    is_read_once = outer is Iterable and isinstance(value, Iterator)
    is_no_row = isinstance(value, (str, bytes, Mapping)) or getattr(value, "ndim", 1) == 0
    if is_no_row or not (isinstance(value, Collection) or is_read_once):
        kinds = dict.fromkeys(getattr(part, "__name__", str(part)) for part in parts if part is not ...)
        raise ValueError(f"{name}={shown(value)} is no list{f' of {chr(32).join(kinds)}' if kinds else ''}")
    if not parts or not isinstance(value, (list, tuple)):  # such as Events, which are made when asked for
        return tuple(value) if outer is tuple else value
    if outer is not tuple or parts[-1] is ...:
        parts = (parts[0],) * len(value)
    elif len(parts) != len(value):
        raise ValueError(f"{name}={shown(value)} has {len(value)} items, not {len(parts)}")
    if int not in parts and set(map(type, value)) == set(parts):  # a step has a hundred thousand events
        return tuple(value) if outer is tuple else value
    items = tuple(as_annotated(f"{name}[{i}]", kind, item) for i, (kind, item) in enumerate(zip(parts, value)))
    return items if outer is tuple else value
