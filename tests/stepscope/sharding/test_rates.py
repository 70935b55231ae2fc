"""What ranks of one machine send each other a second, against published runs of NCCL."""

import pytest

from memkit.cards import CARDS
from stepscope.sharding import bytes_per_s_among


@pytest.mark.parametrize("card", CARDS.values(), ids=lambda card: card.name)
def test_two_cards_send_over_a_bridge_and_eight_over_a_board(card):
    is_on_board = card.num_linked_cards == 8
    for num_cards, rate in (
        (2, card.link_bytes_per_s),
        (8, card.link_bytes_per_s if is_on_board else None),
    ):
        reached = 0.8 * rate if rate else 0.5 * card.pcie_bytes_per_s
        assert bytes_per_s_among(card, num_cards) == pytest.approx(reached)


@pytest.mark.parametrize(
    ("name", "num_cards", "gb_per_s"),
    [
        ("H100 SXM", 8, 370),  # NVIDIA's engineer, nccl-tests#212
        ("A100 SXM 80 GB", 8, 232.54),  # nccl-tests#175, an all-reduce
        ("A100 PCIe 80 GB", 2, 208),  # nccl-tests#178: two that a bridge joins
        ("A100 PCIe 80 GB", 3, 20),  # and three of the same machine
        ("RTX 5090", 8, 28),  # nccl#1639
        ("RTX 5090", 4, 35),
    ],
)
def test_cards_send_about_as_fast_as_was_measured(name, num_cards, gb_per_s):
    assert bytes_per_s_among(CARDS[name], num_cards) / 1e9 == pytest.approx(gb_per_s, rel=0.22)
