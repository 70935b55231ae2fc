"""The bit explorer: flip the bits of a code, or type a number, and see what a format makes of it."""

import math

from memkit.formats.records import FORMATS, get_format
from memkit.formats.single import (
    CodeReading,
    Nearest,
    check_code,
    encode_one,
    nearest_in,
    number_text,
    parse_number,
    read_code,
)
from memkit.pictures.bits import COMPARED, explorer_figure, note_on
from memkit.units import as_whole_number
from memkit.widgets.explorer import Bits, Choice, Entry, Explorer, Switch, View, rows_of


class BitExplorer(Explorer, verdict=(130,)):
    """Format, number and bits → what the bits say, the neighbours, and the number in eleven formats.

    Bits and number follow each other: a new code sets the number to its value, a new number or format sets
    the code to the nearest one. A code of infinity or NaN leaves the number as it was. As a number one may type
    0.1, 1/3 or 2**-9. The bits of the picture, and the next values on both sides, can be pressed.
    """

    def pick(self, mark: str) -> None:
        """Flip the bit that was pressed, or go to the next value ``below`` or ``above``."""
        reading = self.shown.kept
        if mark in ("below", "above"):
            value = getattr(reading, mark)
            overflow = "inf" if math.isinf(value) else "saturate"
            self.set(code=encode_one(value, reading.fmt, overflow=overflow))
        else:
            self.set(code=reading.code ^ 1 << reading.fmt.bits - 1 - int(mark))

    def followed(self, changes: dict) -> dict:
        """``changes`` with what follows from them: a code for a new number, a number for a new code."""
        if not changes:
            return changes
        state = {**self.state, **changes}
        fmt = get_format(state["format"])
        if "code" in changes:
            check_code(as_whole_number("code", changes["code"]), fmt)
            value, number = read_code(changes["code"], fmt).value, self.state["number"]
            if math.isfinite(value):
                number = repr(value).removesuffix(".0")
            return {"number": number, **changes}
        nearest = nearest_in(parse_number(state["number"]), fmt, saturates=state["saturates"])
        return {**changes, "number": str(state["number"]), "code": nearest.code}

    def view(
        self,
        format=Choice("Format", FORMATS, "float8_e4m3fn"),
        number=Entry("Number", "1.5"),
        saturates=Switch("too large: saturate, not infinity or NaN", True),
        code=Bits("Bits", nearest_in(1.5, "float8_e4m3fn", saturates=True).code),
    ) -> View:
        """The bits and their neighbours; below them the number in every format of the book's comparison.

        The next values and the other formats stand in the picture, its words and the table, not in the status line.
        """
        reading = read_code(code, format)
        asked = parse_number(number)
        nearest = nearest_in(asked, format, saturates=saturates)
        rows = [nearest_in(asked, name, saturates=saturates) for name in COMPARED]
        columns = {
            "format": COMPARED,
            f"holds {number_text(asked, 9)} as": [number_text(n.value, 9) for n in rows],
            "off by": [note_on(n) for n in rows],
            "bits": [f"{n.code:0{n.fmt.bits}b}" for n in rows],
        }
        words = says(reading), held(reading, nearest)
        chart = explorer_figure(reading, rows)
        return View(chart=chart, words=words, table=rows_of(columns), kept=reading)


def says(reading: CodeReading) -> str:
    """What the code says, in two lines at most: 64 bits are in the picture alone."""
    code = f"{reading.fmt.name}: {reading.spelled}"
    if reading.fmt.bits < 64:
        bits = " ".join(digits for _, digits in reading.fields)
        code = f"{reading.fmt.name}, bits {bits}: {reading.spelled}"
    if reading.kind in ("infinity", "NaN"):
        return f"{code}."
    kinds = {"zero": "zero", "table entry": "an entry of its table"}
    return f"{code} {reading.equals}, {kinds.get(reading.kind, f'a {reading.kind} number')}."


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
        exact = f"{number} is one of its values: no error."
        return exact if nearest.is_exact else "It has no −0: the sign is lost."
    if nearest.value == 0:
        return f"{number} is too small and becomes 0: all of it is lost."
    why = ""
    if reading.kind == "subnormal":
        why = " It is subnormal: fewer significant bits than elsewhere."
    return f"{number} is held as {reading.equals.removeprefix('= ')}, {note_on(nearest)} off.{why}"
