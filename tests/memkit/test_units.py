"""Bytes print in binary units and roll over at the rounding edge; only whole numbers of bytes come in."""

import math
from fractions import Fraction

import numpy as np
import pytest
from bs4 import BeautifulSoup
from hypothesis import given
from hypothesis import strategies as st

from memkit.formula.activations import block_ledger
from memkit.formula.estimate import estimate_memory
from memkit.models import TINY_GPT2
from memkit.setup import TrainingSetup
from memkit.units import (
    GIB,
    KIB,
    MIB,
    PAGE_COLUMNS,
    TIB,
    aligned_table,
    as_one_of,
    as_whole_number,
    bytes_of,
    format_bytes,
    format_count,
    format_gb,
    on_page,
    round_up,
    shown,
)

SETUP = TrainingSetup(model=TINY_GPT2, seq_len=64)
SIZES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


@pytest.mark.parametrize(
    "num_bytes, text",
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (KIB, "1.00 KiB"),
        (MIB - 1, "1.00 MiB"),
        (MIB, "1.00 MiB"),
        (GIB - 1, "1.00 GiB"),
        (GIB - 6 * MIB, "1,018.00 MiB"),
        (TIB - 1, "1.00 TiB"),
        (1024 * TIB, "1,024.00 TiB"),
        (80 * 10**9, "74.51 GiB"),
        (-3 * GIB, "-3.00 GiB"),
        (-(GIB - 1), "-1.00 GiB"),
        (-5, "-5 B"),
        (None, "unknown"),
    ],
)
def test_bytes_print_in_the_largest_unit_that_leaves_at_least_one(num_bytes, text):
    assert format_bytes(num_bytes) == text


@given(st.integers(min_value=0, max_value=2**52))
def test_the_printed_size_is_the_size_to_half_a_digit(num_bytes):
    number, unit = format_bytes(num_bytes, digits=3).split()
    printed = Fraction(number.replace(",", "")) * SIZES[unit]
    assert abs(printed - num_bytes) <= Fraction(SIZES[unit], 2000)
    assert unit == "TiB" or Fraction(number.replace(",", "")) < 1024


def test_digits_are_as_asked():
    assert format_bytes(1536 * MIB, digits=0) == "2 GiB"
    assert format_bytes(1536 * MIB, digits=1) == "1.5 GiB"
    assert format_gb(85_017_624_576) == "85.0 GB"


@pytest.mark.parametrize(
    "count, text",
    [
        (0, "0"),
        (999, "999"),
        (1000, "1.0 K"),
        (999_949, "999.9 K"),
        (999_950, "1.0 M"),
        (124_439_808, "124.4 M"),
        (999_950_000, "1.0 B"),
        (405_853_388_800, "405.9 B"),
        (10**16, "10,000.0 T"),
    ],
)
def test_counts_are_decimal(count, text):
    assert format_count(count) == text


@given(st.integers(0, 2**50), st.integers(1, 2**24))
def test_rounding_up_is_the_smallest_multiple_that_holds(num_bytes, multiple):
    rounded = round_up(num_bytes, multiple)
    assert rounded % multiple == 0 and num_bytes <= rounded < num_bytes + multiple


@given(st.integers(0, 2**40), st.integers(1, 64))
def test_bits_round_up_to_whole_bytes_once(num_values, bits):
    assert bytes_of(num_values, bits) == math.ceil(Fraction(num_values * bits, 8))


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_whole_numbers_of_any_library_are_taken(value):
    number = as_whole_number("size", value)
    assert number == 3 and type(number) is int


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (" SGD ", ": did you mean sgd?"),
        ("adamv", ": did you mean adamw?"),
        ("float", ""),
        ("", ""),
        (12, ""),
        (None, ""),
    ],
)
def test_a_hint_is_short_and_for_texts_alone(value, hint):
    allowed = ("sgd", "adamw", "none", 128, *(f"float{bits}" for bits in (4, 6, 8, 16, 32)))
    with pytest.raises(ValueError) as refused:
        as_one_of("name", value, allowed)
    assert (
        str(refused.value) == f"name={value!r} is not one of {', '.join(map(str, allowed))}{hint}"
    )


def test_four_names_are_offered_and_no_fifth():
    for num_names, offers in ((4, True), (5, False)):
        with pytest.raises(ValueError) as refused:
            as_one_of("card", "a", [f"A{number}" for number in range(num_names)])
        assert ("did you mean A0 or A1 or A2 or A3?" in str(refused.value)) == offers


def test_a_long_value_is_cut_to_sixty_letters():
    assert len(shown("x" * 58)) == len(shown("x" * 59)) == 60 and shown("x" * 59).endswith("...")


def test_a_table_is_text_in_print_and_html_in_a_notebook():
    from IPython.core.formatters import DisplayFormatter

    table = aligned_table([["part", "bytes"], ["a<b", "1"]])
    shown, _ = DisplayFormatter().format(table)
    assert shown["text/plain"] == str(table) == "part  bytes\n───────────\na<b       1"
    assert (
        "<td>1</td>" in shown["text/html"]
        and "a&lt;b" in shown["text/html"]
        and "overflow-x" in shown["text/html"]
    )


def words_of(page: str) -> list[str]:
    return BeautifulSoup(page, "html.parser").get_text(" ").split()


def test_a_wide_table_keeps_its_rows():
    table = str(aligned_table([["instant", *["bytes"] * 9], ["forward", *["1.00 GiB"] * 9]]))
    assert len(table.splitlines()[0]) > 95 and str(on_page(table)) == table


def test_a_page_breaks_a_long_sentence_in_text_and_leaves_it_whole_in_html():
    sentence = " ".join(f"word{number}" for number in range(60))
    page = on_page(
        sentence, aligned_table([["part", "bytes"], ["a<b", "1"]]), "", "a line\nanother"
    )
    assert max(map(len, page.splitlines())) <= PAGE_COLUMNS
    assert page.split() == [
        *sentence.split(),
        "part",
        "bytes",
        "─" * 11,
        "a<b",
        "1",
        "a",
        "line",
        "another",
    ]
    assert words_of(page.html) == [
        *sentence.split(),
        "part",
        "bytes",
        "a<b",
        "1",
        "a",
        "line",
        "another",
    ]
    assert sentence in page.html and page.html.count("overflow-x") == 1  # the table scrolls alone


@pytest.mark.parametrize("record", [block_ledger(SETUP), estimate_memory(SETUP)])
def test_a_record_shows_in_a_notebook_what_it_prints(record):
    from IPython.core.formatters import DisplayFormatter

    shown, _ = DisplayFormatter().format(record)
    assert shown["text/plain"] == str(record)
    printed = [word for word in str(record).split() if not word.startswith("──")]
    assert words_of(shown["text/html"]) == printed
