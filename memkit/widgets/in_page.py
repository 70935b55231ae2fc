"""What runs in the page beside a panel: keyboard and names for its controls, and which mark of its picture is meant.

Four facts make it necessary (JupyterLab 4, Notebook 7, ipywidgets 8.1). A notebook in command mode takes the
arrow keys away from sliders and menus, unless the focused element itself carries
``data-lm-suppress-shortcuts``. From there no key leads back to the cells: Escape does. A slider has no accessible
name (its description is not linked to it), nor has a button that shows an icon only. And what has the focus is told
by the colour of a border of one pixel.

The marks of a picture tell their bytes under the pointer without any script. With it the arrow keys go from mark to
mark of a picture that has the focus, a line below tells each, and Enter, Space or a click chooses it.

Without ``anywidget`` a panel works all the same: a number is typed into the box beside its slider, which has a name
and keeps its keys, and what a click selects, a slider selects too.
"""

from collections.abc import Callable
from pathlib import Path

from memkit.pictures.svg import PAPER_OF

SCRIPT = Path(__file__).with_suffix(".js")

FOCUS_CSS = """
.memkit-panel :is(select, input, button, summary, [tabindex]):focus-visible {
  outline: 3px solid #0072B2 !important; outline-offset: -2px;
}
.memkit-panel [role=slider]:focus-visible { outline-offset: 1px; }
"""

MORE_CONTROLS = '<details class="memkit-more-controls"><summary>More controls</summary></details>'
FOLD = """<details class="memkit-fold"><summary>The numbers as a table</summary></details>
<style>@supports selector(:has(*)) {
.memkit-panel:not(:has(details.memkit-fold[open])) .memkit-table {display: none}
.memkit-panel:not(:has(details.memkit-more-controls[open])) .memkit-later {display: none}}
.memkit-table td, .memkit-table th {text-align: right; padding: 1px 10px}
.memkit-table td:first-child, .memkit-table th:first-child {text-align: left}
.memkit-view {overflow-x: auto; PAPER}
.memkit-panel :is(.widget-box, .widget-inline-hbox):not(.memkit-view) {max-width: calc(100% - 4px)}
.memkit-number {flex-wrap: wrap}
.memkit-tip {height: 3em; line-height: 1.5; overflow-y: auto}
@media (min-width: 1000px) {
.memkit-tip {height: 1.5em}
.memkit-aside {flex-flow: row wrap}
.memkit-aside > * {flex: 1 1 100%; min-width: 0}
.memkit-aside > .memkit-view {flex: 1 1 600px; max-width: 804px}
.memkit-aside > .memkit-status {flex: 1 1 230px}
.memkit-aside > :is(.memkit-tip, .memkit-status ~ *) {order: 1}}
.memkit-room {position: relative; line-height: 1.45}
.memkit-room::before {content: attr(data-room); visibility: hidden; white-space: pre-wrap}
.memkit-room > * {position: absolute; inset: 0; padding: inherit; overflow-y: auto}
.memkit-alert {position: relative; z-index: 2; height: 0; min-height: 0; margin: 0; overflow: visible}
.memkit-alert [role=alert] {position: absolute; left: 0; right: 0; background: var(--jp-layout-color0, #fff)}
.memkit-view [data-pick] {cursor: pointer}
.memkit-panel.jupyter-widgets-disconnected > * {opacity: .6}
.memkit-panel.jupyter-widgets-disconnected::after { order: -1;
  content: "The kernel has stopped, so nothing here answers. Run the cells again."; font-weight: bold}
.memkit-view .memkit-here {stroke: currentColor; stroke-width: 2.5px}</style>""".replace(
    "PAPER", PAPER_OF
)
"""A fold stays one element while the table beside it changes; else each move would close it.

Nothing moves below a control: each place has the room of its longest words, and what is refused lies on the picture.
"""


def key_helpers(pick: Callable[[str], None] = lambda mark: None) -> list:
    """Keyboard, names and focus for the panel that it stands in; nothing where ``anywidget`` is missing.

    ``pick(mark)`` is called with the ``data-pick`` of a mark that is chosen in the picture.
    """
    try:
        from anywidget import AnyWidget
    except ImportError:
        return []
    helper = type("KeyHelper", (AnyWidget,), {"_esm": SCRIPT, "_css": FOCUS_CSS})()
    helper.on_msg(lambda _, content, __: pick(content["pick"]))
    return [helper]
