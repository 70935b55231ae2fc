"""The allocator's model: 20,000 recorded events in under a second, and how that compares with reading them."""

import json
import random
import time

from bench import Row
from memkit.allocator.caching import CachingAllocator
from memkit.allocator.snapshot_replay import replay_snapshot, replay_trace
from memkit.allocator.snapshot_writer import predicted_snapshot
from memkit.timeline import Event, Instant, MemoryTimeline

NUM_EVENTS = 20_000
LIMIT_SECONDS = 1.0
ROUNDS = 3


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
    trace = made_up_trace(NUM_EVENTS)
    traced = best_seconds(replay_trace, trace)
    snapshot = predicted_snapshot(replay_trace(trace))
    num_recorded = len(snapshot["device_traces"][0])
    recorded = best_seconds(replay_snapshot, snapshot) * NUM_EVENTS / num_recorded
    text = json.dumps(snapshot)
    reading = best_seconds(json.loads, text) * NUM_EVENTS / num_recorded
    addresses = best_seconds(_allocate_and_free)
    return [
        Row(
            name="replay of 20,000 traced events / 1 s",
            ratio=traced / LIMIT_SECONDS,
            at_most=1.0,
            detail=f"{1e3 * traced:.0f} ms, best of {ROUNDS}",
        ),
        Row(
            name="replay of 20,000 recorded events / 1 s",
            ratio=recorded / LIMIT_SECONDS,
            at_most=1.0,
            detail=f"{1e3 * recorded:.0f} ms; json.loads of the same events {1e3 * reading:.0f} ms",
        ),
        Row(
            name="20,000 pairs of malloc and free / 1 s",
            ratio=addresses / LIMIT_SECONDS,
            at_most=1.0,
            detail=f"{1e6 * addresses / NUM_EVENTS:.1f} us a pair",
        ),
    ]


def _allocate_and_free() -> None:
    allocator = CachingAllocator()
    for index in range(NUM_EVENTS):
        allocator.free(allocator.malloc(1024 * (1 + index % 7000)))


if __name__ == "__main__":
    for row in run():
        print(f"{row.name}: {row.ratio:.2f} ({row.requirement}); {row.detail}")
