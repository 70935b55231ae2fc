"""One panel for a page: how it opens, as HTML, and what each single move from there changes.

``python ahead.py NAME ARGUMENTS FILE`` runs beside the stand-in of ipywidgets and without torch and numpy, as the page
itself will. It ends with code 3 and the reason where the panel needs more than that.
"""

import gzip
import json
import sys
from html import escape
from pathlib import Path

for heavy in ("torch", "numpy", "matplotlib", "anywidget", "IPython"):
    sys.modules[heavy] = None  # an import of it fails, as it will in the page


def html_of(widget, numbers: dict) -> str:
    """A widget as elements of a page, which carry its number as ``data-id``."""
    import ipywidgets

    from memkit.widgets.panel import NumberBox

    mark, label = f'data-id="{numbers[id(widget)]}"', escape(getattr(widget, "description", "") or "")
    named = f"<label><span>{label}</span>"
    if isinstance(widget, NumberBox):
        box, slider = widget.box, widget.slider
        ends = f'min="{slider.min}" max="{slider.max}" step="{slider.step}" value="{slider.value}"'
        return (
            f'<div class="number">{html_of(box, numbers)}<input type="range" data-id="{numbers[id(slider)]}" '
            f'aria-label="{escape(box.description)}, slider" {ends} disabled></div>'
        )
    if isinstance(widget, ipywidgets.Dropdown):
        chosen = {True: " selected", False: ""}
        options = "".join(
            f"<option{chosen[value == widget.value]}>{escape(text)}</option>" for text, value in widget.pairs
        )
        return f"{named}<select {mark} disabled>{options}</select></label>"
    if isinstance(widget, ipywidgets.Checkbox):
        return f'{named}<input type="checkbox" {mark}{" checked" if widget.value else ""} disabled></label>'
    if isinstance(widget, ipywidgets.Play):
        return f'<button type="button" {mark} data-play="{widget.interval}" disabled>Play</button>'
    if isinstance(widget, ipywidgets.Button):
        return f'<button type="button" {mark} disabled>{label}</button>'
    if isinstance(widget, (ipywidgets.Text, ipywidgets.IntText)):
        kind = "text" if isinstance(widget, ipywidgets.Text) else "number"
        return f'{named}<input type="{kind}" {mark} value="{escape(str(widget.value))}" disabled></label>'
    names = " ".join(name.replace("memkit-view", "memkit-view view") for name in widget.classes)
    if isinstance(widget, ipywidgets.HTML):
        return f'<div class="{names}" {mark}>{widget.value}</div>'
    inside = "".join(html_of(child, numbers) for child in widget.children)
    return f'<div class="{names or "controls"}" {mark}>{inside}</div>'


def single_moves(host) -> dict[int, list]:
    """Every value that a menu, a box to tick or a slider offers, by the number of the widget."""
    import ipywidgets

    moves = {}
    for number, widget in enumerate(host.widgets):
        if isinstance(widget, ipywidgets.Dropdown):
            moves[number] = list(range(len(widget.pairs)))
        elif isinstance(widget, ipywidgets.Checkbox):
            moves[number] = [not widget.value, widget.value]
        elif isinstance(widget, ipywidgets.IntSlider) and not isinstance(widget, ipywidgets.Play):
            moves[number] = list(range(widget.min, widget.max + 1, widget.step))
    return moves


def main(name: str, arguments: str, file: str) -> None:
    """Write the panel's opening and its moves. A slider's value that leaves all as it is changes nothing."""
    try:
        from panel_host import Host

        host = Host(name, json.loads(arguments))
    except (ImportError, TypeError) as error:
        print(error)
        sys.exit(3)
    numbers = {id(widget): number for number, widget in enumerate(host.widgets)}
    html = html_of(host.panel, numbers)
    changes = {
        f"{number} {json.dumps(value)}": Host(name, json.loads(arguments)).move(number, value)
        for number, values in single_moves(host).items()
        for value in values
    }
    made = {"html": html, "opening": host.told, "moves": changes}
    Path(file).write_bytes(gzip.compress(json.dumps(made).encode(), 9, mtime=0))


if __name__ == "__main__":
    main(*sys.argv[1:])
