"""The small GPT: its text against the file, its loss against the entropies of the text."""

import math
from collections import Counter

import pytest
import torch

from book.small_gpt import (
    TEXT_FILE,
    held_out_loss,
    make_small_gpt,
    text_batches,
    text_tokens,
    train,
)


def losses_of(num_steps, seed=0, **how):
    model = make_small_gpt(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return train(model, optimizer, text_batches(num_steps, seed=seed), **how), model


def test_tokens_spell_the_file():
    text = TEXT_FILE.read_text(encoding="ascii")
    assert bytes(text_tokens().tolist()).decode() == text
    assert text.startswith("PARADISE LOST") and 400_000 < len(text) < 500_000
    assert "public domain" in TEXT_FILE.with_suffix(".source.txt").read_text(encoding="utf-8")


def test_a_target_is_the_character_after_its_input():
    text = TEXT_FILE.read_text(encoding="ascii")
    for part, is_inside in (("train", True), ("held out", False)):
        for inputs, targets in text_batches(3, batch_size=2, seq_len=40, part=part):
            assert inputs.shape == targets.shape == (2, 40)
            assert torch.equal(inputs[:, 1:], targets[:, :-1])
            line = bytes(inputs[0].tolist() + targets[0, -1:].tolist()).decode()
            assert line in text
            assert (line in text[: len(text) * 9 // 10]) == is_inside


def test_the_same_seed_gives_the_same_losses():
    torch.manual_seed(5)
    first, _ = losses_of(5)
    torch.manual_seed(6)
    second, _ = losses_of(5)
    other, _ = losses_of(5, seed=1)
    assert first == second != other


def test_it_starts_at_chance_and_learns_more_than_how_often_a_letter_comes():
    text = TEXT_FILE.read_text(encoding="ascii")
    unigram = -sum(n / len(text) * math.log(n / len(text)) for n in Counter(text).values())
    losses, model = losses_of(150)
    assert losses[0] == pytest.approx(math.log(128), abs=0.15)
    assert held_out_loss(model) < unigram - 0.3


def test_autocast_runs_the_products_in_the_asked_dtype():
    half, _ = losses_of(4, autocast_dtype=torch.bfloat16)
    plain, _ = losses_of(4)
    assert half != plain and half == pytest.approx(plain, rel=1e-2)
