"""The peak of a training step under any strategy, by formula: what is allocated, and what the allocator must hold.

``memkit.formula.estimate`` knows the three recomputations of the spine. Here every block is written on the
tape, in the regions that the strategy cuts, and a policy's saved outputs are handed to the second run in
place of new ones. The events then go through the model of CUDA's caching allocator, which says what the card
must give: the reserved peak.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from memkit.allocator.caching import CachingAllocator
from memkit.allocator.config import AllocatorConfig
from memkit.allocator.heap import Driver
from memkit.allocator.workspaces import workspace_bytes
from memkit.formula.backward import Backward
from memkit.formula.forward import Schedule
from memkit.formula.optimizer import held_bytes, initial_events, state_events, step_events
from memkit.formula.parameters import block_parameters
from memkit.formula.tape import Region, Storage, Tape, Value
from memkit.setup.strategies import Strategy
from memkit.setup.training import TrainingSetup
from memkit.units import as_kind

LINEAR, FUSED = "linear", ("flash", "efficient")
TAPE_NAMES = {"mm": LINEAR, "addmm": LINEAR, "bmm": "bmm", "gelu": "gelu", "silu": "silu"}


class StrategyTape(Tape):
    """A tape whose regions may keep outputs: run again, they hand out what was kept instead of allocating."""

    def __init__(self, setup: TrainingSetup, strategy: Strategy):
        super().__init__(lambda num_bytes: held_bytes(num_bytes, setup.device))
        self.strategy = strategy
        self.saved: dict[Region, list[list[Storage]]] = {}
        self.made: list[Storage] | None = None  # what the operation that runs allocates, if it is to be kept
        self.given: list[Storage] = []  # what the operation that runs again takes instead of allocating
        self.region_again: Region | None = None
        self.num_linears = 0
        self.first_product = 0

    def is_saved(self, name: str, op: str) -> bool:
        """Whether the strategy's policy keeps what this operation puts out."""
        if name == LINEAR:
            self.num_linears += 1
            if self.strategy.saves_every_second and self.num_linears % 2 == 0:
                return False
        return op in self.strategy.saved_ops

    def run(self, name, inputs, count, dtype="", **choices):
        """As in every tape, but for what a policy keeps."""
        op = "attention" if name in FUSED else name
        if name == LINEAR:
            op = "addmm" if len(inputs) == 3 else "mm"
        region = self.region or self.region_again
        if region is None or not self.is_saved(name, op):
            out = super().run(name, inputs, count, dtype, **choices)
            if name == LINEAR and not self.first_product:
                self.first_product = len(self.events)
            return out
        if self.region_again:
            return self.hand_out(region, partial(super().run, name, inputs, count, dtype, **choices))
        self.made = []
        out = super().run(name, inputs, count, dtype, **choices)
        self.saved.setdefault(region, []).append(self.made)
        self.made = None
        self.first_product = self.first_product or len(self.events)
        return out

    def hand_out(self, region: Region, run: Callable[[], Value]) -> Value:
        """Run an operation on the storages that its first run left, unless the second run stops before it."""
        self.given = list(self.saved[region][0])
        try:
            return run()
        finally:
            if not self.given:
                self.saved[region].pop(0)
            self.given = []

    def allocate(self, num_bytes):
        """A new block, or a kept one."""
        if self.given:
            return self.given.pop(0)
        storage = super().allocate(num_bytes)
        if self.made is not None:
            self.made.append(self.hold(storage))
        return storage

    def run_again(self, region):
        """Run a region once more. What a policy kept and this run did not reach stays until the region is done."""
        self.region_again, self.num_linears = region, 0
        super().run_again(region)
        self.region_again = None
        unused = [storage for storages in self.saved.pop(region, []) for storage in storages]
        region.arguments += tuple(Value(0, "float32", storage) for storage in unused)

    def checkpoint(self, run, *arguments):
        """A region; its policy counts from its start."""
        self.num_linears = 0
        return super().checkpoint(run, *arguments)

    def _stop_if_complete(self):
        if self.strategy.stops_early:
            super()._stop_if_complete()


class StrategySchedule(Schedule):
    """The forward with its blocks in the strategy's regions."""

    def blocks(self, x: Value, strategy: Strategy) -> Value:
        """All blocks; drops x."""
        for numbers, is_run_again in strategy.regions(self.model.num_layers):
            if not is_run_again:
                for _ in numbers:
                    x = self.block(x)
                continue
            y = self.tape.checkpoint(partial(self.in_turn, len(numbers)), x, *self.tables.values())
            self.tape.drop(x)
            x = y
        return x

    def in_turn(self, num_blocks: int, x: Value, *_: Value) -> Value:
        """Blocks behind one another; leaves x to the caller."""
        for number in range(num_blocks):
            self.add_parameters(block_parameters(self.model))
            y = self.two_branches(x)
            if number:
                self.tape.drop(x)
            x = y
        return x


@dataclass(frozen=True, kw_only=True)
class PeakPrediction:
    """The highest bytes of two training steps: in tensors and workspaces, and in segments of the allocator."""

    allocated_bytes: int
    reserved_bytes: int


def predict_peak(
    setup: TrainingSetup,
    strategy: Strategy,
    *,
    room_bytes: int | None = None,
    outside_bytes: int = 0,
    config: AllocatorConfig | None = None,
    compute_capability: tuple[int, int] = (8, 0),
    steps: int = 2,
) -> PeakPrediction:
    """Peak of ``steps`` training steps on a CUDA card, cuBLAS's workspaces included, its context not.

    With ``room_bytes`` the allocator runs on a card of so many, of which ``outside_bytes`` are others'. It gives
    unused segments back before it asks for more than the rest, as PyTorch's does: a smaller card makes it tidy.
    An expandable segment has addresses for 9/8 of the card, so that the two are not the same as their difference.

    Raises: OutOfMemory: the room does not suffice. ValueError: a strategy that has no formula here (reentrant,
    offload), a CPU, several micro-batches.

    >>> from memkit import TrainingSetup, models, recipes, strategies
    >>> setup = TrainingSetup(model=models.LLAMA_32_1B, precision=recipes.PURE_BF16, seq_len=4096)
    >>> for strategy in (strategies.NONE, strategies.FULL):
    ...     print(strategy.name, predict_peak(setup, strategy).allocated_bytes)
    none 16669291520
    full 12380426240
    """
    as_kind("setup", setup, TrainingSetup)
    as_kind("strategy", strategy, Strategy)
    if strategy.is_reentrant or strategy.scope == "host":
        raise ValueError(f"strategy {strategy.name!r} has no formula for its peak; trace it")
    if setup.device != "cuda" or setup.grad_accum_steps != 1:
        raise ValueError(f"device={setup.device!r}, grad_accum_steps={setup.grad_accum_steps}: allowed are 'cuda', 1")
    player = _Player(CachingAllocator(config, Driver(room_bytes, outside_bytes)))
    workspace = workspace_bytes(compute_capability)
    for _, num_bytes in initial_events(setup):
        player.change(num_bytes)
    events, first_products = micro_batch_events(setup, strategy)
    for step in range(steps):
        for position, (storage, sign) in enumerate(events):
            if step == 0 and position in first_products:
                player.change(workspace)
            player.play(storage, sign)
        for _, num_bytes in state_events(setup) if step == 0 else ():
            player.change(num_bytes)
        for _, num_bytes in step_events(setup):
            player.change(num_bytes, is_temporary=True)
        player.free_gradients()
    peak = player.allocator.peak
    return PeakPrediction(allocated_bytes=peak["allocated"], reserved_bytes=peak["reserved"])


def micro_batch_events(
    setup: TrainingSetup, strategy: Strategy
) -> tuple[list[tuple[Storage, int]], tuple[int, int]]:
    """Births and frees of one forward and backward in order; what is not freed is a gradient.

    With them the positions after the first matrix product of the forward and of the backward, where cuBLAS
    takes its workspaces: the threads of the two have one each.
    """
    tape = StrategyTape(setup, strategy)
    recomputation = "selective" if strategy.scope == "core" else "none"
    schedule = StrategySchedule(replace(setup, recomputation=recomputation), tape)
    loss = schedule.loss(schedule.blocks(schedule.embed(), strategy))
    tape.forget_casts(list(tape.weight_casts))
    schedule.end_forward()
    backward = Backward(tape, loss, accumulates=False)
    head = max(number for number, operation in enumerate(tape.operations) if operation.name == LINEAR)
    backward.read(tape.operations[head + 1 :])
    first_products = tape.first_product, len(tape.events) + 1
    backward.read(tape.operations[: head + 1])
    backward.end()
    tape.drop(loss)
    return tape.events, first_products


class _Player:
    """Plays events on an allocator and remembers where each block lies."""

    def __init__(self, allocator: CachingAllocator):
        self.allocator = allocator
        self.addresses: dict[Storage, int] = {}
        self.temporaries: list[tuple[int, int]] = []  # bytes, address

    def play(self, storage: Storage, sign: int) -> None:
        """One birth or free of the tape."""
        if sign > 0:
            self.addresses[storage] = self.allocator.malloc(storage.num_bytes)
        else:
            self.allocator.free(self.addresses.pop(storage))

    def change(self, num_bytes: int, *, is_temporary: bool = False) -> None:
        """A block that stays; or one of the optimizer's, whose frees may name several blocks by their sum."""
        if num_bytes > 0:
            address = self.allocator.malloc(num_bytes)
            if is_temporary:
                self.temporaries.append((num_bytes, address))
        elif num_bytes < 0:
            freed = next(([block] for block in self.temporaries if block[0] == -num_bytes), list(self.temporaries))
            for block in freed:
                self.temporaries.remove(block)
                self.allocator.free(block[1])

    def free_gradients(self) -> None:
        """``zero_grad``: what the micro-batch left is freed."""
        for address in self.addresses.values():
            self.allocator.free(address)
        self.addresses.clear()
