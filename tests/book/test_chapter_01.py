"""The numbers of lesson 01's prose: the outcome of its experiments in the explorer, and its closing rule."""

import re
from dataclasses import replace

import pytest
from cells import texts_of

from book import recorded
from memkit.cards import CARDS
from memkit.fit import fit_on
from memkit.formula.activations import activation_bytes, block_ledger
from memkit.formula.estimate import estimate_memory
from memkit.formula.parameters import count_parameters
from memkit.formula.states import bytes_per_parameter
from memkit.models import GPT2_LARGE, LLAMA_2_7B, LLAMA_3_8B, LLAMA_32_1B
from memkit.recipes import ADAMW, AUTOCAST_BF16, PRECISIONS, PURE_BF16, OptimizerConfig
from memkit.setup import TrainingSetup
from memkit.units import GIB, format_bytes

SHORT = TrainingSetup(model=LLAMA_2_7B, precision=PURE_BF16, seq_len=2048)
LONG = replace(SHORT, seq_len=4096)


def found_text(cell: str = "zero-grad-read") -> str:
    """What a reader should find, in the lesson, or in its *Further* (``explorer-text``)."""
    return texts_of("01")[cell].partition("What you should find")[2]


def second_step_peak(setup: TrainingSetup):
    return estimate_memory(setup).for_step(2).peak


def largest_that_fits(setup: TrainingSetup) -> int:
    """By the explorer's own rule: context, workspaces and fragments counted."""
    batch = 0
    peak = lambda size: second_step_peak(replace(setup, micro_batch_size=size)).total_bytes
    while fit_on(CARDS["H100 SXM"], peak(batch + 1)).verdict != "does not fit":
        batch += 1
    return batch


def test_the_crossing():
    crossing = int(re.search(r"1\. It leaves at a micro-batch of (\d+)\.", found_text())[1])
    assert "optimizer" in second_step_peak(replace(SHORT, micro_batch_size=crossing - 1)).name
    assert "optimizer" not in second_step_peak(replace(SHORT, micro_batch_size=crossing)).name


WORDS = {"One": 1, "Two": 2, "Three": 3}


def missing_gib(setup: TrainingSetup) -> float:
    """What is missing on an H100 at worst, with a ninth of the tensors lost in fragments."""
    return -fit_on(CARDS["H100 SXM"], second_step_peak(setup).total_bytes).least_bytes / GIB


def test_the_largest_micro_batch_of_4096_tokens():
    plain, spare, missing = re.search(
        r"2\. (\w+) sequences, .* than ([\d.]+) GiB are lost in fragments\. At worst about (\d+) GiB are missing\.",
        found_text(),
    ).groups()
    assert largest_that_fits(LONG) == WORDS[plain]
    tight = replace(LONG, micro_batch_size=2)
    assert f"{missing_gib(tight):.0f}" == missing
    beside = CARDS["H100 SXM"].memory_bytes - second_step_peak(tight).total_bytes
    # two workspaces of 32 MiB, and half a GiB of context
    assert f"{beside / GIB - 1 / 16 - 1 / 2:.2f}" == spare


def test_what_the_panel_leaves_for_tensors():
    fit = fit_on(CARDS["H100 SXM"], second_step_peak(SHORT).total_bytes)
    context, workspaces, card = GIB / 2, 2 * 32 * 2**20, CARDS["H100 SXM"].memory_bytes
    left = (card - context) * 0.99 - workspaces
    assert abs(fit.room_bytes - left) < 9
    assert abs(card - 2 * context - workspaces - fit.need_bytes * 10 / 9 - fit.least_bytes) < 9
    told = texts_of("01")["zero-grad-read"]
    assert f"{card / GIB:.1f} GiB is for tensors" in told
    assert f"the workspaces (section 1.4) {workspaces / GIB:.2f}" in told
    assert f"With a hundredth lost, {left / GIB:.1f} GiB are left" in told


def test_the_price_of_a_late_zero_grad():
    gradients, logits = 2 * count_parameters(LLAMA_2_7B), 2 * 4 * 2048 * LLAMA_2_7B.vocab_size
    terms = f"{gradients / GIB:.2f} − {logits / GIB:.2f} GiB"
    assert f"one tensor of the logits' size, here {terms}." in texts_of("01")["zero-grad-read"]


def test_the_peak_of_the_recorded_run_is_two_tensors_of_its_logits_above_the_forward():
    measured = {name: size for name, _, size in recorded("01", "moments").rows}
    told = re.search(r"(\d+) · (\d+) tokens times ([\d,]+) words", texts_of("01")["explain"])
    batch, tokens, words = (int(number.replace(",", "")) for number in told.groups())
    assert measured["peak"] - measured["forward"] == pytest.approx(
        2 * 4 * batch * tokens * words, abs=512
    )


def test_the_dashed_bar_of_the_block():
    large = GPT2_LARGE
    values = large.num_heads * 1024 / large.hidden_size
    product = f"{large.num_heads} heads · 1,024 tokens / {large.hidden_size:,} hidden units"
    told = texts_of("01")["block-picture"]
    assert f"{product} = {values:g} values." in told and f"{values:g} more in GPT-2 large" in told


def test_the_last_point_of_the_flash_curve():
    run = replace(SHORT, seq_len=8192)
    [told] = re.findall(
        r"flash curve is a product: (.*?) B are ([\d.]+) of the ([\d.]+) GiB",
        texts_of("01")["attention-read"],
    )
    numbers = [float(number) for number in re.findall(r"[\d.]+", told[0].replace(",", ""))]
    blocks, tokens, units, values, width = numbers
    assert values == pytest.approx(
        block_ledger(run).num_bytes / (width * tokens * units), rel=0.001
    )
    by_hand, kept = blocks * tokens * units * values * width, activation_bytes(run)
    assert (f"{by_hand / GIB:.1f}", f"{kept / GIB:.1f}") == told[1:]
    assert 2 * 8192 * LLAMA_2_7B.vocab_size > (kept - by_hand) / 2


def test_what_recomputation_buys():
    text = found_text("explorer-text")
    plain, recomputed = re.search(
        r"1\. (\w+) sequences; with recomputation, (\d+)\. Both are \*tight\*", text
    ).groups()
    again = replace(LONG, recomputation="full")
    assert largest_that_fits(LONG) == WORDS[plain] and largest_that_fits(again) == int(recomputed)
    worst = (
        missing_gib(replace(setup, micro_batch_size=batch))
        for setup, batch in ((LONG, WORDS[plain]), (again, int(recomputed)))
    )
    assert "at worst {:.0f} to {:.0f} GiB are missing".format(*worst) in text


def test_what_accumulation_costs():
    before, after = (second_step_peak(replace(LONG, grad_accum_steps=steps)) for steps in (1, 4))
    assert format_bytes(after.total_bytes - before.total_bytes) in found_text("explorer-text")
    assert "optimizer" in before.name and "backward" in after.name


def test_fused_never_peaks_in_the_optimizer():
    fused = OptimizerConfig(implementation="fused")
    for batch in (1, 2, 3, 8):
        assert (
            "backward"
            in second_step_peak(replace(SHORT, micro_batch_size=batch, optimizer=fused)).name
        )


def test_the_logits_spike():
    setup = TrainingSetup(
        model=LLAMA_3_8B, precision=AUTOCAST_BF16, seq_len=1024, micro_batch_size=4
    )
    logits = setup.tokens_per_micro_batch * LLAMA_3_8B.vocab_size * 4
    assert format_bytes(logits) in texts_of("01")["candidates-logits"]
    assert f"{block_ledger(setup).num_bytes / 2**20:.0f} MiB" in texts_of("01")["candidates-logits"]


@pytest.mark.parametrize("recipe", PRECISIONS.values(), ids=lambda recipe: recipe.name)
@pytest.mark.parametrize("batch", [1, 16])
def test_the_rule_to_take_home_holds_for_every_recipe(recipe, batch):
    setup = TrainingSetup(model=LLAMA_32_1B, precision=recipe, micro_batch_size=batch, seq_len=512)
    kept, count = bytes_per_parameter(recipe, ADAMW), count_parameters(LLAMA_32_1B)
    weights = count * kept["weight"]
    gradients = count * (kept["gradient"] + kept.get("main gradient", 0))
    states = count * sum(kept.values()) - weights - gradients
    logits = (
        setup.tokens_per_micro_batch * LLAMA_32_1B.vocab_size * (2 if kept["weight"] == 2 else 4)
    )
    forward = estimate_memory(setup).at("forward")
    activations = forward.activations + forward.temporary  # autocast's casts of weights
    moments = {
        "backward": weights + states + activations + 2 * logits,
        "optimizer": weights + gradients + states + count * kept["exp_avg"],
    }
    peak = estimate_memory(setup).for_step(2).peak
    name = max(moments, key=moments.get)
    assert name in peak.name
    within = 0.05 if recipe.name == "autocast fp16" else 0.01  # its gradients of logits are smaller
    assert abs(moments[name] / peak.total_bytes - 1) < within
