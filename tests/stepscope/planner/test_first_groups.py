"""The first groups of blocks run again: regions, bytes and code, held by the kit's test of every strategy."""

import pytest
from tests_of_the_kit import kit_tests

from memkit.strategies import groups
from stepscope.planner.plan import first_groups

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
