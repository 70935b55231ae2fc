"""Tokens of ``generate`` that are skipped, against the same program followed token by token, and by arithmetic."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from memkit.units import format_bytes
from stepscope import trace_script
from stepscope.tracing import generation
from stepscope.tracing.log import ABOUT_NUMBER

ROWS, PROMPT, LAYERS, HIDDEN, WORDS = 4, 5, 1, 64, 512
A_TOKEN = 2 * LAYERS * ROWS * HIDDEN * 4 + 8 * ROWS * 3
"""Its keys and values in every layer, its mask, and its word in the tokens before and after it is put there."""


def generates(num_tokens, learns_of_all=False, **choices):
    def build():
        config = LlamaConfig(
            vocab_size=WORDS,
            hidden_size=HIDDEN,
            intermediate_size=128,
            num_hidden_layers=LAYERS,
            num_attention_heads=4,
            eos_token_id=2,
            pad_token_id=3,
        )
        model = LlamaForCausalLM(config).to("cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        prompt = torch.full((ROWS, PROMPT), 7, device="cuda")

        def step():
            with torch.no_grad():
                made = model.generate(
                    prompt,
                    attention_mask=torch.ones_like(prompt),
                    max_new_tokens=num_tokens,
                    return_dict_in_generate=True,
                    **choices,
                )
            tokens = made.sequences
            assert tokens.shape == (ROWS, PROMPT + num_tokens)
            tokens = tokens if learns_of_all else tokens[:, :2]
            del made
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return build


@pytest.fixture(autouse=True)
def _a_short_skip_will_do(monkeypatch):
    monkeypatch.setattr(generation, "LEAST_SKIPPED", 8)


def peaks(trace):
    return [instant for instant in trace.instants if instant.step]


@pytest.mark.parametrize("learns_of_all", [True, False])
def test_the_bytes_are_those_of_token_by_token(learns_of_all, monkeypatch):
    skipped = trace_script(generates(24, learns_of_all, do_sample=True), steps=1)
    monkeypatch.setattr(generation, "LEAST_SKIPPED", 10**9)
    followed = trace_script(generates(24, learns_of_all, do_sample=True), steps=1)
    assert len(skipped.events) < len(followed.events) / 1.5
    assert skipped.peak_bytes == followed.peak_bytes
    assert peaks(skipped) == peaks(followed)
    assert "generate" not in followed.provenance.get(ABOUT_NUMBER, "")
    words = skipped.provenance[ABOUT_NUMBER]
    assert f"of the {PROMPT + 24} tokens of generate" in words
    assert f"each adds {format_bytes(A_TOKEN)};" in words
    assert "may take more" not in words


@pytest.mark.parametrize(
    "choices",
    [
        {"output_scores": True},  # a tensor more is kept of each token
        {"use_cache": False},
        {"cache_implementation": "static"},
    ],
    ids=str,
)
def test_what_is_not_on_a_line_is_followed_token_by_token(choices, monkeypatch):
    one = trace_script(generates(20, **choices), steps=1)
    monkeypatch.setattr(generation, "LEAST_SKIPPED", 10**9)
    other = trace_script(generates(20, **choices), steps=1)
    assert len(one.events) == len(other.events)
    assert "generate" not in one.provenance.get(ABOUT_NUMBER, "")


def test_last_tokens_off_the_line_are_told(monkeypatch):
    plain = LlamaForCausalLM.forward

    def with_scratch(model, *args, past_key_values=None, **kwargs):
        if past_key_values is not None and past_key_values.get_seq_length() > 30:
            torch.empty(1 << 20, device="cuda")
        return plain(model, *args, past_key_values=past_key_values, **kwargs)

    monkeypatch.setattr(LlamaForCausalLM, "forward", with_scratch)
    trace = trace_script(generates(32), steps=1)
    assert "do not allocate what its first ones foretell" in trace.provenance[ABOUT_NUMBER]


def test_words_of_long_answers_are_known():
    """As GRPO cuts them: 4 × 20,480 tokens in 64 bits, with a mask of whole numbers."""
    lengths = []

    def build():
        weight = torch.nn.Parameter(torch.zeros(2, device="cuda"))

        def step():
            answers = torch.full((4, 20_480), 7, device="cuda")
            places = torch.arange(20_480, device="cuda").expand(4, -1)
            mask = (places < 20_000).int()
            lengths.extend(len(a[m].tolist()) for a, m in zip(answers, mask.bool(), strict=True))
            weight.sum().backward()

        return step

    trace_script(build, steps=1)
    assert lengths == [20_000] * 4
