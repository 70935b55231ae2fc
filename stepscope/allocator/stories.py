"""What the allocator lab of chapter 07 plays: four short stories of what the allocator does.

A story is a list of moves: a block's name, its bytes and its part where it is allocated, and its name alone where it
is freed.
"""

from collections.abc import Callable, Iterable

from memkit.timeline import Event
from memkit.units import KIB, MIB

Move = tuple[str, int] | tuple[str, int, str] | str


def events_of(moves: Iterable[Move]) -> list[Event]:
    """The moves as events; a block that is allocated without a part is an activation."""
    events: list[Event] = []
    births: dict[str, Event] = {}
    num_blocks = 0
    for move in moves:
        if isinstance(move, str):
            born = births[move]
            events.append(Event(born.block, -born.num_bytes, born.part, where=move))
        else:
            name, num_bytes, part = (*move, "activations")[:3]
            births[name] = Event(num_blocks, num_bytes, part, where=name)
            events.append(births[name])
            num_blocks += 1
    return events


def rounding_story() -> list[Event]:
    """Sizes: 512 bytes, the two pools, a segment of 20 MiB for 3, and a rest too small to split off."""
    return events_of([
        ("loss", 4, "temporary"), ("bias", 600 * KIB, "weights"), ("norm", 900 * KIB, "weights"),
        ("w1", 3 * MIB, "weights"), ("w2", 9 * MIB, "weights"), ("embedding", 19 * MIB, "weights"),
        ("x", 40 * MIB), "x", ("y", 39 * MIB + 512 * KIB),
    ])


def holes_story() -> list[Event]:
    """Every second block is freed: half the memory is free, and a request of three blocks finds no room."""
    layers = [f"layer {number}" for number in range(8)]
    requests = [("fits a hole", 6 * MIB, "temporary"), ("fits nowhere", 24 * MIB, "temporary")]
    return events_of([*((layer, 8 * MIB) for layer in layers), *layers[::2], *requests])


def growing_story() -> list[Event]:
    """Each batch has a longer sequence than the one before, so no cached block is ever large enough."""
    moves: list[Move] = [("weights", 24 * MIB, "weights")]
    for number, size in enumerate((20, 24, 28, 32, 36, 40), start=1):
        moves += [(f"batch {number}", size * MIB), f"batch {number}"]
    return events_of(moves)


def step_story() -> list[Event]:
    """Two steps of four layers: gradients are born while activations die, states appear at the first step."""
    sizes, layers = (12, 12, 12, 16), range(4)
    moves: list[Move] = [(f"w{i}", 4 * MIB, "weights") for i in layers]
    for step in range(2):
        moves += [(f"a{i}", sizes[i] * MIB) for i in layers]
        for i in reversed(layers):
            moves += [(f"da{i}", sizes[i] * MIB, "temporary"), (f"g{i}", 4 * MIB, "gradients"), f"a{i}", f"da{i}"]
        if step == 0:
            moves += [(f"m,v {i}", 8 * MIB, "optimizer_states") for i in layers]
        moves += [f"g{i}" for i in reversed(layers)]
    return events_of(moves)


STORIES: dict[str, Callable[[], list[Event]]] = {
    "rounding and pools": rounding_story,
    "holes": holes_story,
    "a growing sequence": growing_story,
    "a training step": step_story,
}
"""The stories by name, for the lab."""
