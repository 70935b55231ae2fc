"""A few short stories worth watching: what the allocator does, in a dozen events each."""

from collections.abc import Callable

from memkit.events import Event
from memkit.units import KIB, MIB


class _Script:
    """Writes events: ``new`` returns a block's number, ``drop`` frees it."""

    def __init__(self):
        self.events: list[Event] = []
        self.born: dict[int, Event] = {}

    def new(self, num_bytes: int, name: str, part: str = "activations") -> int:
        event = Event(len(self.born), num_bytes, part, where=name)
        self.born[event.block] = event
        self.events.append(event)
        return event.block

    def drop(self, *blocks: int) -> None:
        for block in blocks:
            born = self.born[block]
            self.events.append(Event(block, -born.num_bytes, born.part, where=born.where))


def rounding_story() -> list[Event]:
    """Sizes: 512 bytes, the two pools, a segment of 20 MiB for 3, and a rest too small to split off."""
    script = _Script()
    script.new(4, "loss", "temporary")
    script.new(600 * KIB, "bias", "weights")
    script.new(900 * KIB, "norm", "weights")
    script.new(3 * MIB, "w1", "weights")
    script.new(9 * MIB, "w2", "weights")
    script.new(19 * MIB, "embedding", "weights")
    x = script.new(40 * MIB, "x")
    script.drop(x)
    script.new(39 * MIB + 512 * KIB, "y")
    return script.events


def holes_story() -> list[Event]:
    """Every second block is freed: half the memory is free, and a request of three blocks finds no room."""
    script = _Script()
    blocks = [script.new(8 * MIB, f"layer {i}") for i in range(8)]
    script.drop(*blocks[::2])
    script.new(6 * MIB, "fits a hole", "temporary")
    script.new(24 * MIB, "fits nowhere", "temporary")
    return script.events


def growing_story() -> list[Event]:
    """Each batch has a longer sequence than the one before, so no cached block is ever large enough."""
    script = _Script()
    script.new(24 * MIB, "weights", "weights")
    for batch, size in enumerate((20, 24, 28, 32, 36, 40), start=1):
        script.drop(script.new(size * MIB, f"batch {batch}"))
    return script.events


def step_story() -> list[Event]:
    """Two steps of four layers: gradients are born while activations die, states appear at the first step."""
    script, sizes = _Script(), (12, 12, 12, 16)
    weights = [script.new(4 * MIB, f"w{i}", "weights") for i in range(4)]
    for step in range(2):
        kept = [script.new(size * MIB, f"a{i}") for i, size in enumerate(sizes)]
        gradients = []
        for layer in reversed(range(4)):
            scratch = script.new(sizes[layer] * MIB, f"da{layer}", "temporary")
            gradients.append(script.new(4 * MIB, f"g{layer}", "gradients"))
            script.drop(kept[layer], scratch)
        if step == 0:
            for layer in range(len(weights)):
                script.new(8 * MIB, f"m,v {layer}", "optimizer_states")
        script.drop(*gradients)
    return script.events


STORIES: dict[str, Callable[[], list[Event]]] = {
    "rounding and pools": rounding_story,
    "holes": holes_story,
    "a growing sequence": growing_story,
    "a training step": step_story,
}
"""Short traces by name, for the lab."""
