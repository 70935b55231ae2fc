"""The allocator against the rules in PyTorch's source, and invariants at random."""

import random
from itertools import pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memkit.fit import training_workspace_bytes, workspace_bytes
from memkit.units import KIB, MIB, round_up
from stepscope.allocator.caching import (
    AllocatorConfig,
    CachingAllocator,
    Driver,
    OutOfMemory,
    segment_size,
)


def allocator_for(conf: str = "", capacity_bytes: int | None = None, outside_bytes: int = 0):
    return CachingAllocator(
        AllocatorConfig(expandable_segments=bool(conf)), Driver(capacity_bytes, outside_bytes)
    )


def played(script: str, conf: str = "", capacity_bytes: int | None = None) -> CachingAllocator:
    """An allocator after a script: ``a=40`` asks for 40 MiB, ``-a`` gives that block back."""
    allocator, addresses = allocator_for(conf, capacity_bytes), {}
    for word in script.split():
        name, _, request = word.partition("=")
        if request:
            addresses[name] = allocator.malloc(int(request) * MIB)
        elif word == "empty":
            allocator.empty_cache()
        else:
            allocator.free(addresses[name.removeprefix("-")])
    return allocator


def layout(allocator: CachingAllocator) -> str:
    """Segments by address, each block with its MiB and its state's first letter: a in use, i free."""
    return " | ".join(
        " ".join(f"{b.size / MIB:g}{b.state[0]}" for b in run) for run in allocator.segments()
    )


# ---------------------------------------------------------------- what a request becomes


@pytest.mark.parametrize(
    ("num_bytes", "block", "segment"),
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (1 * MIB, 1 * MIB, 2 * MIB),  # kSmallSize itself is small
        (1 * MIB + 1, 1 * MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),  # kMinLargeAlloc itself gets a segment of its own
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),
    ],
)
def test_a_request_becomes_a_block_and_a_segment(num_bytes, block, segment):
    assert (round_up(num_bytes), segment_size(block)) == (block, segment)


def test_a_rest_above_1_mib_is_split_off():
    allocator = allocator_for()
    allocator.malloc(19 * MIB - 512)  # of a segment of 20 MiB
    assert allocator.allocated_bytes == 19 * MIB - 512
    assert (
        played("a=19").allocated_bytes == 20 * MIB
        and played("a=19").current["requested"] == 19 * MIB
    )


def test_the_small_pool_splits_down_to_512_bytes():
    allocator = allocator_for()
    allocator.malloc(1 * MIB)
    allocator.malloc(1 * MIB - 512)
    assert [block.size for block in allocator.segments()[0]] == [1 * MIB, 1 * MIB - 512, 512]


def test_zero_bytes_need_no_block():
    allocator = allocator_for()
    assert allocator.malloc(0) is None
    assert allocator.reserved_bytes == 0


# ---------------------------------------------------------------- where a block goes


EXPANDABLE = "expandable_segments:True"
LAYOUTS = {
    "the smallest block that fits": ("a=40 b=12 c=20 -a -b -c d=14", "40i | 12i | 14a 6i"),
    "of equal blocks the lowest address": ("a=12 b=12 -b -a c=12", "12a | 12i"),
    "only whole free segments go back": ("a=12 b=4 c=4 -a -c empty", "4a 16i"),
    "and the rest when it is free": ("a=12 b=4 c=4 -a -c empty -b empty", ""),
    "a refused request empties the cache": ("a=30 -a b=32", "32a", "", 40 * MIB),
    "a plain segment does not grow": ("a=38 -a b=50", "38i | 50a"),
    "an expandable one grows by pages of 20 MiB": ("a=38 -a b=50", "50a 10i", EXPANDABLE),
    "any rest of it is split off": ("a=19", "19a 1i", EXPANDABLE),
    "whole pages go back from its middle": (
        "a=10 b=60 c=10 -b empty",
        "10a 10i | 10i 10a",
        EXPANDABLE,
    ),
    "the lowest are mapped again": (
        "a=10 b=60 c=10 -b empty d=15",
        "10a 15a 15i | 10i 10a",
        EXPANDABLE,
    ),
    "one without memory is given up": ("a=30 -a empty", "", EXPANDABLE, 100 * MIB),
    # the block at the end of what is mapped counts with all that is not mapped yet
    "the block that can grow least": ("a=12 b=2 c=26 -a -c d=4", "4a 8i 2a 26i", EXPANDABLE),
    "even if the other fits better now": (
        "a=16 b=2 c=8 d=14 -a -d e=5",
        "5a 11i 2a 8a 14i",
        EXPANDABLE,
    ),
}
"""By rule of the source: a script, what lies where after it, and the options and the card where it needs some."""


@pytest.mark.parametrize("rule", LAYOUTS)
def test_where_a_block_goes(rule):
    script, expected, *card = LAYOUTS[rule]
    allocator = played(script, *card)
    assert layout(allocator) == expected
    assert allocator.driver.used_bytes == allocator.reserved_bytes
    assert expected or not allocator.blocks


@pytest.mark.parametrize("order", list(permutations("abc")), ids="".join)
def test_the_front_is_handed_out_and_neighbours_merge_in_any_order(order):
    assert layout(played("a=4 b=4 c=4")) == "4a 4a 4a 8i"
    assert layout(played(f"a=4 b=4 c=4 -{order[0]} -{order[1]} -{order[2]}")) == "20i"


def test_freeing_twice_or_in_the_middle_is_refused():
    allocator = allocator_for()
    address = allocator.malloc(12 * MIB)
    with pytest.raises(ValueError, match=f"address={address + 512}"):
        allocator.free(address + 512)
    allocator.free(address)
    with pytest.raises(ValueError, match=f"address={address}"):
        allocator.free(address)


# ---------------------------------------------------------------- giving back, and running out


def test_a_refused_request_empties_the_cache_and_asks_again():
    # does not fit beside the cached 30 MiB
    allocator = played("a=30 -a b=32", capacity_bytes=40 * MIB)
    assert [event[0] for event in allocator.trace[-3:]] == [
        "segment_free",
        "segment_alloc",
        "alloc",
    ]


@pytest.mark.parametrize(
    ("story", "needed"),
    [
        ("a=30 -a b=32", 32),
        ("a=30 b=32 -a c=34 -b d=36 -c", 70),  # as an evaluation whose logits are put together
        ("a=12 b=6 -a", 32),  # the 6 MiB stand in a segment of 20
        ("a=1 b=30 -b c=40 -a", 42),
        ("a=30 b=30 -a -b c=40", 60),
    ],
)
def test_what_a_card_has_to_have_at_least(story, needed):
    """Found by trial too: on a card of as much it runs, and on one of 1 MiB less it does not."""
    assert played(story).needed_bytes == needed * MIB
    assert played(story, capacity_bytes=needed * MIB).reserved_bytes <= needed * MIB
    with pytest.raises(OutOfMemory):
        played(story, capacity_bytes=(needed - 1) * MIB)


def test_out_of_memory_says_what_was_tried_and_what_is_cached():
    allocator = allocator_for(capacity_bytes=64 * MIB, outside_bytes=10 * MIB)
    held = [allocator.malloc(3 * MIB) for _ in range(12)]
    for address in held[1::2]:
        allocator.free(address)
    with pytest.raises(OutOfMemory) as caught:
        allocator.malloc(9 * MIB)
    error = caught.value
    assert error.requested_bytes == 9 * MIB
    for words in (
        "Tried to allocate 20.00 MiB",  # the segment, not the request
        "capacity of 64.00 MiB of which 14.00 MiB is free",
        "this process has 50.00 MiB memory in use",
        "18.00 MiB is allocated by PyTorch, and 22.00 MiB is reserved",
    ):
        assert words in str(error)
    assert [entry.action for entry in allocator.trace].count("oom") == 1
    allocator.free(held[0])  # the allocator survives


# ---------------------------------------------------------------- options


def test_expandable_segments_map_pages_of_their_pool():
    allocator = allocator_for("expandable_segments:True")
    allocator.malloc(1 * KIB)
    allocator.malloc(2 * MIB)
    mapped = [(event[0], event[2]) for event in allocator.trace if event[0].startswith("segment")]
    assert mapped == [("segment_map", 2 * MIB), ("segment_map", 20 * MIB)]


def test_a_card_is_used_to_its_last_byte():
    """The driver refuses what is more than free, and not what is as much."""
    assert CachingAllocator(driver=Driver(capacity_bytes=2 * MIB)).malloc(512) is not None


# ---------------------------------------------------------------- invariants of random traces


def check_invariants(allocator: CachingAllocator, live: dict[int, int]) -> None:
    """No overlap, sizes add up, no free neighbours; ``live``: address -> bytes asked."""
    runs = allocator.segments()
    blocks = [block for run in runs for block in run]
    end = 0
    for block in blocks:
        assert block.address >= end, "blocks overlap"
        end = block.address + block.size
    in_use = {block.address: block for block in blocks if block.allocated}
    assert in_use.keys() == live.keys()
    for address, asked in live.items():
        assert in_use[address].size >= asked == in_use[address].requested_bytes
    assert allocator.allocated_bytes == sum(block.size for block in in_use.values())
    assert allocator.current["requested"] >= sum(live.values())
    assert allocator.reserved_bytes == sum(block.size for block in blocks)
    assert allocator.reserved_bytes >= allocator.current["active"] == allocator.allocated_bytes
    free = {(b.size, b.address) for b in blocks if b.is_free}
    assert free == {*allocator.small.free, *allocator.large.free}
    for pool in (allocator.small, allocator.large):
        assert pool.free == sorted(pool.free)
    for run in runs:
        for left, right in pairwise(run):
            assert left.address + left.size == right.address, "a segment has a gap"
            assert not (left.is_free and right.is_free), "free neighbours are not merged"
    if allocator.driver.capacity_bytes is not None:
        assert (
            allocator.driver.used_bytes
            == allocator.reserved_bytes
            <= allocator.driver.capacity_bytes
        )


def play_random(
    allocator: CachingAllocator, seed: int, num_operations: int, check_every: int
) -> None:
    """Allocate, free and empty the cache at random; check on the way and at the end."""
    rng = random.Random(seed)
    live: dict[int, int] = {}
    for index in range(num_operations):
        dice = rng.random()
        if dice < 0.52 or not live:
            size = int(2 ** rng.uniform(0, 27))
            if rng.random() < 0.3:
                size = rng.choice((512, MIB, 2 * MIB, 10 * MIB))
            try:
                live[allocator.malloc(size)] = size
            except OutOfMemory:
                for address in rng.sample(sorted(live), len(live) // 2):
                    allocator.free(address)
                    del live[address]
        elif dice < 0.995:
            address = rng.choice(list(live)) if len(live) < 64 else next(iter(live))
            allocator.free(address)
            del live[address]
        else:
            allocator.empty_cache()
        if index % check_every == 0:
            check_invariants(allocator, live)
    for address in live:
        allocator.free(address)
    check_invariants(allocator, {})
    assert all(len(run) == 1 for run in allocator.segments()), "everything is free, yet not merged"
    allocator.empty_cache()
    assert allocator.reserved_bytes == 0
    assert not any(block.mapped for block in allocator.blocks.values()), (
        "only address space may be left"
    )


@settings(max_examples=40, deadline=None)
@given(
    conf=st.sampled_from(["", EXPANDABLE]),
    seed=st.integers(0, 2**32),
    capacity_mib=st.sampled_from([200, 600, 4000]),
)
def test_random_traces_keep_the_invariants(conf, seed, capacity_mib):
    play_random(allocator_for(conf, capacity_mib * MIB), seed, num_operations=300, check_every=7)


# ---------------------------------------------------------------- workspaces


def test_the_documented_workspace_sizes():
    # the number of pytorch/pytorch#95668, seen on an A10G
    assert workspace_bytes((8, 6)) == 8_519_680
    assert workspace_bytes((9, 0)) == 32 * MIB
    for version, blackwell, thor in (
        ("2.11.0+cu128", 8_519_680, 8_519_680),
        ("2.13", 32 * MIB, 8_519_680),
        ("2.14.0", 32 * MIB, 32 * MIB),
    ):
        assert {workspace_bytes((major, 0), torch_version=version) for major in (10, 12)} == {
            blackwell
        }
        assert workspace_bytes((11, 0), torch_version=version) == thor
    with pytest.raises(ValueError, match="torch_version='soon' is not 2.0 or later"):
        workspace_bytes((8, 0), torch_version="soon")
    with pytest.raises(ValueError, match="torch_version='1.13.1' is not 2.0 or later"):
        workspace_bytes((9, 0), torch_version="1.13.1")
    assert workspace_bytes((9, 0), torch_version="2.0.0+cu117") == 32 * MIB
    assert training_workspace_bytes((8, 0)) == 2 * 8_519_680
