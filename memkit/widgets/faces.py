"""A view of a panel as HTML: its picture, its words, its numbers as a table that folds out."""

from collections.abc import Callable
from dataclasses import dataclass
from html import escape

from memkit.pictures.svg import PAPER_OF, Chart

FOLD = """<details class="memkit-fold"><summary>The numbers as a table</summary></details>
<style>@supports selector(:has(*)) {
.memkit-table {display: none} .memkit-panel:has(details.memkit-fold[open]) .memkit-table {display: block}}
.memkit-table td, .memkit-table th {text-align: right; padding: 1px 10px}
.memkit-table td:first-child, .memkit-table th:first-child {text-align: left}
.memkit-view {overflow-x: auto; PAPER}
.memkit-view [data-pick] {cursor: pointer}
.memkit-view .memkit-here {stroke: currentColor; stroke-width: 2.5px}</style>""".replace("PAPER", PAPER_OF)
"""The fold stays one element while the table beside it changes; else each move would close it."""


@dataclass(frozen=True, kw_only=True)
class View:
    """What a panel shows for one state: a picture, what it means, and its numbers.

    ``words`` are the sentences of the status line, the first of which is the one-line summary. ``table`` has rows of
    text, the header first. ``more`` gives sentences that take longer to find; it is called when the controls rest.
    ``code`` stands below the words, indented as it is. ``live`` is shown in place of the picture where controls show
    the rest of it; a page without a kernel has all of it. ``kept`` is what the next view may want of this one.
    """

    chart: Chart
    words: tuple[str, ...]
    table: tuple[tuple[str, ...], ...] = ()
    more: Callable[[], tuple[str, ...]] = tuple
    code: str = ""
    live: Chart | None = None
    kept: object = None


def html_words(words: tuple[str, ...], code: str) -> str:
    """The status line, which a screen reader reads out when it changes."""
    block = f'<pre style="line-height:1.3;margin:4px 0">{escape(code)}</pre>' if code else ""
    said = "<br>".join(map(escape, words))
    return f'<div role="status" aria-live="polite" style="line-height:1.45">{said}{block}</div>'
