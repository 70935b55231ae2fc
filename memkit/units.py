"""Bytes, counts and ratios as text: the only module that divides by 1024 or by 10**9.

Inside the book a size is a whole number of bytes, always. It leaves bytes here, on its way to the reader's
eye. Memory is printed in KiB, MiB and GiB (powers of 1024). Bandwidth and a vendor's own label are printed in
GB (powers of 1000), parameter counts in decimal millions and billions.
"""

import difflib
import operator
import re
import reprlib
from collections.abc import Callable, Iterable, Sequence
from html import escape
from textwrap import fill

KIB = 1024
MIB = 1024**2
GIB = 1024**3
TIB = 1024**4

MAX_NEAR = 4
MAX_SHOWN = 60

PAGE_COLUMNS = 95
"""Columns of text that stand in one line of JupyterLab in a window 1,280 pixels wide."""

ALLOCATOR_BLOCK_BYTES = 512
"""CUDA's caching allocator hands out memory in multiples of this many bytes (``kMinBlockSize``)."""


_BRIEF = reprlib.Repr()
_BRIEF.maxlevel = 3


def shown(value: object) -> str:
    """A value as an error shows it: as Python writes it, in one line, and of a long one only the first 60 letters.

    A file of a few hundred bytes can hold a list whose parts are shared so often that its text would never end.

    >>> shown("many"), shown([1] * 100)
    ("'many'", '[1, 1, 1, 1, 1, 1, ...]')
    """
    is_whole = not isinstance(value, (list, tuple, dict, set, frozenset))
    text = repr(value) if is_whole else _BRIEF.repr(value)
    text = " ".join(text.split()) if "\n" in text else text
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def as_whole_number(name: str, value: object, minimum: int = 0, maximum: int | None = None) -> int:
    """Return ``value`` as an ``int``, or refuse it with one sentence that shows it.

    Raises: ValueError: not a whole number, below ``minimum`` or above ``maximum``.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name}={shown(value)} is not a whole number") from None
    if number < minimum:
        raise ValueError(f"{name}={shown(number)} is below {minimum}")
    if maximum is not None and number > maximum:
        raise ValueError(f"{name}={shown(number)} is above {maximum}")
    return number


def check_fields(record: object, names: str, check: Callable, *allowed: object) -> None:
    """Put fields of a record through one of these checks."""
    for name in names.split():
        check(name, getattr(record, name), *allowed)


def as_one_of(name: str, value: object, allowed: Iterable) -> object:
    """Return ``value``, or refuse what is not among ``allowed`` with one sentence that shows it, and what is near.

    Raises: ValueError: another value.

    >>> as_one_of("device", "cpu", ("cuda", "cpu"))
    'cpu'
    >>> as_one_of("card", "a100", ("A10", "A100 PCIe", "A100 SXM"))
    Traceback (most recent call last):
    ValueError: card='a100' is not one of A10, A100 PCIe, A100 SXM: did you mean A100 PCIe or A100 SXM?
    """
    allowed = tuple(allowed)
    if isinstance(value, (str, int)) and not isinstance(value, bool) and value in allowed:
        return value
    asked = f": did you mean {' or '.join(near)}?" if (near := _near(value, allowed)) else ""
    raise ValueError(f"{name}={shown(value)} is not one of {', '.join(map(str, allowed))}{asked}")


def _near(value: object, allowed: Iterable) -> list[str]:
    """Up to four that begin with a text, else the one that is spelt most like it; the case is not looked at."""
    word = value.strip().casefold() if isinstance(value, str) else ""
    names = {str(name).casefold(): str(name) for name in allowed}
    begun = [name for name in names if word and name.startswith(word)]
    if len(begun) > MAX_NEAR:
        return []
    return [names[name] for name in begun or difflib.get_close_matches(word, names, n=1)]


def bytes_of(num_values: int, bits: int) -> int:
    """Bytes of ``num_values`` values of ``bits`` bits each, rounded up once for the whole tensor.

    >>> bytes_of(3, 4)
    2
    """
    return -(-num_values * bits // 8)


def round_up(num_bytes: int, multiple: int = ALLOCATOR_BLOCK_BYTES) -> int:
    """The smallest multiple of ``multiple`` bytes that holds ``num_bytes``.

    >>> round_up(1), round_up(512), round_up(513)
    (512, 512, 1024)
    """
    return -(-num_bytes // multiple) * multiple


def format_bytes(num_bytes: float | None, digits: int = 2) -> str:
    """Bytes as text in the largest binary unit that leaves a number of at least one.

    The rounding edge rolls over: one byte less than a GiB prints as a GiB, not as 1024 MiB.

    >>> format_bytes(24 * GIB), format_bytes(GIB - 1), format_bytes(512), format_bytes(None)
    ('24.00 GiB', '1.00 GiB', '512 B', 'unknown')
    """
    if num_bytes is None:
        return "unknown"
    if abs(num_bytes) < KIB:
        return f"{num_bytes} B"
    return _in_units(num_bytes, KIB, ("KiB", "MiB", "GiB", "TiB"), digits)


def format_gb(num_bytes: float, digits: int = 1) -> str:
    """Bytes as decimal gigabytes, for bandwidth and for a vendor's label only.

    >>> format_gb(112 * 10**9)
    '112.0 GB'
    """
    return f"{num_bytes / 1e9:,.{digits}f} GB"


def format_count(count: float) -> str:
    """A parameter or token count as decimal text.

    >>> format_count(124_439_808), format_count(8_030_261_248), format_count(999_950)
    ('124.4 M', '8.0 B', '1.0 M')
    """
    return str(count) if abs(count) < 1000 else _in_units(count, 1000, "KMBT", 1)


def _in_units(value: int, base: int, units: Sequence[str], digits: int) -> str:
    """``value`` in the first of the units, powers of ``base``, that leaves less than ``base``; else in the last."""
    for power, unit in enumerate(units, start=1):
        scaled = value / base**power
        if round(abs(scaled), digits) < base:
            break
    return f"{scaled:,.{digits}f} {unit}"


class Text(str):
    """Text with a twin in HTML, which a notebook shows; ``print`` shows the text."""

    def __new__(cls, text: str, html: str):
        self = super().__new__(cls, text)
        self.html = html
        return self

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return self.html


class Printable:
    """A record that a notebook shows as the text which ``str`` makes of it, with its tables as tables."""

    def _repr_mimebundle_(self, **_kwargs) -> dict[str, str]:
        page = on_page(str(self))
        return {"text/plain": str(page), "text/html": page.html}


def on_page(*parts: str, between: str = "\n\n") -> Text:
    """Sentences and tables below one another; a sentence is broken at words, in text and by the page that shows it.

    >>> print(on_page("Two formats.", aligned_table([["format", "bits"], ["bfloat16", "16"]]), between="\\n"))
    Two formats.
    format    bits
    ──────────────
    bfloat16    16
    """
    texts, html = [], ""
    for part in filter(None, parts):
        if isinstance(part, Text):
            texts.append(part)
            html += part.html
        else:
            lines = part.split("\n")
            texts.append("\n".join(map(_filled, lines)))
            sentences = "<br>".join(map(escape, lines))
            html += re.sub("`([^`]+)`", r"<code>\1</code>", f"<p>{sentences}</p>")
    return Text(between.join(texts), html)


def _filled(line: str) -> str:
    """A sentence broken at words, if it is longer than a page is wide; a row of a table stays one."""
    if len(line) <= PAGE_COLUMNS or re.search(r"\S  +\S|─$", line):
        return line
    return fill(line, PAGE_COLUMNS, subsequent_indent="  " * line.startswith("- "))


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of text as an HTML table with row and column headers; the first row is the header.

    Jupyter sets every cell at the right and breaks it where it likes. Names of rows are at the left here, and a
    number keeps its unit on its line by spaces at which no page breaks, because GitHub drops any style.

    >>> html_table([["way", "peak"], ["LoRA", "9 MiB"]])[-44:]
    'LoRA</th><td>9\\xa0MiB</td></tr></tbody></table>'
    """
    if not rows:
        return ""

    def name(cell: str, attributes: str) -> str:
        return f"<th {attributes}>{escape(cell)}</th>" if cell else "<td></td>"

    at_left = ' style="text-align:left"'
    header = name(rows[0][0], 'scope="col"' + at_left)
    header += "".join(name(cell, 'scope="col"') for cell in rows[0][1:])
    body = ""
    for first, *rest in rows[1:]:
        cells = "".join(f"<td>{escape(in_one_line(cell))}</td>" for cell in rest)
        body += "<tr>" + name(first, 'scope="row"' + at_left) + cells + "</tr>"
    return f"<table><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table>"


def in_one_line(cell: str) -> str:
    """A number with its unit, its spaces such that no page breaks at them; any other text as it is.

    >>> in_one_line("62.13 MiB"), in_one_line("1.03 × 8"), in_one_line("8 ranks are the first that fit")
    ('62.13\\xa0MiB', '1.03\\xa0×\\xa08', '8 ranks are the first that fit')
    """
    is_number = cell.lstrip("−+±~≈<>≤≥ ")[:1].isdigit() and len(cell) <= 20
    return cell.replace(" ", "\N{NO-BREAK SPACE}") if is_number else cell


def aligned_table(rows: list[list[str]]) -> Text:
    """Rows of text with the first column flush left and the others flush right; the first row is the header.

    >>> print(aligned_table([["format", "bits"], ["bfloat16", "16"]]))
    format    bits
    ──────────────
    bfloat16    16
    """
    if not rows or not all(
        isinstance(row, (list, tuple)) and len(row) == len(rows[0]) for row in rows
    ):
        raise ValueError(f"rows={shown(rows)} is no list of rows of equal length")
    scrolling = f'<div style="overflow-x:auto" tabindex="0">{html_table(rows)}</div>'
    return Text(in_columns(rows, "<" + ">" * (len(rows[0]) - 1)), scrolling)


def in_columns(rows: Sequence[Sequence[str]], sides: str) -> str:
    """Rows of text, each column flush left (``<``) or right (``>``); the first row is the header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    formats = [f"{side}{width}" for side, width in zip(sides, widths, strict=True)]
    lines = ["  ".join(map(format, row, formats)).rstrip() for row in rows]
    return "\n".join([lines[0], "─" * len(lines[0]), *lines[1:]])
