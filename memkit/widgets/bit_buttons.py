"""The bits of a code as buttons."""

import math

import ipywidgets as widgets
import traitlets

from memkit.formats.reading import CodeReading
from memkit.formats.rounding import encode
from memkit.pictures.bits import pale_colour

DIGIT = "#1a1a1a"
"""A digit's ink on a pale field, in a light theme and in a dark one: 9 : 1 at least."""


class BitButtons(widgets.HBox):
    """A code: a coloured button for each bit, and one for the next value on each side. ``value`` is the code."""

    value = traitlets.Any()

    def __init__(self, value: int):
        super().__init__(layout=widgets.Layout(flex_flow="row wrap", align_items="center", width="100%"))
        self.buttons, self.reading, self.shown_as = [], None, None
        sides = (("◂", "next value below"), ("▸", "next value above"))
        self.sides = [widgets.Button(description=sign, tooltip=tip, layout=_cell(34)) for sign, tip in sides]
        for button in self.sides:
            button.on_click(self.press)
        self.value = value
        self.code = widgets.Label(layout=widgets.Layout(margin="0 4px"))

    def show(self, reading: CodeReading) -> None:
        """One button per bit, from the left, with its field's name and number before each field."""
        self.reading = reading
        fields, num_bits = reading.fields, len(reading.bits)
        while len(self.buttons) < num_bits:
            self.buttons.append(widgets.Button())
            self.buttons[-1].on_click(self.press)
        if self.shown_as != (shape := tuple((name, len(digits)) for name, digits in fields)):
            self._arrange(shape)
            self.shown_as = shape
        for button, digit in zip(self.buttons, reading.bits, strict=False):
            button.description = digit
        for label, (name, digits) in zip(self.labels, fields, strict=True):
            label.value = f"{name} {int(digits, 2)}"
        self.code.value = f"0x{reading.code:0{-(-num_bits // 4)}X}"
        for button, side in zip(self.sides, (reading.below, reading.above), strict=True):
            button.disabled = side is None

    def _arrange(self, shape: tuple[tuple[str, int], ...]) -> None:
        """Fields from the left: the names, sizes and colours of labels and buttons."""
        num_bits = sum(width for _, width in shape)
        cell = _cell(34 if num_bits <= 8 else 20 if num_bits <= 16 else 17)
        self.labels = [widgets.Label(layout=widgets.Layout(margin="0 3px 0 8px")) for _ in shape]
        children, bits = [self.sides[0]], iter(self.buttons)
        for label, (name, width) in zip(self.labels, shape, strict=True):
            children.append(label)
            for place in reversed(range(width)):
                button = next(bits)
                button.layout, button.tooltip = cell, f"{name} bit {place}"
                button.style = widgets.ButtonStyle(
                    button_color=pale_colour(name), text_color=DIGIT, font_weight="bold"
                )
                children.append(button)
        self.children = [*children, self.code, self.sides[1]]

    def flipped(self, index: int) -> int:
        """The code with a bit flipped, counted from the left."""
        return self.reading.code ^ (1 << (len(self.reading.bits) - 1 - index))

    def stepped(self, way: int) -> int:
        """The code of the next value below (-1) or above (+1); at the end the same."""
        side = self.reading.above if way > 0 else self.reading.below
        if side is None:
            return self.value
        overflow = "inf" if math.isinf(side) else "saturate"
        return int(encode(side, self.reading.fmt, overflow=overflow))

    def press(self, button) -> None:
        """Do what a button says."""
        is_side = button in self.sides
        step = (
            self.stepped(2 * self.sides.index(button) - 1)
            if is_side
            else self.flipped(self.buttons.index(button))
        )
        self.value = step


def _cell(width: int) -> widgets.Layout:
    return widgets.Layout(width=f"{width}px", height="30px", margin="1px", padding="0")
