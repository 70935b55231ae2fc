"""Arguments held against their annotations: what a door offers refuses in one sentence what it cannot use.

A function says in its annotations what it takes, and nowhere else. A door hands it out ``checked``; the modules below
import it as it is written, and call it without a check. What an annotation cannot say (a size is at least 1, a name is
on a list), a function still refuses itself.
"""

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from numbers import Real
from types import NoneType, UnionType
from typing import Union, get_args, get_origin, get_type_hints

from memkit.units import MAX_PRINTED, as_kind, as_whole_number, shown

MOST = 2**64 - 1
"""The largest whole number that a door lets in: no count of bytes or steps, and no code, is above it."""

ANYTHING = (object, inspect.Parameter.empty)


@functools.cache
def checked(offered: Callable) -> Callable:
    """A function that holds its arguments against its annotations first; a class is returned, its ``__init__`` is so.

    >>> @checked
    ... def doubled(number: int) -> int:
    ...     return 2 * number
    >>> doubled("two")
    Traceback (most recent call last):
    ValueError: number='two' is not a whole number
    """
    if inspect.isclass(offered):
        if inspect.isfunction(offered.__init__) and not hasattr(offered.__init__, "is_checked"):
            offered.__init__ = _made_by(offered.__init__) if is_dataclass(offered) else checked(offered.__init__)
        return offered

    @functools.wraps(offered)
    def held_call(*args, **named):
        args, named = arguments_of(offered, args, named)
        return offered(*args, **named)

    held_call.is_checked = True
    return held_call


def _made_by(init: Callable) -> Callable:
    """The ``__init__`` of a record, whose own ``__post_init__`` has the first word: it knows more than a kind."""

    @functools.wraps(init)
    def held_init(self, *args, **named):
        try:
            init(self, *args, **named)
        except ValueError:
            raise
        except Exception:  # whatever a value that is not of its kind has led to
            arguments_of(init, (self, *args), named)
            raise
        arguments_of(init, (self, *args), named)

    held_init.is_checked = True
    return held_init


def arguments_of(function: Callable, args: Sequence, named: Mapping) -> tuple[list, dict]:
    """The arguments by place and by name, each as ``held`` returns it.

    Raises: ValueError: one that is not what its annotation says.
    """
    by_place, kinds, rest = kinds_of(function)
    args = [held(*(by_place[index] if index < len(by_place) else rest), value) for index, value in enumerate(args)]
    return args, {name: held(name, kinds.get(name, object), value) for name, value in named.items()}


@functools.cache
def kinds_of(function: Callable) -> tuple[list, dict, tuple]:
    """Of a function: (name, kind) of what it takes by place, each kind by name, and (name, kind) of its ``*rest``."""
    hints = get_type_hints(function)
    parameters = inspect.signature(function).parameters.values()
    kinds = {p.name: hints.get(p.name, object) for p in parameters if p.kind is not p.VAR_KEYWORD}
    by_place = [(p.name, kinds[p.name]) for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = [(p.name, kinds[p.name]) for p in parameters if p.kind is p.VAR_POSITIONAL]
    return by_place, kinds, *(rest or [("", object)])


def held(name: str, kind: object, value: object) -> object:
    """``value`` if it is what the annotation ``kind`` says; a whole number as ``int``, what a tuple takes as a tuple.

    Raises: ValueError: it is not; the sentence shows it.

    >>> held("shape", tuple[int, ...], [2, 3])
    (2, 3)
    """
    outer, parts = get_origin(kind) or kind, get_args(kind)
    if outer in ANYTHING:
        return value
    if outer in (Union, UnionType):
        return _one_of(name, parts, value)
    if outer is int:
        return as_whole_number(name, value, -MOST, MOST)
    if outer is float:
        return _number(name, value)
    if outer in (tuple, list, Sequence, Iterable):
        return _items(name, outer, parts, value)
    as_kind(name, value, outer)
    if issubclass(outer, Mapping) and parts:
        for key, item in value.items():
            held(f"a key of {name}", parts[0], key)
            held(f"{name}[{shown(key)}]", parts[1], item)
    return value


def _one_of(name: str, kinds: Sequence, value: object) -> object:
    """The value as the first kind that takes it has it; where only one is not ``None``, its own sentence tells."""
    kinds = [kind for kind in kinds if kind is not NoneType or value is None]
    for kind in kinds[:-1]:
        try:
            return held(name, kind, value)
        except ValueError:
            continue
    if len(kinds) == 1:
        return held(name, kinds[0], value)
    try:
        return held(name, kinds[-1], value)
    except ValueError:
        return as_kind(name, value, *(get_origin(kind) or kind for kind in kinds))


def _number(name: str, value: object) -> object:
    """Any number with a fraction or without; a whole one as far as a float reaches."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{name}={shown(value)} is not a number")
    if isinstance(value, int) and not -MAX_PRINTED <= value <= MAX_PRINTED:
        raise ValueError(f"{name}={shown(value)} is not between -1e300 and 1e300")
    return value


def _items(name: str, outer: type, parts: tuple, value: object) -> object:
    """A list, a tuple or another row of items, each of its kind; of what can be read once only that it can be."""
    is_read_once = outer is Iterable and isinstance(value, Iterator)
    is_no_row = isinstance(value, (str, bytes, Mapping)) or getattr(value, "ndim", 1) == 0
    if is_no_row or not (isinstance(value, Collection) or is_read_once):
        raise ValueError(f"{name}={shown(value)} is no list{_of(parts)}")
    answers_for_its_items = Sequence in type(value).__mro__  # such as Events, which are made when asked for
    if is_read_once or answers_for_its_items or not parts:
        return value
    if outer is not tuple or parts[-1] is ...:
        parts = (parts[0],) * len(value)
    elif len(parts) != len(value):
        raise ValueError(f"{name}={shown(value)} has {len(value)} items, not {len(parts)}")
    if int not in parts and set(map(type, value)) == set(parts):  # a step has a hundred thousand events
        return tuple(value) if outer is tuple else value
    items = tuple(held(f"{name}[{index}]", kind, item) for index, (kind, item) in enumerate(zip(parts, value)))
    return items if outer is tuple else value


def _of(parts: tuple) -> str:
    kinds = dict.fromkeys(getattr(part, "__name__", str(part)) for part in parts if part is not ...)
    return f" of {' or '.join(kinds)}" if kinds else ""
