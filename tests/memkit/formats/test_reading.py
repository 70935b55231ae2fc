"""``memkit.formats.single``: what is spelled is evaluated again, for every code, and must give the value."""

import math

import pytest

from memkit.formats.records import FORMATS, FloatFormat
from memkit.formats.rounding import all_values, decode
from memkit.formats.single import read_code

SHORT = [name for name, fmt in FORMATS.items() if fmt.bits <= 8]


@pytest.mark.parametrize("name", [*SHORT, "float16", "bfloat16"])
def test_what_is_spelled_is_the_value(name: str) -> None:
    fmt = FORMATS[name]
    for code in range(0, 2**fmt.bits, 1 if fmt.bits <= 8 else 101):
        reading = read_code(code, name)
        if reading.kind in ("normal", "subnormal", "zero"):
            formula = reading.spelled.replace("−", "-").replace("×", "*").replace("^", "**")
            assert eval(formula) == reading.value == decode(code, name)
        assert "".join(bits for _, bits in reading.fields) == reading.bits
        assert int(reading.bits, 2) == code and len(reading.bits) == fmt.bits


@pytest.mark.parametrize("name", SHORT)
def test_below_and_above_are_the_next_values(name: str) -> None:
    values = all_values(name).tolist()
    for code in range(2 ** FORMATS[name].bits):
        reading = read_code(code, name)
        if not math.isfinite(reading.value):
            continue
        place = values.index(reading.value)
        beyond = math.inf if FORMATS[name].has_infinity else None
        assert reading.above == (values[place + 1] if place + 1 < len(values) else beyond)
        assert reading.below == (
            values[place - 1] if place else None if beyond is None else -beyond
        )


def test_kinds_of_codes_are_counted_by_the_format() -> None:
    for name in SHORT:
        fmt = FORMATS[name]
        kinds = [read_code(code, name).kind for code in range(2**fmt.bits)]
        if not isinstance(fmt, FloatFormat):
            assert set(kinds) == {"table entry"}
            continue
        assert kinds.count("NaN") == fmt.num_nans
        assert kinds.count("infinity") == 2 * fmt.has_infinity
        assert kinds.count("zero") == fmt.has_subnormals * (2 - (fmt.specials == "fnuz"))
        per_sign = (2**fmt.mantissa_bits - 1) * fmt.has_subnormals
        assert kinds.count("subnormal") == per_sign << fmt.sign_bits


def test_the_codes_that_are_no_numbers() -> None:
    infinity, minus = read_code(0x7C, "float8_e5m2"), read_code(0xFC, "float8_e5m2")
    assert (infinity.kind, infinity.below, infinity.above) == ("infinity", 57344, None)
    assert (minus.kind, minus.below, minus.above) == ("infinity", None, -57344)
    nan = read_code(0x7F, "float8_e4m3fn")
    assert (nan.kind, nan.below, nan.above, nan.spelled) == (
        "NaN",
        None,
        None,
        "a code set apart for NaN",
    )
    assert read_code(3, "nf4").spelled == "entry 3 of a table of 16"
