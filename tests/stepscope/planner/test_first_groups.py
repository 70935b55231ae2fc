"""The first groups of blocks run again: regions, bytes and code, held by the kit's test of every strategy."""

from dataclasses import replace

import pytest
from tests_of_the_kit import kit_tests

from memkit.cards import CARDS
from memkit.models import llama_config
from memkit.strategies import groups
from stepscope.planner.plan import first_groups
from stepscope.planner.search import find_plans

KIT = kit_tests("program/test_strategies.py")


def test_what_is_stored_is_the_formulas_the_traces_and_the_machines():
    KIT.test_stored_bytes_are_the_formulas_the_traces_and_the_machines("llama", first_groups(2, 1))


@pytest.mark.parametrize("size, number", [(1, 1), (1, 3), (2, 1), (3, 1), (3, 2)])
def test_as_many_regions_as_asked_run_again_and_all_blocks_are_there(size, number):
    whole, first = groups(size).regions(7), first_groups(size, number).regions(7)
    assert [blocks for blocks, _ in first] == [blocks for blocks, _ in whole]
    assert [is_again for _, is_again in first] == [at < number for at in range(len(whole))]


def test_its_code_runs_each_block_once():
    calls = []
    names = {
        "model": type("Model", (), {"blocks": [lambda x, n=n: calls.append(n) for n in range(7)]}),
        "nn": type("nn", (), {"Sequential": lambda *blocks: blocks}),
        "checkpoint": lambda group, x, use_reentrant: [block(x) for block in group],
        "x": 0,
    }
    exec(first_groups(2, 2).code, names)
    assert calls == list(range(7))


def test_a_plan_is_not_ruled_out_by_the_peak_of_more_recomputation():
    """All groups run again may peak higher than one of them does: the last one's second forward comes at the top."""
    sizes = {"num_layers": 4, "num_heads": 16, "hidden_size": 1024, "num_kv_heads": 4}
    model = llama_config(
        "four layers", **sizes, intermediate_size=2816, vocab_size=8192, max_seq_len=4096
    )
    found = find_plans(model, CARDS["A100 SXM 40 GB"], tokens_per_step=8 * 896, seq_len=896)
    name = "QLoRA of rank 16, AdamW, first 1 group of 2, loss in 8 pieces, 8 × 1"
    [plan] = [plan for plan in found.plans if plan.name == name]
    all_again = replace(plan, setup=replace(plan.setup, recomputation=groups(2)))
    assert all_again.peak_bytes > 1.01 * plan.peak_bytes
    card = replace(plan.card, memory_report="1690304512 bytes")
    assert not replace(all_again, card=card).fits and replace(plan, card=card).fits
