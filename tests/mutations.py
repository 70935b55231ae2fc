"""One odd value somewhere in plain data: what a file that was cut, edited or written by another version may hold."""

import copy
import math
import random

ODD = (
    None,
    -1,
    0,
    7,
    2**47,
    2**55,
    10**30,
    10**400,
    1.5,
    -0.5,
    1e300,
    math.nan,
    math.inf,
    "",
    "x",
    [],
    {},
    [[]],
    True,
)


def mutated(data: dict | list, seed: int) -> dict | list:
    """A copy of nested dicts and lists with one place of it odd or gone; deep places are as likely as high ones."""
    rng, data = random.Random(seed), copy.deepcopy(data)
    places = []
    waiting = [data]
    while waiting:
        record = waiting.pop()
        keys = list(record) if isinstance(record, dict) else range(len(record))
        places += [(record, key) for key in keys]
        waiting += [record[key] for key in keys if isinstance(record[key], (dict, list))]
    record, key = rng.choice(places)
    if rng.random() < 0.2:
        del record[key]
    else:
        record[key] = rng.choice(ODD)
    return data
