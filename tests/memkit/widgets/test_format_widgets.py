"""The bit explorer of chapter 02 without a browser. Values come from ml_dtypes and torch."""

import math
from decimal import Decimal

import ml_dtypes
import numpy as np
import pytest
import torch

from memkit.formats.records import FORMATS
from memkit.formats.single import parse_number
from memkit.widgets.bit_explorer import BitExplorer


def value_in_ml_dtypes(code: int, name: str) -> float:
    storage = np.uint8 if FORMATS[name].bits <= 8 else np.uint16
    return float(np.array(code, storage).view(getattr(ml_dtypes, name, np.float16)))


@pytest.mark.parametrize(
    "name", ["float8_e4m3fn", "float8_e5m2", "bfloat16", "float16", "float8_e4m3fnuz"]
)
def test_flipping_each_bit_gives_the_value_of_ml_dtypes(name):
    panel = BitExplorer(format=name, code=0x35)
    for index in range(FORMATS[name].bits):
        before = panel.state["code"]
        panel.pick(str(index))
        code = before ^ 1 << (FORMATS[name].bits - 1 - index)
        assert panel.state["code"] == code and panel.error == ""
        value = value_in_ml_dtypes(code, name)
        if math.isfinite(value):
            assert float(panel.state["number"]) == value
            assert " = " in panel.summary or " ≈ " in panel.summary
        else:
            assert "set apart for" in panel.summary


@pytest.mark.parametrize("number", ["0.1", "1/3", "2^-24", "-3.3", "448", "1e6", "-0.0"])
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e5m2", "float8_e4m3fn"])
def test_a_number_sets_the_bits_that_torch_gives_it(name, number):
    panel = BitExplorer(format=name, number=number, saturates=False)
    tensor = torch.tensor(parse_number(number), dtype=torch.float64).to(getattr(torch, name))
    code = (
        int(tensor.view(torch.int16 if tensor.itemsize == 2 else torch.int8).item())
        % 2 ** FORMATS[name].bits
    )
    # torch 2.13 saturates, and so NaN is ml_dtypes' answer
    if name == "float8_e4m3fn" and number == "1e6":
        code = int(np.float32(1e6).astype(ml_dtypes.float8_e4m3fn).view(np.uint8))
    assert panel.error == "" and panel.state["code"] == code


def test_a_number_is_typed_and_mistyped():
    panel = BitExplorer()
    text = panel.panel.controls["number"]
    text.value = "two"
    assert "number='two' is not a finite number" in panel.error and text.value == "1.5", (
        "what was refused leaves"
    )
    panel.pick("0")
    assert panel.state["number"] == "-1.5" and panel.error == ""
    text.value = "2**-9"
    assert panel.state["code"] == 1 and "= 0.001953125, a subnormal number" in panel.summary
    panel.set(code=256)
    assert "code=256 is not a code of float8_e4m3fn; allowed 0..255" in panel.error


@pytest.mark.parametrize(
    "name, first", [("float8_e5m2", 0x72), ("float4_e2m1fn", 0xF), ("float6_e2m3fn", 0x3F)]
)
def test_the_arrows_walk_through_every_value_of_ml_dtypes(name, first):
    panel = BitExplorer(format=name, code=first)
    values = (
        np.arange(2 ** FORMATS[name].bits, dtype=np.uint8)
        .view(getattr(ml_dtypes, name))
        .astype(float)
    )
    wanted = np.unique(values[values >= values[first]]) + 0.0
    walked = [values[panel.state["code"]]]
    while 'data-pick="above"' in panel.shown.chart.svg():
        panel.pick("above")
        walked.append(values[panel.state["code"]])
    assert walked == wanted.tolist()
    panel.pick("below")
    assert values[panel.state["code"]] == wanted[-2]


def test_the_decimals_are_those_of_the_value():
    for number, words in (("0.1", "= 0.1015625,"), ("2^-9", "= 0.001953125,"), ("-3", "= −3,")):
        assert words in BitExplorer(number=number).summary
    assert Decimal("0.1015625") == Decimal(value_in_ml_dtypes(0x1D, "float8_e4m3fn"))
    assert "≈ 0.100000001" in BitExplorer(format="float32", number="0.1").summary  # 27 decimals


def test_what_has_no_minus_zero_does_not_hold_it():
    rows = {row[0]: row[2] for row in BitExplorer(number="-0.0").shown.table[1:]}
    signed = {
        name: math.copysign(
            1,
            value_in_ml_dtypes(
                int(
                    getattr(ml_dtypes, name, np.float16)(-0.0).view(
                        np.uint16 if FORMATS[name].bits == 16 else np.uint8
                    )
                ),
                name,
            ),
        )
        < 0
        for name in ("float16", "bfloat16", "float8_e5m2", "float8_e4m3fn")
    }
    assert all(signed.values()) and {rows[name] for name in signed} == {"exact"}
    assert rows["int8"] == rows["int4"] == "sign lost"


def test_nan_and_infinity_leave_the_number():
    panel = BitExplorer(number="3")
    panel.set(code=0x7F)
    assert "set apart for NaN" in panel.summary and panel.state["number"] == "3"
    panel.set(format="float16", saturates=False, number="1e6")
    assert "set apart for infinity" in panel.summary and "becomes ∞" in panel.panel.status.value


def test_the_table_has_the_errors_of_torch():
    rows = {row[0]: row for row in BitExplorer(number="0.1").shown.table}
    held = torch.tensor(0.1, dtype=torch.float64).bfloat16().double().item()
    assert float(rows["bfloat16"][1]) == pytest.approx(held, rel=1e-8)
    assert rows["bfloat16"][2] == f"{100 * abs(held - 0.1) / 0.1:.2g} %"
    assert (
        rows["float8_e4m3fn"][3]
        == f"{int(torch.tensor(0.1).to(torch.float8_e4m3fn).view(torch.uint8)):08b}"
    )


@pytest.mark.parametrize(
    "text", ["", "one", "1/0", "inf", "nan", "(-8)^(1/2)", "-8^0.5", True, None, [1], "1e999"]
)
def test_text_that_is_no_number_is_refused(text):
    with pytest.raises(ValueError, match="is not a finite number such as"):
        parse_number(text)
