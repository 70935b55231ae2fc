"""The exercises of chapter 07: reading memory and running out of it."""

import functools
import inspect
import math
import re
import weakref
from itertools import groupby
from numbers import Real

import torch

from book.exercises import ChoiceExercise, FunctionExercise, JudgedExercise, NumberExercise
from book.exercises.slips import unit_slip
from book.small_programs import ragged_build
from memkit import models
from memkit.recipes import AUTOCAST_BF16
from memkit.setup import TrainingSetup
from memkit.units import GIB, KIB, MIB, format_bytes
from stepscope.allocator.caching import AllocatorConfig
from stepscope.allocator.replay import replay_trace
from stepscope.allocator.snapshots import predicted_snapshot
from stepscope.small_card import SimulatedCard
from stepscope.tracing.trace import trace_script

# 7.3


def segment_bytes(n: int) -> int:
    """What the driver is asked for when no cached block fits."""
    if n <= MIB:
        return 2 * MIB
    if n < 10 * MIB:
        return 20 * MIB
    return -(-n // (2 * MIB)) * (2 * MIB)


# 7.4 A validation loop, run on a played card


def validate(model, batches):
    total = 0.0
    with torch.no_grad():
        for x in batches:
            total += model(x).square().mean().item()
    return total / len(batches)


ROWS = 256


def judge_validate(answer) -> str | None:
    """Run the loop on 2 and on 12 batches of a played card; what grows is told by its size."""
    torch.manual_seed(0)
    layers = [part for _ in range(4) for part in (torch.nn.Linear(512, 512), torch.nn.GELU())]
    model, peaks, seen = torch.nn.Sequential(*layers, torch.nn.Linear(512, 16)), [], []
    model.register_forward_pre_hook(lambda module, inputs: seen.append(len(inputs[0])))
    for count in (2, 12):
        with SimulatedCard(4 * GIB) as card, torch.enable_grad():
            batches = [torch.randn(ROWS, 512) for _ in range(count)]
            wanted = validate(model, batches)
            before, seen[:] = card.allocated_bytes, ()
            card.reset_peak()
            given = answer(model, batches)
            can_train = torch.is_grad_enabled() and all(p.requires_grad for p in model.parameters())
            peaks.append(card.peak_allocated_bytes - before)
        is_tensor = isinstance(given, torch.Tensor) and given.numel() == 1
        given = given.item() if is_tensor else given
        if not isinstance(given, Real):
            return f"You returned a {type(given).__name__}. Return a number, the mean loss."
        if any(parameter.grad is not None for parameter in model.parameters()):
            return "You ran a backward: now the gradients are on the card too. Validation needs no gradient."
        if math.isclose(given, wanted * count, rel_tol=1e-4):
            return f"That is the sum of the losses, {given:.4f}. The mean is asked for: divide by how many there are."
        if not can_train:
            return "You left gradients switched off: after this loop nothing trains any more. Use with torch.no_grad()."
        if not math.isclose(given, wanted, rel_tol=1e-4):
            if math.isclose(given, validate(model, batches[-1:]), rel_tol=1e-4):
                return "That is the loss of the last batch alone. The mean of all is asked for."
            return f"The mean loss of these batches is {wanted:.4g}; yours is {given:.4g}."
        if max(seen, default=0) > ROWS:
            return f"You put {max(seen):,} rows through the model at once: all batches in one forward. Take one by one."
    grows = _growth(peaks)
    if is_tensor:
        tensor = "You returned a tensor: whoever logs it keeps a block on the card. Return a number, with .item()."
        return f"{grows} And: {tensor}" if grows else tensor
    return grows


def _growth(peaks: list[int]) -> str | None:
    """What a loop keeps, from its peaks above the batches for 2 and for 12 of them."""
    hidden_bytes, output_bytes, loss_bytes = ROWS * 512 * 4, ROWS * 16 * 4, 512
    per_batch = (peaks[1] - peaks[0]) // 10
    grows = f"Memory grows by {format_bytes(per_batch)} per batch: "
    if per_batch > 4 * hidden_bytes:
        return grows + "you keep the graph of every batch, and with it what its forward saved."
    if per_batch == loss_bytes:
        return (
            grows
            + "one block of the smallest size. You keep every loss as a tensor; .item() reads the number."
        )
    if per_batch == output_bytes:
        return grows + "you keep one output per batch."
    if per_batch > 0:
        return grows + "something is kept. From its size I cannot tell what."
    if peaks[0] > 4 * hidden_bytes:
        return "It does not grow, but each forward keeps tensors for a backward that never comes. Use torch.no_grad()."
    return None


# 7.5 A step that may run out of memory


def judge_guarded(answer) -> str | None:
    held, alive_at_recovery = [], []

    def fails():
        activations = torch.ones(1000)
        held.append(weakref.ref(activations))
        raise torch.OutOfMemoryError("CUDA out of memory.")

    def recover():
        alive_at_recovery.append(held[-1]() is not None if held else False)

    if answer(lambda: None, recover) is not True:
        return "A step that works should give True."
    if alive_at_recovery:
        return "You recovered after a step that works; recover only after a failure."
    if answer(fails, recover) is not False:
        return "A step that runs out of memory should give False."
    if not alive_at_recovery:
        return "recover() was not called after the failure."
    if any(alive_at_recovery):
        return "When recover() ran, the step's tensors were still in memory: the error and its traceback hold them."
    for error, words in PASSES_THROUGH.items():
        recovered = len(alive_at_recovery)

        def breaks(error=error):
            raise error("not a lack of memory")

        try:
            answer(breaks, recover)
        except error:
            if len(alive_at_recovery) > recovered:
                return "You recovered after an error that is no lack of memory: a finally runs after any of them."
            continue
        return f"{words} Catch torch.OutOfMemoryError and nothing else."
    return None


PASSES_THROUGH = {
    RuntimeError: "A shape mismatch of the step, which is a RuntimeError too, disappeared.",
    ValueError: "A ValueError of the step disappeared.",
    KeyboardInterrupt: "Ctrl-C disappeared: a bare except catches even that.",
}


# 7.6 An unknown snapshot


class Classifier(torch.nn.Module):
    """A model with something wrong in it."""

    def __init__(self):
        super().__init__()
        self.encode, self.decide = torch.nn.Linear(1024, 4096), torch.nn.Linear(4096, 1024)
        self.history = []

    def forward(self, x):
        wide = self.features(x)
        self.history.append(self.statistics(wide))
        return self.decide(wide)

    def features(self, x):
        return self.encode(x).relu()

    def statistics(self, wide):
        return wide.detach().abs()


def _mystery_build():
    model = Classifier().to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        model(torch.randn(256, 1024, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@functools.cache
def mystery_snapshot() -> dict:
    """A memory snapshot of five steps of some program, in the format of ``torch.cuda.memory._snapshot()``."""
    return predicted_snapshot(replay_trace(trace_script(_mystery_build, steps=5)))


LEAK_BYTES = 256 * 4096 * 4


def judge_mystery(answer) -> str | None:
    if not (isinstance(answer, tuple | list) and len(answer) == 2):
        return "The answer is a pair: the name of the function, and the bytes it leaves behind per step."
    name, num_bytes = answer
    if isinstance(name, Real) and isinstance(num_bytes, str):
        return "The pair is turned round: the name of the function first, then the bytes."
    if at := re.search(r"chapter_07\.py:(\d+)", str(name)):
        lines, first = inspect.getsourcelines(Classifier.statistics)
        if first <= int(at[1]) < first + len(lines):
            return "That is the line whose blocks are never freed. Give the name of the function that it is in."
    name = str(name).removesuffix("()").rpartition(".")[2]
    if name in ("encode", "features", "forward"):
        return f"Much is made in {name}, and freed again in each step. Which line's blocks are never freed?"
    if name == "step":
        return "Optimizer states are made there, in step 1 only. Look for blocks that are left in every step."
    if name != "statistics":
        return f"No line of the snapshot grows in {name!r}. Which blocks are made in each step, and never freed?"
    if num_bytes == 5 * LEAK_BYTES:
        return (
            "The place is right. These are the bytes of all five steps; the question is about one."
        )
    if isinstance(num_bytes, Real) and (slip := unit_slip([num_bytes], [LEAK_BYTES], "bytes")):
        return f"The place is right. {slip}"
    if num_bytes != LEAK_BYTES:
        return f"The place is right; {num_bytes!r} is not its bytes per step. A block of 256 by 4,096 float32 values."
    return None


# 7.7 A run with batches of many lengths

CARD_MIB, RESERVED_MIB = 1700, 1900
LENGTHS = (531, 354, 604, 866, 249, 274, 748, 296)


def small_llama() -> TrainingSetup:
    """The model and the micro-batch of section 7.6: a tiny Llama, autocast, stored scores."""
    return TrainingSetup(
        model=models.TINY_LLAMA, precision=AUTOCAST_BF16, micro_batch_size=8, attention="stored"
    )


def judge_order(answer) -> str | None:
    try:
        lengths = list(answer)
    except TypeError:
        return f"{answer!r} is no list of lengths."
    if sorted(lengths) != sorted(LENGTHS):
        return "These are not the eight lengths of the question; only the first place is yours to fill."
    if lengths == list(LENGTHS):
        return "This is the order of the question. It runs out of memory."
    if lengths[1:] != [length for length in LENGTHS if length != lengths[0]]:
        return "Move one length to the front, and leave the others in their order."
    trace = trace_script(ragged_build(small_llama(), lengths), steps=len(lengths))
    failure = replay_trace(trace, AllocatorConfig(), capacity_bytes=CARD_MIB * MIB).failure
    if failure is not None:
        phases = [
            phase for phase, _ in groupby(event.phase for event in trace.events[: failure.event])
        ]
        tokens = lengths[phases.count("zero_grad")]
        asked = format_bytes(failure.requested_bytes)
        return f"It fails in the batch of {tokens} tokens, asking for {asked}: no cached block is large enough."
    peak = replay_trace(trace, AllocatorConfig()).peak_reserved_bytes
    if peak > RESERVED_MIB * MIB:
        more = f"reserves {format_bytes(peak)}, over {format_bytes(RESERVED_MIB * MIB)}"
        return f"It succeeds, by giving its cache back. Without a limit it {more}."
    return None


EXERCISES = (
    ChoiceExercise(
        id="7.1",
        right="b",
        because="The pool keeps freed blocks; nvidia-smi shows the pool and the context.",
        table="""
        a :: A leak would show in memory_allocated: it counts every block in use.
        c :: The context takes a few hundred MiB, not 26.5 GiB.
        d :: Fragmentation is free memory of no use to a request. None has failed.
        """,
    ),
    NumberExercise(
        id="7.2",
        letters={
            "capacity": 23.64,
            "in_use": 23.33,
            "allocated": 21.90,
            "cached": 0.61,
            "outside": "in_use - allocated - cached",
        },
        formula="outside",
        unit="GiB",
        tolerance=0.02,
        because="In use, less allocated, less cached: context and libraries.",
        table="""
        in_use - allocated :: You left the cache in. It is reserved by PyTorch, so inside the allocator.
        round(1024 * outside, 2) :: That is MiB. Give GiB.
        round(1000 * outside, 2) :: That is MiB, at 1,000 a GiB. Give GiB.
        round(outside * 2**30) :: That is bytes. Give GiB.
        round(outside * 2**30 / 10**9, 3) :: That is GB of 10⁹ bytes. Give GiB.
        in_use - allocated + cached :: You added the cache. It lies inside the allocator: take it away too.
        cached :: That is the cache. It is reserved by PyTorch, so inside the allocator.
        0.8 :: A little too small: the parts are given to a hundredth, keep two digits.
        allocated + cached :: That is what lies inside the allocator. What is the rest?
        capacity - allocated :: That is all that no tensor has: free, cached and outside. Which part is outside?
        capacity - in_use :: That is what is free on the card, for any process.
        capacity - allocated - cached :: That counts what is free on the card too. Start from what this process has in
            use.
        """,
    ),
    FunctionExercise(
        id="7.3",
        letters={"MIB": MIB, "segment": segment_bytes},
        right=segment_bytes,
        probes=tuple(
            (size,)
            for size in (
                4,
                MIB,
                MIB + 1,
                3 * MIB,
                10 * MIB - KIB,
                10 * MIB,
                14 * MIB,
                24 * MIB + KIB,
                25 * MIB + 1,
            )
        ),
        because="Small requests share segments of 2 MiB, middling ones of 20 MiB, large ones have their own.",
        table="""
        -(-n // 512) * 512 :: That is the block. The driver is asked for a segment, of 2 MiB at least.
        -(-n // (2 * MIB)) * 2 * MIB ; segment(n) if n > 10 * MIB else 2 * MIB :: More than 1 and less than 10 MiB are
            asked for in segments of 20 MiB.
        2 * MIB if n <= MIB else 20 * MIB :: From 10 MiB on a request gets a segment of its own, rounded up to 2 MiB.
        20 * MIB if n == 10 * MIB else segment(n) :: 10 MiB itself no longer shares a segment of 20 MiB.
        segment(n) if n < 10 * MIB else n // (2 * MIB) * (2 * MIB) :: You rounded large requests down: the segment
            would be smaller than what it has to hold.
        segment(n) if n < 10 * MIB else n :: Large requests are rounded up to a multiple of 2 MiB.
        max(20 * MIB, segment(n)) if n > MIB else 2 * MIB :: 20 MiB are for requests below 10 MiB. One of 10 to 20 MiB
            gets no more than it needs.
        segment(n) // MIB :: That is MiB. The driver is asked in bytes.
        segment(n * MIB) // MIB ; segment(n * MIB) :: You read the request as MiB. num_bytes is in bytes.
        max(20 * MIB, segment(n)) if n < 10 * MIB else segment(n) :: Requests up to 1 MiB have a pool of their own,
            with segments of 2 MiB.
        segment(n) if n < 10 * MIB else -(-n // MIB) * MIB :: Large requests are rounded up to a multiple of 2 MiB,
            not of 1.
        2 * MIB if n <= MIB else -(-n // (20 * MIB)) * 20 * MIB :: From 10 MiB on a segment is a multiple of 2 MiB,
            not of 20.
        n :: That is the request itself. The driver is asked for a segment, of 2 MiB at least.
        segment(n) if n < 10 * MIB else (n // (2 * MIB) + 1) * 2 * MIB :: You always add 2 MiB. A request that is a
            multiple of 2 MiB stays as it is.
        2 * 10**6 if n <= 10**6 else 20 * 10**6 if n < 10**7 else -(-n // (2 * 10**6)) * 2 * 10**6 :: You took 1 MiB
            for 1,000,000 bytes. It is 1,048,576.
        segment(n + (n == MIB)) :: One MiB itself still belongs to the small pool.
        """,
    ),
    JudgedExercise(
        id="7.4",
        judge=judge_validate,
        because="Its peak is the same for 2 and for 12 batches, and it returns a number.",
    ),
    JudgedExercise(
        id="7.5",
        judge=judge_guarded,
        because="When the handler is left, the error, its traceback and the step's tensors are gone.",
    ),
    JudgedExercise(
        id="7.6",
        judge=judge_mystery,
        because="A list in the model keeps it; the snapshot names the line that made it, and no one else.",
    ),
    JudgedExercise(
        id="7.7",
        judge=judge_order,
        because="Large blocks come first, and later requests are cut from them. And step 1 has no states yet.",
    ),
    ChoiceExercise(
        id="7.8",
        right="c",
        because="A flat floor rules out growth, and equal runs have equal data.",
        table="""
        a :: A leak raises the floor, and here it is flat.
        b :: The states appear in step 1 and stay; they would show in step 2.
        d :: Retries would have risen before the end, and here there were none.
        """,
    ),
)
