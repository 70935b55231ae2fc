"""Copies with a played clock; on a real card, the limits that no copy can beat."""

import itertools

import pytest
import torch

from book import bandwidth
from book.bandwidth import (
    Bandwidths,
    Copy,
    copy_size,
    measure_bandwidth,
    time_cpu_copy,
    time_cuda_copies,
)
from book.driver import card_by_driver_name
from memkit.cards import CARDS
from memkit.units import GIB, MIB


@pytest.fixture
def clock(monkeypatch):
    """A clock on which every look is one millisecond later."""
    looks = itertools.count(0, 1_000_000)
    monkeypatch.setattr(bandwidth.time, "perf_counter_ns", lambda: next(looks))


@pytest.fixture
def no_card(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_a_copy_in_ram_counts_reading_and_writing(clock):
    copy = time_cpu_copy(4_000_000, repeats=3)
    assert copy.seconds == 0.001
    assert copy.bytes_per_s == 2 * 4_000_000 * 1000


def test_a_copy_over_a_link_counts_once():
    copy = Copy(name="pinned RAM to card", num_bytes=63_000, seconds=1e-6, crossings=1)
    assert copy.bytes_per_s == 63_000_000_000


def test_without_a_card_only_the_ram_is_measured_and_that_is_said(clock, no_card):
    measured = measure_bandwidth(MIB, repeats=1)
    assert measured.device is None
    assert [copy.name for copy in measured.copies] == ["RAM to RAM"]
    assert "there is no CUDA card here" in str(measured)
    assert "2.1 GB/s" in str(measured)


def test_the_data_sheet_stands_beside():
    peak = CARDS["H200"].memory_bandwidth
    copy = Copy(
        name="card to card",
        num_bytes=GIB,
        seconds=2 * GIB / (peak / 2),
        crossings=2,
        peak_bytes_per_s=peak,
    )
    table = str(Bandwidths(copies=(copy,), device="NVIDIA H200"))
    assert "4,814.3 GB/s" in table and "50%" in table and table.endswith("on NVIDIA H200")


@pytest.mark.parametrize(
    "ram, usable, size",
    [
        (64 * GIB, 80 * GIB, 512 * MIB),
        (GIB, 80 * GIB, 128 * MIB),
        (64 * GIB, GIB, 128 * MIB),
        (None, 0, MIB),
        (GIB, None, 128 * MIB),  # no card
    ],
)
def test_a_copy_is_sized_to_what_is_free(monkeypatch, ram, usable, size):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: usable is not None)
    monkeypatch.setattr(bandwidth, "available_ram_bytes", lambda: ram)
    monkeypatch.setattr(bandwidth, "usable_bytes", lambda: usable)
    assert copy_size() == size


@pytest.mark.gpu
def test_no_copy_beats_the_data_sheet():
    card = card_by_driver_name(torch.cuda.get_device_name())
    if card is None:
        pytest.skip("this card is not in the table")
    for copy in time_cuda_copies(512 * MIB, 5, card):
        assert 0 < copy.bytes_per_s <= copy.peak_bytes_per_s, copy.name


@pytest.mark.gpu
def test_five_kinds_of_copy_are_timed_and_nothing_stays():
    held = torch.cuda.memory_allocated()
    measured = measure_bandwidth(8 * MIB, 2)
    assert len(measured.copies) == 6
    assert {copy.name: copy.crossings for copy in measured.copies}["pageable RAM to card"] == 1
    assert torch.cuda.memory_allocated() == held
