"""What the book's panels use of ipywidgets, for a Python that runs in a page: values that are watched.

The panels of ``memkit.widgets`` run on it unchanged. The page draws what ``panel_host`` reads from these objects, and
tests/site compares every answer with the one that the same panel gives on the real ipywidgets.
"""

from contextlib import nullcontext
from types import SimpleNamespace


class Widget:
    """Named values; a handler of ``observe`` is called when its value has become another one."""

    def __new__(cls, *_arguments, **_values):
        widget = object.__new__(cls)
        widget.__dict__.update(_handlers={}, classes=())  # a subclass sets values before it calls __init__
        return widget

    def __init__(self, **values):
        for name, value in values.items():
            setattr(self, name, value)

    def __setattr__(self, name, new):
        old = getattr(self, name, None)
        new = self.accepted(name, new)
        self.__dict__[name] = new
        if type(old) is not type(new) or old != new:
            self.notify_change({"name": name, "old": old, "new": new, "owner": self})

    def accepted(self, name: str, new: object) -> object:
        """The value that is kept for ``new``."""
        return new

    def notify_change(self, change) -> None:
        """Call who watches."""
        for handler in self._handlers.get(change["name"], ()):
            handler(change)

    def observe(self, handler, names="value") -> None:
        """Call ``handler`` when a value changes."""
        self._handlers.setdefault(names, []).append(handler)

    def add_class(self, name: str) -> None:
        """One more name for the style sheet."""
        self.classes = (*self.classes, name)

    def hold_trait_notifications(self):
        """Nothing is held back here."""
        return nullcontext()

    def _repr_mimebundle_(self, **_kwargs) -> dict:
        return {}


class Box(Widget):
    """Other widgets, side by side."""

    def __init__(self, children=(), **values):
        super().__init__(children=tuple(children), **values)


class HBox(Box):
    """The same in a row."""


class VBox(Box):
    """The same, one below the other."""


class HTML(Widget):
    """Text of a page."""

    value = ""

    def __init__(self, value="", **values):
        super().__init__(value=value, **values)


class Label(HTML):
    """Words."""


class Text(HTML):
    """A line that is typed."""


class Checkbox(Widget):
    """Yes or no."""

    value = False


class IntText(Widget):
    """A whole number that is typed."""

    value = 0

    def __init__(self, value=0, **values):
        super().__init__(value=value, **values)


class FloatText(IntText):
    """A number that is typed."""

    def accepted(self, name, new):
        return float(new) if name == "value" else new


class IntSlider(Widget):
    """A whole number between two others; a bound that moves takes the value with it."""

    min, max, step, value = 0, 100, 1, 0

    def __init__(self, value=0, **values):
        super().__init__(**values)
        self.value = value

    def accepted(self, name, new):
        return min(max(new, self.min), self.max) if name == "value" else new

    def notify_change(self, change) -> None:
        super().notify_change(change)
        if change["name"] in ("min", "max"):
            self.value = self.value


class Play(IntSlider):
    """A button that counts."""


class Dropdown(Widget):
    """One of several options, which are values or (text, value) pairs; new options choose the first of them."""

    options, value = (), None

    def __init__(self, options=(), **values):
        self.__dict__["options"] = ()
        super().__init__(options=tuple(options), **values)

    @property
    def pairs(self) -> list[tuple[str, object]]:
        """Text and value of every option."""
        return [option if isinstance(option, tuple) else (str(option), option) for option in self.options]

    def accepted(self, name, new):
        if name == "options":
            return tuple(new)
        if name == "value" and new is not None and new not in [value for _, value in self.pairs]:
            raise ValueError("Invalid selection: value not found")
        return new

    def notify_change(self, change) -> None:
        super().notify_change(change)
        if change["name"] == "options" and self.pairs:
            self.value = self.pairs[0][1]


class RadioButtons(Dropdown):
    """The same as buttons."""


class Button(Widget):
    """A button; ``click`` does what a reader's click does."""

    description = ""

    def on_click(self, handler) -> None:
        """Call ``handler`` when it is clicked."""
        self._handlers.setdefault("click", []).append(handler)

    def click(self) -> None:
        """Tell who waits for it."""
        for handler in self._handlers.get("click", ()):
            handler(self)


def Layout(**values):
    """Where a widget stands; the page has its own style sheet."""
    return SimpleNamespace(**values)


ButtonStyle = Layout


def link(_one, _other):
    """A button that counts moves its slider in the page itself."""


jslink = link
