"""``memkit.formats.single`` against ml_dtypes and numpy; every code is held by test_decoding."""

import math
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from narrow_formats import NARROW, ml_dtypes_overflow

from memkit.formats.records import FORMATS
from memkit.formats.rounding import all_values, encode
from memkit.formats.single import code_fields, decode_one, encode_one, read_code

SHORT = [name for name, fmt in FORMATS.items() if fmt.bits <= 16]
NUMPY = {"float16": np.float16} | {
    name: getattr(ml_dtypes, name) for name in NARROW if name != "float16"
}


@pytest.mark.parametrize("name", SHORT)
def test_every_value_tie_and_neighbour_of_a_tie_rounds_as_in_an_array(name: str) -> None:
    values = all_values(name)[:: 1 if FORMATS[name].bits <= 8 else 97]
    ties = (values[:-1] + values[1:]) / 2
    x = np.concatenate(
        [
            values,
            ties,
            np.nextafter(ties, np.inf),
            np.nextafter(ties, -np.inf),
            [-0.0, np.inf, -np.inf],
        ]
    )
    overflow = ml_dtypes_overflow(name)
    one_by_one = [encode_one(value, name, overflow=overflow) for value in x.tolist()]
    assert one_by_one == encode(x, name, overflow=overflow).tolist()


@given(st.floats(), st.sampled_from([*NARROW, "float32", "float64"]))
def test_any_number_becomes_the_code_that_ml_dtypes_gives_it(x: float, name: str) -> None:
    dtype = NUMPY.get(name) or np.dtype(name)
    with np.errstate(all="ignore"):
        x = float(np.float32(x)) if name in NARROW else x  # ml_dtypes converts by way of float32
        theirs = int(
            np.array(x, "f4" if name in NARROW else "f8")
            .astype(dtype)
            .view(f"u{np.dtype(dtype).itemsize}")
        )
    if math.isnan(x) and not FORMATS[name].num_nans:
        with pytest.raises(ValueError, match="has no code for it"):
            encode_one(x, name, overflow="saturate")
    elif math.isnan(x) and name in ("float16", "float32", "float64"):  # numpy keeps the payload
        assert math.isnan(decode_one(encode_one(x, name, overflow="inf"), name))
    else:
        assert encode_one(x, name, overflow=ml_dtypes_overflow(name)) == theirs


def test_fields_put_together_give_the_code_and_the_value() -> None:
    for name in ("bfloat16", "float8_e4m3fn", "float4_e2m1fn", "float8_e8m0fnu"):
        fmt = FORMATS[name]
        m, e = fmt.mantissa_bits, fmt.exponent_bits
        for code in range(0, 2**fmt.bits, 1 if fmt.bits <= 8 else 61):
            sign, exponent, mantissa = code_fields(code, name)
            assert (sign << m + e) + (exponent << m) + mantissa == code
            if exponent and math.isfinite(decode_one(code, name)):
                assert decode_one(code, name) == (-1) ** sign * 2.0 ** (exponent - fmt.bias) * (
                    1 + mantissa / 2**m
                )


def test_what_one_value_needs_runs_without_numpy() -> None:
    code = "import sys; sys.modules['numpy'] = None\nfrom memkit.formats import single\n"
    code += "print(single.nearest_in(0.1, 'float8_e4m3fn', saturates=True).value, single.read_code(60, 'int8').above)"
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert out.split() == ["0.1015625", "61.0"]


def test_a_value_is_shown_with_the_digits_that_tell_it_from_its_neighbours_and_six_at_least() -> (
    None
):
    """C's FLT_DECIMAL_DIG is 9 for a float32; a format of eight bits would do with fewer than six."""
    assert [read_code(1, name).text(1 / 3) for name in ("float8_e5m2", "float32")] == [
        f"{1 / 3:.6g}",
        f"{1 / 3:.9g}",
    ]


def test_questions_without_an_answer_are_refused() -> None:
    with pytest.raises(ValueError, match="int8 has no sign, exponent and mantissa fields"):
        code_fields(0, "int8")
    with pytest.raises(ValueError, match="overflow='inf': int8 has no code for infinity"):
        encode_one(1.0, "int8", overflow="inf")
    with pytest.raises(ValueError, match="all_values lists formats of up to 19 bits"):
        all_values("float32")
