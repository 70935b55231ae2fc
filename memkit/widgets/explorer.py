"""An explorer: named values, one question, and what there is to see for an answer. Plain Python, no library.

A subclass answers ``view(**state)``: what is there to see for these values? The controls are the defaults of its
parameters. An explorer keeps the last answer that works and the reason why a value has none. A notebook shows it as a
``Panel``; a page without a kernel runs the same Python; where neither runs, its picture and one sentence stand in the
page.
"""

import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from threading import RLock

from memkit import widgets
from memkit.models import ModelConfig
from memkit.pictures.colours import COLOUR
from memkit.pictures.svg import PAPER_OF, Chart
from memkit.units import as_one_of, as_whole_number, shown


@dataclass(frozen=True)
class Number:
    """A whole number: any may be typed, a slider has the usual ones from ``low`` to ``high``."""

    label: str
    value: int
    low: int
    high: int
    step: int = 1


@dataclass(frozen=True)
class Choice:
    """A menu, of texts or of (text, value) pairs; it offers only what ``goes_with(value, state)``, if that is given."""

    label: str
    options: Collection
    value: object
    goes_with: Callable[[object, dict], bool] | None = None


@dataclass(frozen=True)
class Switch:
    """A box to tick."""

    label: str
    value: bool


@dataclass(frozen=True)
class Entry:
    """A text to type; the explorer's own view refuses what it cannot read."""

    label: str
    value: str


@dataclass(frozen=True)
class Bits:
    """A code, whose bits are pressed in the picture; it has no box of its own."""

    label: str
    value: int


def refuse(name: str, control: object, new: object) -> None:
    """Raises: ValueError: no whole number, not on the menu, no truth value; what is typed the view reads or refuses."""
    match control:
        case Number():
            as_whole_number(name, new, min(control.low, 1))
        case Choice():
            allowed = values_of(control.options)
            if not isinstance(new, float) or new not in allowed:
                as_one_of(name, new, allowed)
        case Switch():
            if not isinstance(new, bool):
                raise ValueError(f"{name}={shown(new)} is not a bool")


def values_of(options: Collection) -> tuple:
    """The values of a menu's options, which are values or (text, value) pairs."""
    return tuple(option[1] if isinstance(option, tuple) else option for option in options)


def takes_length(models: Mapping[str, ModelConfig]) -> Callable[[int, dict], bool]:
    """Of a menu of lengths: whether one is a sequence that the chosen one of these models takes."""
    return lambda length, state: length <= models[state["model"]].max_seq_len


@dataclass(frozen=True, kw_only=True)
class View:
    """What an explorer shows for one state: a picture, what it means, and its numbers.

    ``words`` are sentences, the first of which is the one-line summary. Where the question is about a card,
    ``headline`` is the answer in a few words, above the picture, and ``verdict`` its colour and sign.
    ``table`` has rows of text, the header first. ``more`` gives sentences that take longer to find; it is called when
    the controls rest. ``code`` stands below the words, indented as it is. ``picks`` are the values of controls that a
    mark of the picture chooses, by its ``data-pick``; ``ends`` says where sliders end, if not at their ``high``.
    ``kept`` is what the next view may want of this one.
    """

    chart: Chart
    words: Sequence[str]
    headline: str = ""
    verdict: str = ""
    table: Sequence[Sequence[str]] = ()
    more: Callable[[], Sequence[str]] = tuple
    code: str = ""
    picks: Mapping[str, Sequence] = field(default_factory=dict)
    ends: Mapping[str, int] = field(default_factory=dict)
    kept: object = None


class Explorer:
    """Controls by the names of the state, the ``state`` that is ``shown``, and the ``error`` of the last change.

    ``set(**changes)`` moves controls; a value that cannot be shown leaves everything as it was and is explained.
    An explorer whose controls depend on what it is given sets ``controls`` itself before it opens.
    """

    controls: Mapping[str, Number | Choice | Switch | Entry | Bits] = {}
    lines: Mapping[str, Sequence[int]] = {"verdict": (86,), "status": (100,), "more": ()}
    """The most characters of each line of a place; a panel keeps room for them, so that nothing jumps."""
    asked_later: Collection[str] = ()
    """Controls that stand behind *More controls*: most questions do without them."""

    def __init_subclass__(cls, **lines: Sequence[int]):
        cls.lines = cls.lines | lines
        given = inspect.signature(cls.view).parameters.values()
        named = {each.name: each.default for each in given if hasattr(each.default, "label")}
        # ``**state``: those of the class above too
        adds = any(each.kind is each.VAR_KEYWORD for each in given)
        cls.controls = {**(cls.controls if adds else {}), **named} or cls.controls

    def __init__(self, **values):
        self.state = {name: control.value for name, control in self.controls.items()}
        self.shown, self.error, self._panel, self._one_at_a_time = None, "", None, RLock()
        self.set()
        if values:
            self.set(**values)

    def view(self, **state) -> View:
        """What to show for these values of the controls; a ``ValueError`` is shown as it reads.

        Raises: ValueError: the state has no picture; the message says why.
        """
        raise NotImplementedError

    def followed(self, changes: dict) -> dict:
        """``changes`` of controls, with those that follow from them.

        Raises: ValueError: a value that no control takes; the message says why.
        """
        return changes

    def offered(self, state: dict) -> dict[str, tuple]:
        """Options of the menus that offer only what goes with the rest of the state.

        A value that is not among them any more gives way to the last one.
        """
        return {
            name: tuple(o for o in menu.options if menu.goes_with(*values_of([o]), state))
            for name, menu in self.controls.items()
            if getattr(menu, "goes_with", None)
        }

    def pick(self, mark: str) -> None:
        """The mark of the picture with this ``data-pick`` was chosen; nothing follows unless the view says what."""
        if self.shown.picks:
            self.set(**{name: values[int(mark)] for name, values in self.shown.picks.items()})

    def set(self, **changes) -> None:
        """Move controls; a bad name or value is explained and changes nothing."""
        with self._one_at_a_time:  # JupyterLab hands messages to threads
            self._set(changes)
            if self._panel:
                self._panel.show()

    def _set(self, changes: dict) -> None:
        try:
            state = self._after(changes)
            shown = self.view(**state)
        except ValueError as error:
            self.error = str(error)
        except Exception as error:  # noqa: BLE001 - an explorer never dies of one state
            self.error = f"{type(error).__name__}: {error}"
        else:
            self.shown, self.state, self.error = shown, state, ""

    def _after(self, changes: dict) -> dict:
        """The state after ``changes`` and those that follow, each menu of ``offered`` at a value that it offers.

        Raises: ValueError: an unknown name, or what its control cannot take.
        """
        for name, new in changes.items():
            if name not in self.controls:
                known = ", ".join(self.controls)
                raise ValueError(f"{name!r} is not a control; there are: {known}")
            if name not in self.offered(self.state):
                refuse(name, self.controls[name], new)
        changes = self.followed(changes)
        state = {**self.state, **changes}
        for name, options in self.offered(state).items():
            if name in changes:
                as_one_of(name, state[name], values_of(options))
            elif state[name] not in values_of(options):
                state[name] = values_of(options)[-1]
        return state

    @property
    def summary(self) -> str:
        """One line: what the picture shows, and the error if there is one."""
        words = [f"Error: {self.error}."] if self.error else []
        return " ".join([*words, *(self.shown.words[:1] if self.shown else ())])

    @property
    def panel(self):
        """The explorer in a notebook, made when it is first asked for; needs ipywidgets."""
        if self._panel is None:
            self._panel = widgets.Panel(self)  # the folder loads it now, and ipywidgets
        return self._panel

    def _repr_mimebundle_(self, **kwargs) -> tuple[dict, dict]:
        """The live panel, and its static twin for pages without a kernel: the picture and one line."""
        bundle, metadata = self.shown.chart._repr_mimebundle_() if self.shown else ({}, {})
        live = self.panel._repr_mimebundle_(**kwargs)
        return {**live, **bundle, "text/plain": self.summary}, metadata


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

SIGNS = {
    "fits": (COLOUR["fits"], "✓ "),
    "tight": (COLOUR["tight"], "! "),
    "does not fit": (COLOUR["does not fit"], "✗ "),
    "": ("currentColor", ""),
}


def html_places(
    explorer: Explorer, said: Sequence[str] = (), is_old: bool = False
) -> dict[str, str]:
    """What a panel says around its picture, in Jupyter and on a page, each place read out when it changes.

    ``alert``: why the last change is not shown. ``verdict``: the answer, above the picture; a sign and a bar at its
    side say whether it fits. ``status``: what the picture means. ``more``: what takes longer to find, ``said``; pale
    while it still speaks of the settings before, so that nothing jumps.
    """
    view = explorer.shown
    if view is None:
        return {"alert": html_error(explorer)}
    colour, sign = SIGNS[view.verdict]
    lines, style = (
        explorer.lines,
        f"border-left:4px solid {colour};padding:1px 10px;font-weight:600",
    )
    code = "line-height:1.3;margin:4px 0;white-space:pre;overflow-x:auto"  # JupyterLab would break it in mid-word
    block = f'<pre tabindex="0" style="{code}">{escape(view.code)}</pre>' if view.code else ""
    words = "<br>".join(map(escape, view.words if view.headline else view.words[1:]))
    more, pale = "<br>".join(map(escape, said)), "opacity:0.4" if is_old and said else ""
    headline = sign + escape(view.headline or view.words[0])
    return {
        "alert": html_error(explorer),
        "verdict": live(headline, style, lines["verdict"]),
        "status": live(words + block, "", lines["status"]),
        "more": live(more, pale, lines["more"]),
    }


def live(html: str, style: str, lines: Sequence[int]) -> str:
    """A place that a screen reader reads out when it changes, with room for lines of so many characters."""
    longest = "&#10;".join("nnnn " * -(-num_chars // 5) for num_chars in lines)
    said = f'<div role="status" aria-live="polite">{html}</div>'
    return f'<div class="memkit-room" style="{style}" data-room="{longest}">{said}</div>'


REFUSED_VALUE = re.compile(r"""(\w+)=('[^']*'|"[^"]*"|\S+) (.+)""", re.DOTALL)
"""How an error begins that shows a bad value, here and in ``memkit.units``: a text in quotes may hold spaces."""


def html_error(explorer: Explorer) -> str:
    """Why the last change cannot be shown, in its control's own name; nothing where it is shown."""
    if not explorer.error:
        return ""
    said = f"<strong>This was not taken.</strong> {escape(explorer.error)}."
    named = REFUSED_VALUE.fullmatch(explorer.error)
    if named and named[1] in explorer.controls:
        name, value, reason = named.groups()
        label = f"{escape(explorer.controls[name].label)}: {escape(value)}"
        said = f"<strong>{label} was not taken.</strong> It {escape(reason)}."
    kept = " The picture still shows the last setting that works." if explorer.shown else ""
    style = "border-left:4px solid #D55E00;padding:2px 10px;margin:4px 0;line-height:1.45"
    return f'<div role="alert" style="{style}">{said}{kept}</div>'


def rows_of(columns: Mapping[str, Sequence[str]]) -> list[tuple[str, ...]]:
    """Columns by their headers as rows, the header first."""
    return [tuple(columns), *zip(*columns.values(), strict=True)]
