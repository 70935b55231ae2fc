"""The levels of a card against published bandwidths, and against the order they must stand in."""

import pytest

from memkit.hardware.cards import CARDS
from memkit.hardware.hierarchy import LATENCY_CYCLES, memory_hierarchy
from memkit.units import MIB


def level(card_name: str, name: str):
    return next(level for level in memory_hierarchy(CARDS[card_name]) if level.name == name)


@pytest.mark.parametrize("card", CARDS.values(), ids=lambda card: card.name)
def test_each_level_on_the_card_is_slower_than_the_one_above(card):
    rates = [level.bandwidth for level in memory_hierarchy(card)[:4] if level.bandwidth is not None]
    assert rates == sorted(rates, reverse=True)
    assert len(rates) >= 3


@pytest.mark.parametrize("card", CARDS.values(), ids=lambda card: card.name)
def test_the_host_is_farther_than_the_cards_own_memory(card):
    levels = memory_hierarchy(card)
    memory, host = levels[3], levels[-1]
    assert host.name.startswith("PCIe")
    assert 9 < memory.bandwidth / host.bandwidth < 130


def test_registers_of_an_a100_hold_27_mb():
    # NVIDIA A100 whitepaper, table 4: "Register File Size: 27648 KB", "Shared Memory Size / SM" up to 164 KB
    assert level("A100 SXM 40 GB", "registers").num_bytes == 27_648 * 1024


def test_l2_of_v100_and_a100():
    # A100 whitepaper: 5120 bytes per clock against 2048 on V100, "2.3x the L2 cache read bandwidth"
    v100, a100 = level("V100 32 GB", "L2"), level("A100 SXM 40 GB", "L2")
    assert round(a100.bandwidth / v100.bandwidth, 1) == 2.3
    assert a100.num_bytes == 40 * MIB


@pytest.mark.parametrize("card, link", [("RTX 4090", None), ("H100 SXM", "NVLink"), ("MI300X", "Infinity Fabric")])
def test_link_only_where_there_is_one(card, link):
    names = {level.name for level in memory_hierarchy(CARDS[card])}
    assert names & {"NVLink", "Infinity Fabric"} == ({link} if link else set())


@pytest.mark.parametrize("name, cycles", LATENCY_CYCLES.items())
def test_latencies_grow_with_distance_and_none_is_zero(name, cycles):
    assert 0 < cycles[0] < cycles[1] < cycles[2]
    shown = [entry.latency_cycles for entry in memory_hierarchy(CARDS[name])[1:4]]
    assert tuple(shown) == cycles
