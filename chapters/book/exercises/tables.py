"""Tables of wrong answers: a row is an expression in letters and the sentence that says what went wrong.

    L // S :: That is one segment, the one that runs once.
    S - 1  :: {S - 1} segments run again. How many layers are in them?

The letters have values, or are the arguments of a function; a sentence may hold expressions in braces, as an
f-string does. A lab gives other values to the same letters. What is evaluated here is the book's own text, from the
modules beside this one: an answer of a reader is only ever a value or a function, and never becomes text.
"""

from collections.abc import Callable, Mapping
from inspect import Parameter, signature

SEPARATOR = " :: "


def rows_of(table: str) -> list[tuple[str, str]]:
    """Expression and sentence of each row.

    A line without `` :: `` goes on with the sentence above it, and `` ; `` stands between expressions that share one.

    >>> rows_of('''
    ...     12 ; 13 :: That is the number of sequences.
    ...         Asked are tokens.
    ... ''')
    [('12', 'That is the number of sequences. Asked are tokens.'), ('13', 'That ... tokens.')]
    """
    rows = []
    for line in filter(None, map(str.strip, table.splitlines())):
        expressions, separator, sentence = line.partition(SEPARATOR)
        if separator:
            rows.append([expressions, sentence])
        elif rows:
            rows[-1][1] += f" {line}"
        else:
            raise ValueError(
                f"table begins with {line!r}; a row is an expression,{SEPARATOR}and a sentence"
            )
    return [
        (one.strip(), sentence.strip())
        for expressions, sentence in rows
        for one in expressions.split(" ; ")
    ]


def value_of(expression: object, letters: Mapping[str, object]) -> object:
    """The value of an expression in letters; what is no text is a value already.

    >>> value_of("L - L // S", {"L": 24, "S": 4})
    18
    """
    return eval(expression, dict(letters)) if isinstance(expression, str) else expression


def values_of(letters: Mapping[str, object]) -> dict[str, object]:
    """The value of every letter; one that is given as text is an expression in the letters before it.

    >>> values_of({"P": 7, "num_bytes": "2 * P"})
    {'P': 7, 'num_bytes': 14}
    """
    values = {}
    for letter, value in letters.items():
        values[letter] = value_of(value, values)
    return values


def function_of(expression: str, like: Callable, letters: Mapping[str, object]) -> Callable:
    """A function with the arguments of ``like`` that returns what the expression is.

    >>> function_of("height * width // 2", lambda width, height=10: 0, {})(4)
    20
    """
    arguments = [
        name if argument.default is Parameter.empty else f"{name}={argument.default!r}"
        for name, argument in signature(like).parameters.items()
    ]
    return value_of(f"lambda {', '.join(arguments)}: {expression}", letters)


def filled(sentence: str, letters: Mapping[str, object]) -> str:
    """The sentence with the values of the expressions in its braces.

    >>> filled("{S - 1} segments run again.", {"S": 4})
    '3 segments run again.'
    """
    return value_of(f"f{sentence!r}", letters) if "{" in sentence else sentence
