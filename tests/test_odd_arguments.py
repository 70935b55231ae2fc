"""Every door refuses an argument of the wrong type in one sentence."""

import importlib
import inspect
import pkgutil
from typing import get_type_hints

import pytest

import memkit


class Odd:
    """What no argument of any function takes."""


PACKAGES = ["memkit", "book", *(f"memkit.{each.name}" for each in pkgutil.iter_modules(memkit.__path__) if each.ispkg)]
OFFERED = {
    value: f"{package}.{name}"
    for package in PACKAGES
    for name in importlib.import_module(package).__all__
    if inspect.isroutine(value := getattr(importlib.import_module(package), name)) or inspect.isclass(value)
}
"""Every function and class that a room or the book offers."""


def kinds_in(offered) -> dict:
    """The arguments that an annotation says something of; a ``*rest`` has no name to give it by."""
    hints = get_type_hints(offered.__init__ if inspect.isclass(offered) else offered)
    parameters = inspect.signature(offered).parameters.values()
    by_name = {p.name: hints.get(p.name, object) for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    return {name: kind for name, kind in by_name.items() if kind is not object}


@pytest.mark.parametrize("offered", OFFERED, ids=OFFERED.values())
def test_every_door_refuses_what_no_annotation_takes(offered):
    for name in kinds_in(offered):
        with pytest.raises(ValueError, match=f"{name}=.*Odd object"):
            offered(**{name: Odd()})
