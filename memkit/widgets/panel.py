"""The ipywidgets of an explorer in a notebook: controls above, a picture below, and what it means in words.

``in_page.js`` runs beside it in the page: keyboard and names for its controls, and which mark of its picture is meant.
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

import asyncio
import gc
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import ipywidgets as widgets
import traitlets

from memkit.units import html_table
from memkit.widgets.explorer import FOLD, Bits, Choice, Explorer, Number, Switch, html_places

SCRIPT = Path(__file__).with_name("in_page.js")
FOCUS_CSS = """
.memkit-panel :is(select, input, button, summary, [tabindex]):focus-visible {
  outline: 3px solid #0072B2 !important; outline-offset: -2px;
}
.memkit-panel [role=slider]:focus-visible { outline-offset: 1px; }
"""
MORE_CONTROLS = '<details class="memkit-more-controls"><summary>More controls</summary></details>'

WIDE = widgets.Layout(width="390px", margin="2px 12px 2px 0")
LABEL = {"description_width": "118px"}
MANY_CHARS = 550
"""Longer words stand beside the picture where there is room: below it they would push the panel off a small screen."""
PAUSE_SECONDS = 1.2
"""Controls that nobody has moved for so long rest. Advice costs a kernel more than a move does, and on a hub forty
share two cores: a reader who moves once a second must not pay for advice that nobody reads."""


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


class NumberBox(widgets.HBox):
    """A box that takes any number, 1e3 too, and a slider for the usual ones. ``value`` is the box's.

    A whole number is an ``int``; any other is handed on as it is, for the explorer to refuse it in words.
    """

    value = traitlets.Any()

    def __init__(self, control: Number):
        wide = widgets.Layout(width="200px", margin="0 4px 0 0")
        named = {"description": control.label, "style": LABEL, "layout": wide}
        self.box = widgets.FloatText(control.value, **named)
        ends = {"min": control.low, "max": control.high, "step": control.step}
        narrow = widgets.Layout(width="180px", margin="0")
        self.slider = widgets.IntSlider(control.low, **ends, readout=False, layout=narrow)
        super().__init__([self.box, self.slider], layout=WIDE)
        self.add_class("memkit-number")
        self.value = control.value
        self.box.observe(self._move, "value")
        self.slider.observe(self._move, "value")

    def notify_change(self, change) -> None:
        """Tell who watches, a panel that draws; then let box and slider follow, which can wait."""
        super().notify_change(change)
        if change["name"] == "value":
            self.box.value, self.slider.value = self.value, self._on_slider()

    def _on_slider(self) -> int:
        """Where the slider stands for the value, which may lie beyond its ends."""
        return int(min(max(self.value, self.slider.min), self.slider.max))

    def _move(self, change) -> None:
        new = change["new"]
        if change["owner"] is self.box or new != self._on_slider():
            self.value = int(new) if float(new).is_integer() else new


def box_of(control) -> widgets.Widget:
    """The widget of a control, with its name; it has a ``value``."""
    named = {"value": control.value, "description": control.label, "layout": WIDE}
    match control:
        case Number():
            return NumberBox(control)
        case Choice():
            return widgets.Dropdown(options=tuple(control.options), style=LABEL, **named)
        case Switch():
            return widgets.Checkbox(indent=False, **named)
    return widgets.Text(continuous_update=False, style=LABEL, **named)


def box_of_boxes(boxes: list) -> widgets.Box:
    """Controls beside one another, as many as a line has room for."""
    return widgets.Box(boxes, layout=widgets.Layout(flex_flow="row wrap"))


class Panel(widgets.VBox):
    """The controls of an explorer, its picture, words and table; what it refuses is explained inside."""

    def __init__(self, explorer: Explorer):
        self.explorer = explorer
        self.controls = {
            name: box_of(control)
            for name, control in explorer.controls.items()
            if not isinstance(control, Bits)
        }
        self._shown = self._chart = self._pause = self._said_of = None
        self._said, self._is_showing = (), False
        self.picture, self.table, self.verdict, self.alert, self.more = (
            widgets.HTML().add_class(f"memkit-{name}")
            for name in ("view", "table", "verdict", "alert", "more")
        )
        self.status, self.frame, self.fold = widgets.HTML(), widgets.HTML(), widgets.HTML(FOLD)
        later = [self.controls[name] for name in explorer.asked_later]
        first = [control for control in self.controls.values() if control not in later]
        hidden = [
            widgets.HTML(MORE_CONTROLS),
            box_of_boxes(later).add_class("memkit-later"),
        ]
        children = [
            box_of_boxes(first),
            *(hidden if later else []),
            self.verdict,
            self.alert,
            self.picture,
            self.status,
            self.more,
            self.fold,
            self.table,
            self.frame,
            *key_helpers(explorer.pick),
        ]
        super().__init__(children)
        self.add_class("memkit-panel")
        self.status.add_class("memkit-status")
        if sum(explorer.lines["status"]) > MANY_CHARS:
            self.add_class("memkit-aside")
        self.show()
        for name, control in self.controls.items():
            control.observe(lambda change, name=name: self._moved(name, change["new"]), "value")

    def _moved(self, name: str, new: object) -> None:
        if not self._is_showing:
            with collected_later():
                self.explorer.set(**{name: new})

    def show(self) -> None:
        """The picture and words of the explorer's state; a refused value leaves its box again."""
        shown = self.explorer.shown
        if shown is not self._shown:
            self._shown, chart = shown, shown.chart
            # the same picture with another mark framed is not sent again
            if chart is not self._chart:
                self.picture.value, self._chart = chart.html(), chart
            self.frame.value = f"<style>{chart.frame_style()}</style>"
            self.table.value = html_table(shown.table)
            self._say_more_in_a_pause()
        self._say()
        if shown:
            self._is_showing = True
            try:
                self._move_controls()
            finally:
                self._is_showing = False

    def _say(self) -> None:
        """The words around the picture; what is said in a pause stays, pale, until it is said anew."""
        is_old = self._said_of is not self._shown
        for place, html in html_places(self.explorer, self._said, is_old).items():
            getattr(self, place).value = html

    def _move_controls(self) -> None:
        """Controls say what the picture shows: menus offer what goes with it, sliders end where it ends."""
        state = self.explorer.state
        for name, options in self.explorer.offered(state).items():
            if tuple(self.controls[name].options) != tuple(options):
                self.controls[name].options = options
        for name, end in self.explorer.shown.ends.items():
            self.controls[name].slider.max = end
        for name, control in self.controls.items():
            if control.value != state[name]:
                control.value = state[name]

    def _say_more_in_a_pause(self) -> None:
        """What takes longer to find must not hold up a slider that is being moved: it waits until that rests."""
        if self._pause:
            self._pause.cancel()
        if self._shown.more is tuple:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # nobody moves anything: no notebook
            self._say_more()
        else:
            self._pause = loop.call_later(PAUSE_SECONDS, self._say_more)

    def _say_more(self) -> None:
        explorer, shown = self.explorer, self.explorer.shown
        try:
            self._said, self._said_of = tuple(shown.more()), shown
        except Exception as error:  # noqa: BLE001 - a panel never dies of one state
            explorer.error = f"{type(error).__name__}: {error}"
        self._say()


@contextmanager
def collected_later():
    """No search for garbage meanwhile: one through all that a kernel holds takes longer than to draw a picture."""
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:
            gc.enable()
