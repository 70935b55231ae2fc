"""The bit explorer: flip the bits of a code, or type a number, and see what a format makes of it."""

import math

import ipywidgets as widgets
import traitlets

from memkit.formats.reading import (
    CodeReading,
    Nearest,
    nearest_in,
    number_text,
    parse_code,
    parse_number,
    read_code,
)
from memkit.formats.records import FORMATS, FloatFormat, get_format
from memkit.pictures.bits import BOTTOM, TOP, BitPicture, box_edges
from memkit.pictures.formats import COMPARED, ComparisonPicture, note_on, stacked_png
from memkit.units import as_one_of
from memkit.widgets.clicks import click_helper
from memkit.widgets.panel import LABEL, WIDE, Panel, View, choice, switch


class Bits(widgets.VBox):
    """A code: a button for each bit, and a box to type all of them. ``value`` is the code, or the text as typed."""

    value = traitlets.Any(0)

    def __init__(self, label: str):
        self.text = widgets.Text(description=label, continuous_update=False, style=LABEL, layout=WIDE)
        self.row = widgets.HBox(layout=widgets.Layout(flex_flow="row wrap", align_items="center"))
        self.buttons, self.code, self._is_showing = [], 0, False
        self.cell = widgets.Layout(width="34px", height="30px", margin="1px", padding="0")
        super().__init__([self.text, self.row], layout=widgets.Layout(width="100%"))
        self.text.observe(self._typed, "value")

    def show(self, reading: CodeReading) -> None:
        """One button per bit, from the left, with its field's name before each field."""
        self._is_showing = True
        self.code = reading.code
        while len(self.buttons) < len(reading.bits):
            button = widgets.Button(layout=self.cell)
            button.on_click(self._flip)
            self.buttons.append(button)
        children, at = [], 0
        for field, digits in reading.fields:
            children.append(widgets.Label(field, layout=widgets.Layout(margin="0 4px 0 10px")))
            for place, digit in enumerate(digits):
                button = self.buttons[at]
                button.description = digit
                button.tooltip = f"{field} bit {len(digits) - 1 - place}"
                children.append(button)
                at += 1
        names = [child.value for child in self.row.children if isinstance(child, widgets.Label)]
        if len(self.row.children) != len(children) or names != [field for field, _ in reading.fields]:
            self.row.children = children
        self.text.value = " ".join(digits for _, digits in reading.fields)
        self._is_showing = False

    def flip(self, index: int) -> None:
        """Flip a bit, counted from the left."""
        num_bits = sum(isinstance(child, widgets.Button) for child in self.row.children)
        self.value = self.code ^ (1 << (num_bits - 1 - index))

    def _flip(self, button: widgets.Button) -> None:
        self.flip(self.buttons.index(button))

    def _typed(self, change) -> None:
        if not self._is_showing:
            self.value = change["new"]


class BitExplorer(Panel):
    """Format, bits and number → what the bits say, the neighbours, and the number in eleven formats.

    Bits and number follow each other: a new code sets the number to its value, a new number or format sets
    the code to the nearest one. A code of infinity or NaN leaves the number as it was.
    """

    def __init__(self, **values):
        self.bits, self.comparison = BitPicture(), ComparisonPicture()
        controls = {
            "format": choice("Format", list(FORMATS), "float8_e4m3fn"),
            "number": widgets.Text(
                "1.5", description="Number", continuous_update=False, style=LABEL, layout=WIDE
            ),
            "saturates": switch("too large: saturate, not infinity or NaN", True),
            "code": Bits("Bits"),
        }
        controls["code"].value = nearest_in(1.5, "float8_e4m3fn", saturates=True).code
        super().__init__(controls, **values)
        if helper := click_helper(self.click):
            self.children = [*self.children, helper]

    def set(self, **changes) -> None:
        """Move controls; bits and number follow each other."""
        try:
            changes = self.followed(changes)
        except (ValueError, TypeError):
            pass  # view refuses the same value, and says why inside the panel
        super().set(**changes)

    def followed(self, changes: dict) -> dict:
        """``changes`` with what follows from them: a code for a new number, a number for a new code."""
        state = {**self._read(), **changes}
        fmt = get_format(state["format"])
        if "code" in changes:
            code = parse_code(state["code"], fmt)
            value = read_code(code, fmt).value
            number = repr(value).removesuffix(".0") if math.isfinite(value) else state["number"]
            return {"number": number, **changes, "code": code}
        if not {"format", "number", "saturates"} & set(changes):
            return changes
        nearest = nearest_in(parse_number(state["number"]), fmt, saturates=state["saturates"])
        return {**changes, "number": str(state["number"]), "code": nearest.code}

    def view(self, format: str, number: str, saturates: bool, code: int | str) -> View:
        """The bits and their neighbours; below them the number in every format of the book's comparison."""
        as_one_of("format", format, FORMATS)
        if not isinstance(saturates, bool):
            raise ValueError(f"saturates={saturates!r} is neither True nor False")
        reading = read_code(parse_code(code, format), format)
        asked = parse_number(number)
        nearest = nearest_in(asked, format, saturates=saturates)
        rows = [nearest_in(asked, name, saturates=saturates) for name in COMPARED]
        upper = self.bits.redraw(reading)
        lower = self.comparison.redraw(asked, saturates=saturates)
        self.controls["code"].show(reading)
        table = [("format", f"holds {number_text(asked, 9)} as", "off by", "bits")]
        table += [(n.fmt.name, number_text(n.value, 9), note_on(n), f"{n.code:0{n.fmt.bits}b}") for n in rows]
        return View(
            png=stacked_png(upper, lower),
            alt=f"{upper.alt} {lower.alt}",
            words=(said(reading), gaps(reading), held(reading, nearest), compared(rows)),
            table=tuple(table),
        )

    def click(self, x: float, y: float) -> None:
        """Flip the bit under a point, given in shares of the picture's width and height; none changes nothing."""
        heights = [picture.get_figheight() for picture in (self.bits, self.comparison)]
        up = 1 - y * sum(heights) / heights[0]  # in the upper picture, counted from its bottom
        num_bits = FORMATS[self.value["format"]].bits
        left, width = box_edges(num_bits)
        index = math.floor((x - left) / width)
        if BOTTOM <= up <= TOP and 0 <= index < num_bits:
            self.controls["code"].flip(index)

    def _moved(self, change) -> None:
        if not self._is_setting:
            [name] = (name for name, control in self.controls.items() if control is change["owner"])
            self.set(**{name: change["new"]})


def said(reading: CodeReading) -> str:
    """What the code says, in one line."""
    code = f"{reading.fmt.name}, bits {' '.join(digits for _, digits in reading.fields)}: {reading.spelled}"
    if reading.kind in ("infinity", "NaN"):
        return f"{code}."
    kind = {"zero": "zero", "table entry": "an entry of its table"}.get(
        reading.kind, f"a {reading.kind} number"
    )
    return f"{code} = {reading.text(reading.value)}, {kind}."


def gaps(reading: CodeReading) -> str:
    """The next values and how far they are."""
    if reading.kind == "NaN":
        return "NaN is no number and has no neighbours."
    sides = []
    for name, side in (("below", reading.below), ("above", reading.above)):
        if side is None:
            sides.append(f"nothing {name}")
        else:
            gap = abs(side - reading.value)
            away = f", {number_text(gap)} away" if math.isfinite(gap) else ""
            sides.append(f"{reading.text(side)} {name}{away}")
    return f"Next: {sides[0]}; {sides[1]}."


def held(reading: CodeReading, nearest: Nearest) -> str:
    """How the number asked for and the code shown belong together."""
    number = number_text(nearest.number, 9)
    if reading.code != nearest.code and reading.value != nearest.value:
        return f"These bits are not the nearest to {number}; type a number to move them there."
    if nearest.is_beyond:
        fmt = nearest.fmt
        limits = f"{number_text(fmt.min)} to {number_text(fmt.max)}"
        return f"{number} lies outside {limits} and becomes {number_text(nearest.value)}."
    if nearest.fmt.name == "float64":
        return "What you type is read as float64, so it is one of its values."
    if nearest.relative_error == 0:
        return f"{number} is one of its values: no error."
    lost = " All of it is lost." if nearest.value == 0 else ""
    subnormal = reading.kind == "subnormal" and isinstance(nearest.fmt, FloatFormat)
    why = " It is subnormal: fewer significant bits than elsewhere." if subnormal else ""
    return f"{number} is held as {reading.text(nearest.value)}, {note_on(nearest)} off.{lost}{why}"


def compared(rows: list[Nearest]) -> str:
    """Which formats hold the number exactly, and the narrowest of them."""
    number = number_text(rows[0].number, 9)
    exact = [n.fmt for n in rows if n.relative_error == 0]
    if not exact:
        best = min(rows, key=lambda n: n.relative_error)
        return f"None of the {len(rows)} formats compared holds {number} exactly; {best.fmt.name} is nearest."
    if len(exact) == 1:
        return f"Of the {len(rows)} formats compared only {exact[0].name} holds {number} exactly."
    narrowest = min(exact, key=lambda fmt: fmt.bits)
    return f"{len(exact)} of the {len(rows)} formats compared hold {number} exactly, the narrowest {narrowest.name}."
