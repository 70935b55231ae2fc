"""The base of every explorer: controls above, a picture below, and what it means in words.

A subclass makes its controls and answers one question, ``view(**state)``: what is there to see for these
values? The panel does the rest. It asks again whenever a control moves, shows an error inside itself and
lives on, and carries a static twin, so that a page without a kernel still shows a picture and a sentence.
"""

import asyncio
import gc
from collections.abc import Mapping
from contextlib import contextmanager
from html import escape
from threading import RLock

import ipywidgets as widgets
import traitlets

from memkit.units import as_kind, as_one_of, as_whole_number, html_table
from memkit.widgets.faces import FOLD, View, html_words
from memkit.widgets.in_page import key_helper

WIDE = widgets.Layout(width="390px", margin="2px 12px 2px 0")
LABEL = {"description_width": "118px"}
PAUSE_SECONDS = 1.2
"""Controls that nobody has moved for so long rest. Advice costs a kernel more than a move does, and on a hub forty
share two cores: a reader who moves once a second must not pay for advice that nobody reads."""


class Number(widgets.HBox):
    """A whole number: a box that takes any value, and a slider for the usual ones. ``value`` is the box's."""

    value = traitlets.CInt()

    def __init__(self, label: str, value: int, low: int, high: int, step: int = 1):
        self.box = widgets.IntText(
            value,
            description=label,
            style=LABEL,
            layout=widgets.Layout(width="200px", margin="2px 4px 2px 0"),
        )
        self.slider = widgets.IntSlider(
            min(max(value, low), high),
            min=low,
            max=high,
            step=step,
            readout=False,
            layout=widgets.Layout(width="180px"),
        )
        self._is_following = False
        super().__init__([self.box, self.slider], layout=WIDE)
        self.add_class("memkit-number")
        self.value = value
        self.box.observe(self._type, "value")
        self.slider.observe(self._slide, "value")

    def notify_change(self, change) -> None:
        """Tell who watches, a panel that draws; then let box and slider follow, which can wait."""
        super().notify_change(change)
        if change["name"] == "value":
            self._follow()

    def _type(self, change) -> None:
        self.value = change["new"]

    def _slide(self, change) -> None:
        if not self._is_following:
            self.value = change["new"]

    def _follow(self) -> None:
        self._is_following = True
        self.box.value = self.value
        self.slider.value = min(max(self.value, self.slider.min), self.slider.max)
        self._is_following = False


def choice(label: str, options, value) -> widgets.Dropdown:
    """A menu with a name, of texts or of (text, value) pairs."""
    return widgets.Dropdown(options=options, value=value, description=label, style=LABEL, layout=WIDE)


def values_of(options: tuple) -> tuple:
    """The values of a menu's options, which are values or (text, value) pairs."""
    return tuple(option[1] if isinstance(option, tuple) else option for option in options)


def switch(label: str, value: bool) -> widgets.Checkbox:
    """A box to tick, with a name."""
    return widgets.Checkbox(value=value, description=label, indent=False, layout=WIDE)


class Panel(widgets.VBox):
    """Controls, picture, words, table. ``controls`` maps the names of the state to widgets with a ``value``.

    ``value`` is the state that the picture shows. ``set(**changes)`` moves controls from code; a value that
    cannot be shown leaves everything as it was and is explained inside the panel, in the same way as a
    mistyped number. A panel with a method ``pick(mark)`` is told which mark of its picture is clicked.
    """

    def __init__(self, controls: Mapping[str, widgets.Widget], **values):
        self.controls = dict(controls)
        self.shown, self.state, self.error = None, {}, ""
        self._pause, self._one_at_a_time = None, RLock()
        self.picture, self.status, self.alert = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self.table, self.fold, self.frame = widgets.HTML(), widgets.HTML(FOLD), widgets.HTML()
        self.picture.add_class("memkit-view")
        self.table.add_class("memkit-table")
        layout = widgets.Layout(display="flex", flex_flow="row wrap")
        children = [
            widgets.Box(tuple(self.controls.values()), layout=layout),
            self.alert,
            self.picture,
            self.status,
        ]
        helper = key_helper(self.pick)
        super().__init__([*children, self.fold, self.table, self.frame, *([helper] if helper else [])])
        self.add_class("memkit-panel")
        self._is_setting = False
        for control in self.controls.values():
            control.observe(self._moved, "value")
        self._try(self._read())
        self._offer()
        if values:
            self.set(**values)

    def view(self, **state) -> View:
        """What to show for these values of the controls; a ``ValueError`` is shown as it reads.

        Raises: ValueError: the state has no picture; the message says why.
        """
        raise NotImplementedError

    @property
    def value(self) -> dict:
        """The values that the picture shows, by the names of the controls."""
        return dict(self.state)

    def followed(self, changes: dict) -> dict:
        """``changes`` of controls, with those that follow from them.

        Raises: ValueError: a value that no control takes; the message says why.
        """
        return changes

    def offered(self, state: dict) -> dict[str, tuple]:
        """Options of the menus that offer only what goes with the rest of the state.

        A value that is not among them any more gives way to the last one.
        """
        return {}

    def plays(self, control: Number, interval: int) -> None:
        """A button that moves a number's slider to its end by itself, a step each ``interval`` ms."""
        slider, auto = control.slider, widgets.Layout(width="auto")
        play = widgets.Play(
            value=slider.value, max=slider.max, interval=interval, show_repeat=False, layout=auto
        )
        widgets.jslink((slider, "max"), (play, "max"))
        widgets.link((play, "value"), (slider, "value"))
        self.children[0].children = [*self.children[0].children, play]

    def settle(self, state: dict) -> None:
        """Let the controls show what they do of a state whose picture is on its way."""

    def _fitted(self, changes: dict) -> dict:
        """``changes`` with those that follow, and each menu of ``offered`` at a value that it offers."""
        changes = self.followed(changes)
        state = {**self._read(), **changes}
        for name, options in self.offered(state).items():
            if name not in changes and state[name] not in values_of(options):
                changes = {**changes, name: values_of(options)[-1]}
        return changes

    def _offer(self) -> None:
        """Let the menus of ``offered`` offer what goes with the state that is shown."""
        was_setting, self._is_setting = self._is_setting, True
        for name, options in (self.offered(self.state) if self.state else {}).items():
            if tuple(self.controls[name].options) != tuple(options):
                self.controls[name].options = options
                self.controls[name].value = self.state[name]
        self._is_setting = was_setting

    def set(self, **changes) -> None:
        """Move controls; a bad name or value is explained inside the panel and changes nothing."""
        unknown = [name for name in changes if name not in self.controls]
        if unknown:
            self._complain(f"{unknown[0]!r} is not a control; there are: {', '.join(self.controls)}")
            return
        try:
            self._refuse(changes)
            changes = self._fitted(changes)
        except ValueError as error:
            self._complain(str(error))
            return
        except (TypeError, KeyError):
            pass  # view refuses the same value in words
        if not self._try({**self._read(), **changes}):
            return
        before = self._read()
        self._is_setting = True
        try:
            self._offer()
            for name, new in changes.items():
                self.controls[name].value = new
            self.state = self._read()
        except Exception as error:  # noqa: BLE001 - whatever a control says, the reader sees it and goes on
            reason = f"{name}={new!r}: {error}"
            self._try(before)
            self._offer()
            for name, old in before.items():
                self.controls[name].value = old
            self._complain(reason)
        finally:
            self._is_setting = False

    def _refuse(self, changes: dict) -> None:
        """Raises: ValueError: what a menu that always offers the same lacks; no whole number, no truth value."""
        offered = self.offered(self.state) if self.state else {}
        for name, new in changes.items():
            control = self.controls[name]
            if isinstance(control, Number):
                as_whole_number(name, new, min(control.slider.min, 1))
            elif isinstance(control, widgets.Checkbox):
                as_kind(name, new, bool)
            elif isinstance(control, widgets.Dropdown) and name not in offered:
                allowed = values_of(control.options)
                if not isinstance(new, float) or new not in allowed:
                    as_one_of(name, new, allowed)

    def _read(self) -> dict:
        return {name: control.value for name, control in self.controls.items()}

    def _moved(self, change) -> None:
        if not self._is_setting:
            [name] = (name for name, control in self.controls.items() if control is change["owner"])
            self.set(**{name: change["new"]})
            if self.error:
                self._put_back()

    def _put_back(self) -> None:
        """A refused value leaves its box again: the controls say what the picture shows."""
        self._is_setting = True
        try:
            for name, shown in self.state.items():
                if self.controls[name].value != shown:
                    self.controls[name].value = shown
        finally:
            self._is_setting = False

    def _try(self, state: dict) -> bool:
        """Show the state, or the reason why it cannot be shown."""
        try:
            self._show(self._draw(state), state)
        except ValueError as error:
            self._complain(str(error))
        except Exception as error:  # noqa: BLE001 - a panel never dies of one state
            self._complain(f"{type(error).__name__}: {error}")
        else:
            self.error = self.alert.value = ""
        return not self.error

    def _draw(self, state: dict) -> View:
        with (
            self._one_at_a_time,
            collected_later(),
        ):  # JupyterLab hands messages to threads; there is one picture
            return self.view(**state)

    def pick(self, mark: str) -> None:
        """The mark of the picture with this ``data-pick`` was clicked; nothing follows unless a panel says what."""

    def _show(self, shown: View, state: dict) -> None:
        if self._pause:
            self._pause.cancel()
        chart = shown.live or shown.chart
        if not self.shown or chart is not (self.shown.live or self.shown.chart):
            self.picture.value = chart.html()
        self.frame.value = f"<style>{chart.frame_style()}</style>" if chart.marked is not None else ""
        self.shown, self.state = shown, state
        self.status.value, self.table.value = html_words(shown.words, shown.code), html_table(shown.table)
        was_setting, self._is_setting = self._is_setting, True  # what settles moves nothing
        self.settle(state)
        self._is_setting = was_setting
        if shown.more is not tuple:
            self._say_more_in_a_pause(shown)

    def _say_more_in_a_pause(self, shown: View) -> None:
        """What takes longer to find must not hold up a slider that is being moved: it waits until that rests."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # nobody moves anything: no notebook
            self._say_more(shown)
        else:
            self._pause = loop.call_later(PAUSE_SECONDS, self._say_later, shown)

    def _say_more(self, shown: View) -> None:
        self.status.value = html_words((*shown.words, *shown.more()), shown.code)

    def _say_later(self, shown: View) -> None:
        try:
            self._say_more(shown)
        except Exception as error:  # noqa: BLE001 - a panel never dies of one state
            self._complain(f"{type(error).__name__}: {error}")

    def _complain(self, message: str) -> None:
        self.error = message
        kept = "" if self.shown is None else " The picture still shows the last setting that works."
        style = "border-left:4px solid #D55E00;padding:2px 10px;margin:4px 0;line-height:1.45"
        named = next(
            (label_of(control) for name, control in self.controls.items() if message.startswith(f"{name}=")),
            "",
        )
        text = f"<strong>{escape(named or 'This')} cannot be.</strong> {escape(message)}.{kept}"
        self.alert.value = f'<div role="alert" style="{style}">{text}</div>'

    @property
    def summary(self) -> str:
        """One line: what the picture shows, and the error if there is one."""
        words = [f"Error: {self.error}."] if self.error else []
        return " ".join([*words, *(self.shown.words[:1] if self.shown else ())])

    def _repr_mimebundle_(self, **kwargs) -> tuple[dict, dict]:
        """The live panel, and its static twin for pages without a kernel: the picture and one line."""
        bundle, metadata = self.shown.chart._repr_mimebundle_() if self.shown else ({}, {})
        return {**super()._repr_mimebundle_(**kwargs), **bundle, "text/plain": self.summary}, metadata


def label_of(control: widgets.Widget) -> str:
    """What a reader calls a control: the words beside it."""
    return getattr(getattr(control, "box", control), "description", "")


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
