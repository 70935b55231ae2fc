"""Which blocks of a run are alive at a moment, and whose they are."""

from collections.abc import Callable, Hashable, Iterable, Sequence

from memkit.timeline import Event


def live_at(events: Sequence[Event], index: int) -> list[Event]:
    """The allocations of the blocks that are not yet freed after event ``index``."""
    live: dict[int, Event] = {}
    for event in events[: index + 1]:
        if event.num_bytes > 0:
            live[event.block] = event
        else:
            live.pop(event.block, None)
    return list(live.values())


def unfreed(events: Sequence[Event]) -> set[int]:
    """Numbers of the blocks that are never freed."""
    born = {event.block for event in events if event.num_bytes > 0}
    return born - {event.block for event in events if event.num_bytes < 0}


def grouped(
    events: Iterable[Event], key: Callable[[Event], Hashable]
) -> dict[Hashable, list[Event]]:
    """The events under each key, in order. Of allocations alone, that is what each line or part has allocated.

    >>> births = [Event(1, 8, "weights"), Event(2, 4, "gradients"), Event(3, 2, "weights")]
    >>> {part: bytes_of(own) for part, own in grouped(births, lambda event: event.part).items()}
    {'weights': 10, 'gradients': 4}
    """
    groups: dict[Hashable, list[Event]] = {}
    for event in events:
        groups.setdefault(key(event), []).append(event)
    return groups


def bytes_of(events: Iterable[Event]) -> int:
    """Bytes that are allocated after the last event."""
    return sum(event.num_bytes for event in events)
