"""The allocator's model against the least that the same work takes: reading the events, and sorted lists of holes."""

import json
import random
import time
from bisect import insort

from dev.bench import Row
from memkit.timeline import Event, Instant, MemoryTimeline
from stepscope.allocator.caching import CachingAllocator
from stepscope.allocator.replay import replay_trace
from stepscope.allocator.snapshots import predicted_snapshot, read_snapshot

NUM_EVENTS = 20_000
ROUNDS = 3
MOST_OVER_ALLOCATOR, MOST_OVER_READING, MOST_OVER_LISTS = 1.8, 9.0, 22.0


def made_up_trace(num_events: int) -> MemoryTimeline:
    """Blocks of the sizes of a training step, born and freed at random, about 300 alive at a time."""
    rng = random.Random(0)
    live, events = [], []
    for number in range(num_events):
        if len(live) < 300 or rng.random() < 0.5:
            size = rng.choice((2048, 1 << 20, 3 << 20, 16 << 20, 40_960_000)) + rng.randrange(4096)
            events.append(Event(number, size))
            live.append((number, size))
        else:
            block, size = live.pop(rng.randrange(len(live)))
            events.append(Event(block, -size))
    return MemoryTimeline(
        instants=(Instant(name="end", total_bytes=0),), source="traced", events=tuple(events)
    )


def best_seconds(function, *args) -> float:
    """Wall seconds of the fastest of a few runs."""
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        function(*args)
        times.append(time.perf_counter() - start)
    return min(times)


def run() -> list[Row]:
    """Three ratios; each side is the fastest of as many rounds."""
    trace = made_up_trace(NUM_EVENTS)
    bare = best_seconds(_bare, trace.events)
    traced = best_seconds(replay_trace, trace)
    snapshot = predicted_snapshot(replay_trace(trace))
    num_recorded = len(snapshot["device_traces"][0])
    recorded = best_seconds(read_snapshot, snapshot)
    reading = best_seconds(json.loads, json.dumps(snapshot))
    pairs, lists = best_seconds(_allocate_and_free), best_seconds(_insert_and_delete)
    return [
        Row(
            name="replay of a trace ÷ its requests on the bare allocator",
            ratio=traced / bare,
            at_most=MOST_OVER_ALLOCATOR,
            detail=f"{NUM_EVENTS:,} events: {1e3 * traced:.0f} ms against {1e3 * bare:.0f} ms",
        ),
        Row(
            name="reading a recording ÷ json.loads of it",
            ratio=recorded / reading,
            at_most=MOST_OVER_READING,
            detail=f"{num_recorded:,} entries: {1e3 * recorded:.0f} ms against {1e3 * reading:.0f} ms",
        ),
        Row(
            name="malloc and free ÷ a sorted list's insert and delete",
            ratio=pairs / lists,
            at_most=MOST_OVER_LISTS,
            detail=f"{1e6 * pairs / NUM_EVENTS:.1f} us a pair against {1e6 * lists / NUM_EVENTS:.1f} us",
        ),
    ]


def _bare(events: tuple[Event, ...]) -> None:
    """The same births and frees with nothing kept besides."""
    allocator, address_of = CachingAllocator(), {}
    for event in events:
        if event.num_bytes > 0:
            address_of[event.block] = allocator.malloc(event.num_bytes)
        else:
            allocator.free(address_of.pop(event.block))


def _allocate_and_free() -> None:
    allocator = CachingAllocator()
    for index in range(NUM_EVENTS):
        allocator.free(allocator.malloc(1024 * (1 + index % 7000)))


def _insert_and_delete() -> None:
    holes: list[tuple[int, int, int]] = [(0, 1024 * size, size) for size in range(300)]
    for index in range(NUM_EVENTS):
        insort(holes, (0, 1024 * (1 + index % 300), index))
        del holes[index % len(holes)]


if __name__ == "__main__":
    for row in run():
        print(f"{row.name}: {row.ratio:.2f} ({row.requirement}); {row.detail}")
