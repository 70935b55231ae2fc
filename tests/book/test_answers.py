"""Answers to the exercises that readers wrote down before they saw the records.

Right answers in other words than the solution's, rounded ones, slips of unit, and code that is wrong in ways that no
record lists: each gets the words that it must get.
"""

import inspect
import struct
from math import ceil, floor, sqrt

import numpy as np
import pytest
import torch
from wrong_answers.chapter_04 import keeps

from book.exercises import check
from book.exercises.chapter_07 import LEAK_BYTES, LENGTHS, Classifier
from memkit.fit import planned_room, training_workspace_bytes
from memkit.measure import measure_memory
from memkit.models import GPT2_LARGE, TINY_GPT2
from memkit.program.transformer import training_build
from memkit.recipes import PURE_BF16, OptimizerConfig
from memkit.recomputation import cheapest_that_fits
from memkit.setup import TrainingSetup
from memkit.units import GIB, MIB


def by_torch(bits):
    narrow = (
        torch.tensor([bits])
        .to(torch.int32)
        .view(torch.float32)
        .to(torch.bfloat16)
        .view(torch.int16)
    )
    return int(narrow) & 0xFFFF


def to_even(bits):
    low, high = bits & 0xFFFF, bits >> 16
    return high + (low > 0x8000 or (low == 0x8000 and high % 2 == 1))


def own_generator(x, gap, rng):
    below = np.floor(x / gap)
    return (below + (np.random.default_rng(0).random(x.shape) < x / gap - below)) * gap


def one_chance_a_row(x, gap, rng):
    below = np.floor(x / gap)
    return (below + (rng.random(len(x)) < x / gap - below)) * gap


def one_chance_for_all(x, gap, rng):
    below = np.floor(x / gap)
    return (below + (rng.random(x.shape) < np.mean(x / gap - below))) * gap


def one_by_one(x, gap, rng):
    below = [floor(value / gap) for value in x]
    up = [rng.random() < value / gap - low for value, low in zip(x, below, strict=True)]
    return (np.array(below) + up) * gap


def returns_the_total(model, batches):
    total = 0.0
    for x in batches:
        total += model(x).square().mean()
    return total / len(batches)


def kahan(xs):
    mean, lost = torch.zeros(2, dtype=torch.bfloat16)
    for x in xs:
        change = 0.001 * (x - mean) - lost
        total = mean + change
        lost, mean = (total - mean) - change, total
    return mean


def centred_noise(x):
    chance = torch.randint(-(2**15), 2**15, x.shape, dtype=torch.int32)
    return ((x.view(torch.int32) + chance) & -65536).view(torch.float32).bfloat16()


def e5m2(x):
    factor = 57344 / x.abs().max()
    return (x * factor).clamp(-57344, 57344).to(torch.float8_e5m2).float() / factor


def recovers_in_finally(step, recover):
    fine = False
    try:
        step()
        fine = True
    except torch.OutOfMemoryError:
        pass
    finally:
        if not fine:
            recover()
    return fine


def by_inference_mode(model, batches):
    with torch.inference_mode():
        return sum(model(x).square().mean().item() for x in batches) / len(batches)


@torch.no_grad()
def by_detached_sum(model, batches):
    total = torch.zeros(())
    for x in batches:
        total += model(x).square().mean()
    return total.item() / len(batches)


@torch.no_grad()
def keeps_hidden(model, batches):
    kept = [(model(x), x * 2) for x in batches]
    return sum(output.square().mean().item() for output, _ in kept) / len(kept)


def freezes(model, batches):
    model.requires_grad_(False)
    return sum(model(x).square().mean().item() for x in batches) / len(batches)


def switches_gradients_off(model, batches):
    torch.set_grad_enabled(False)
    return sum(model(x).square().mean().item() for x in batches) / len(batches)


@torch.no_grad()
def of_the_last_batch(model, batches):
    for x in batches:
        loss = model(x).square().mean().item()
    return loss


@torch.no_grad()
def as_a_list(model, batches):
    return [model(x).square().mean().item() for x in batches]


def with_else(step, recover):
    try:
        step()
    except torch.cuda.OutOfMemoryError:
        pass
    else:
        return True
    recover()
    return False


def by_its_words(step, recover):
    failed = False
    try:
        step()
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise
        failed = True
    if failed:
        recover()
    return not failed


LEAK_LINE = inspect.getsourcelines(Classifier.statistics)[1] + 1
RIGHT = [
    ("0.1", 7e8),
    ("0.1", 667.57 * 2**20),
    ("1.6", torch.tensor(37)),
    ("2.3", 256),
    ("2.4", to_even),
    ("2.5", kahan),
    ("2.8", lambda x, gap, rng: np.floor(x / gap + rng.random(x.shape)) * gap),
    ("3.1", 22.4 * 2**30),
    ("4.2", 2.1e9),
    ("4.2", 2.15e9),
    ("4.3", lambda L, g, block, inputs: -(-L // g) * inputs + g * block),
    ("4.4", [torch.ops.aten.addmm.default, "attention"]),
    (
        "4.4",
        [torch.ops.aten.addmm.default, torch.ops.aten._scaled_dot_product_flash_attention.default],
    ),
    ("4.4", ("attention", "addmm")),
    ("4.4", {"attention", "addmm"}),
    ("4.6", keeps(1, 3, 5, 7)),
    ("4.6", keeps(5)),
    ("5.2", 13.4e9),
    ("5.3", lambda counts: (count / sum(counts) for count in counts)),
    ("5.4", lambda n, N: [1 / torch.tensor(min(N, n - i)) for i in range(0, n, N)]),
    (
        "5.5",
        lambda own, of_rank, of_all, ranks: (
            np.float32(own) * np.float32(ranks) / np.float32(of_all)
        ),
    ),
    ("5.7", (2, 64 / 2)),
    ("5.7", (np.int64(2), np.int64(32))),
    ("6.6", 28_700),
    ("7.2", 23.64 - 0.31 - 21.90 - 0.61),
    (
        "7.3",
        lambda n: (
            2 * MIB
            if n <= MIB
            else 20 * MIB
            if n < 10 * MIB
            else (n + 2 * MIB - 1) // (2 * MIB) * 2 * MIB
        ),
    ),
    ("7.4", by_inference_mode),
    ("7.4", by_detached_sum),
    ("7.5", with_else),
    ("7.5", by_its_words),
    ("7.6", ["statistics", LEAK_BYTES]),
    ("7.6", ("Classifier.statistics", 4_194_304)),
    ("7.6", ("statistics()", 4 * MIB)),
    ("9.8", lambda p, c, k: c - k - int((c - k) / 100) - p),
    ("12.5", lambda height, width, frames: -(-frames // 4) * (height // 16) * (width // 16)),
]
TOLD = [
    ("0.1", 667.6, "the number of MiB"),
    ("1.2", 53.9, "the number of GB"),
    ("1.3", 6, "6 is an int; the answer is a function"),
    (
        "1.3",
        lambda h, L, v, k, f: 2 * v * h + L * (3 * h * h + h * k + 3 * h * f + 2 * h) + h,
        "of width k. Two",
    ),
    (
        "1.3",
        lambda h, L, v, k, f: 2 * v * h + L * (2 * h * h + 2 * k * k + 3 * h * f + 2 * h) + h,
        "h by k",
    ),
    (
        "1.3",
        lambda h, L, v, k, f: 2 * v * h + L * (2 * h * h + 2 * h * k + 3 * h * f + 3 * h),
        "after the blocks",
    ),
    ("1.3", lambda h, L, v, k, f: v * h + L * (12 * h * h + 13 * h) + 2 * h, "GPT-2's count"),
    (
        "1.3",
        lambda h, L, v, k, f: (
            4 * v * h + 2 * L * (2 * h * h + 2 * h * k + 3 * h * f + 2 * h) + 2 * h
        ),
        "twice the count",
    ),
    (
        "1.3",
        lambda h, L, v, k, f: 2 * v * h + L * (h * h + 3 * h * k + 3 * h * f + 2 * h) + h,
        "of width k",
    ),
    ("1.4", lambda b, s, h, a: 16 * s * b * h + a * b * s, "You counted values"),
    ("1.4", lambda b, s, h, a: 32 * s * b * h + 4 * b * s, "not 4bs"),
    ("1.4", lambda b, s, h, a: 32 * s * b * h + 4 * a * s, "not 4as"),
    ("1.4", lambda b, s, h, a: 28 * s * b * h + 4 * a * b * s, "inputs of the two norms"),
    ("1.4", lambda b, s, h, a: 32 * s * b * h + 4 * a * b * s + 16 * b * s, "statistics"),
    ("1.4", lambda b, s, h, a: 32 * s * b * h + 2 * a * b * s, "4 bytes, not 2"),
    ("1.4", lambda b, s, h, a: 32 * s * b * h + 4 * a * b * s * s, "not per pair"),
    (
        "1.4",
        lambda b, s, h, a: 16 * s * b * h + 4 * a * b * s,
        "all tensors, without their 2 bytes a value",
    ),
    ("1.6", 38, "may be the mistake: You took the label for GiB"),
    ("1.6", 38, "You left 2·10⁹ bytes"),
    ("1.6", 14, "the answer in float32, the default"),
    ("1.6", 36, "try one more"),
    ("2.4", lambda bits: bits + 0x7FFF + (bits >> 16 & 1), "did not cut"),
    ("2.4", lambda bits: (bits + 0xFFFF) >> 16, "round everything up"),
    ("2.4", by_torch, "uses torch"),
    (
        "2.4",
        lambda bits: (
            struct.unpack("I", struct.pack("f", struct.unpack("f", struct.pack("I", bits))[0]))[0]
            >> 16
        ),
        "uses struct",
    ),
    ("2.4", lambda bits: round(bits / 65536), "uses /"),
    ("2.4", lambda bits: to_even(bits) << 16, "left 32"),
    ("2.4", lambda bits: (bits + 0x8000 - (bits >> 16 & 1)) >> 16, "ties go to the odd code"),
    ("2.5", 0.8648, "0.8648 is a float; the answer is a function"),
    ("2.5", lambda xs: xs, "The result has"),
    ("2.8", own_generator, "Another rng gives the same values"),
    ("2.8", one_chance_a_row, "not for a matrix"),
    ("2.8", one_chance_for_all, "a chance of its own"),
    ("2.8", one_by_one, "not for a matrix"),
    (
        "3.7",
        lambda s, c, o, i: (s // 2, 0) if o else (2 * s, 0) if c + 1 == i else (s, c + 1),
        "// rounds 1 / 2 down to 0",
    ),
    (
        "3.7",
        lambda s, c, o, i: (max(s / 2, 1.0), 0) if o else (2 * s, 0) if c + 1 == i else (s, c + 1),
        "no lower bound",
    ),
    (
        "3.7",
        lambda s, c, o, i: (
            (s / 2, 0) if o else (min(2 * s, 2**24), 0) if c + 1 == i else (s, c + 1)
        ),
        "no upper bound",
    ),
    (
        "3.7",
        lambda s, c, o, i: (s / 3, 0) if o else (2 * s, 0) if c + 1 == i else (s, c + 1),
        "That is not right. I cannot tell",
    ),
    ("3.8", centred_noise, "below 0 too"),
    ("4.2", 2, "GiB"),
    ("4.2", 2048, "MiB"),
    ("4.2", 2.147, "number of GB"),
    (
        "4.3",
        lambda L, g, block, inputs: ceil(L / g) * inputs + g * (block + inputs),
        "its input already",
    ),
    ("4.3", lambda L, g, block, inputs: L / g * inputs + g * block, "5.14"),
    ("4.3", lambda L, g, block, inputs: round(L / g) * inputs + g * block, "round the number"),
    (
        "4.3",
        lambda L, g, block, inputs: g * inputs + L / g * block,
        "took g for the number of groups",
    ),
    ("4.3", lambda L, g, block, inputs: 2 * sqrt(L) * block, "Chen's smallest sum"),
    ("4.3", lambda L, g, block, inputs: L * inputs + g * block, "input for every layer"),
    ("4.3", lambda L, g: L / g + g, "TypeError"),
    ("4.4", ["adm", "attention"], "did you mean addmm?"),
    ("4.4", [torch.ops.aten.addmm.default], "These still run again"),
    ("4.4", [3, "mm"], "names in quotes"),
    ("4.6", keeps(1, 5, 6), "keeps 20.1 sbh"),
    ("5.3", lambda counts: [1 / c / sum(1 / d for d in counts) for c in counts], "Upside down"),
    ("5.3", lambda counts: [0.5 for _ in counts], "That is not right. I cannot tell"),
    ("5.4", lambda n, N: [1 / N] * (n // N) + [n % N / N], "short window's share of a full one"),
    ("5.7", (2.5, 25.6), "not a pair of whole numbers"),
    ("6.4", lambda a, b: e5m2(a) @ e5m2(b).t(), "two mantissa bits are E5M2's"),
    ("7.2", 317.44, ""),
    (
        "7.3",
        lambda n: (
            2 * MIB if n <= MIB else 20 * MIB if n < 10 * MIB else (n // (2 * MIB) + 1) * 2 * MIB
        ),
        "You always add 2 MiB",
    ),
    (
        "7.3",
        lambda n: (
            2 * MIB if n <= MIB else 20 * MIB if n <= 10 * MIB else -(-n // (2 * MIB)) * 2 * MIB
        ),
        "10 MiB itself",
    ),
    (
        "7.3",
        lambda n: (
            2 * MIB if n < MIB else 20 * MIB if n < 10 * MIB else -(-n // (2 * MIB)) * 2 * MIB
        ),
        "One MiB itself",
    ),
    (
        "7.3",
        lambda n: 2 if n <= MIB else 20 if n < 10 * MIB else -(-n // (2 * MIB)) * 2,
        "That is MiB",
    ),
    ("7.3", lambda n: n, "the request itself"),
    (
        "7.3",
        lambda n: (
            2 * MIB if n <= MIB else 20 * MIB if n < 10 * MIB else round(n / (2 * MIB)) * 2 * MIB
        ),
        "Too small by",
    ),
    ("7.4", returns_the_total, "with it what its forward saved. And: You"),
    ("7.4", keeps_hidden, "I cannot tell what"),
    ("7.4", as_a_list, "You returned a list"),
    ("7.4", freezes, "You left gradients switched off"),
    ("7.4", switches_gradients_off, "You left gradients switched off"),
    ("7.4", of_the_last_batch, "the last batch alone"),
    ("7.4", lambda model, batches: 0.0, "The mean loss"),
    ("7.5", recovers_in_finally, "a finally runs after any"),
    ("7.5", lambda step, recover: step() or True, "raised OutOfMemoryError"),
    ("7.6", (f"chapter_07.py:{LEAK_LINE}", LEAK_BYTES), "the name of the function"),
    ("9.3", 92_000_000, "one digit more"),
    ("9.3", 91.6, "the number of MB."),
    ("9.3", 87.3, "the number of MiB."),
    ("10.1", 6_800_000, "one digit more"),
    ("10.1", 6.82, "the number of millions."),
    ("10.7", 91.39, "The scales make it 4.127"),
    ("10.7", 91.4, "Two digits after the point"),
    (
        "11.3",
        lambda P, stage, n: (
            (2 / n if stage >= 2 else 2) * P
            + (4 / n if stage == 3 else 4) * P
            + (12 / n if stage else 12) * P
        ),
        "Gradients have 4 bytes here",
    ),
    ("9.8", lambda p, c, k: (c - k) - ceil((c - k) / 100) - p, "rounds the hundredth up"),
    ("9.8", lambda p, c, k: c - k - (c - k) / 100 - p, "A byte has no parts"),
    ("9.8", lambda p, c, k: c - k - (c - k) // 100 - p + 1000, ""),
]


@pytest.mark.parametrize("exercise_id, answer", RIGHT)
def test_a_right_answer_is_right(exercise_id, answer):
    assert check(exercise_id, answer).status == "right", check(exercise_id, answer)


@pytest.mark.parametrize("exercise_id, answer, words", TOLD)
def test_an_answer_gets_its_words(exercise_id, answer, words):
    feedback = check(exercise_id, answer)
    assert feedback.status == "not yet" and words in feedback.text, feedback
    assert torch.is_grad_enabled()


def test_twice_the_batch_is_what_the_step_takes():
    """Exercise 0.2 adds rounded MiB; here the real step is measured."""
    setup = TrainingSetup(model=TINY_GPT2, micro_batch_size=4, seq_len=128, device="cpu")
    measured = measure_memory(training_build(setup), device="cpu").peak_bytes / MIB
    assert check("0.2", measured).status == "right"


def test_the_planner_answers_what_4_5_says():
    fused = OptimizerConfig(implementation="fused")
    setup = TrainingSetup(
        model=GPT2_LARGE, precision=PURE_BF16, micro_batch_size=8, optimizer=fused
    )
    said = check("4.5", "c").text
    rooms = [planned_room(gib * GIB) - training_workspace_bytes((8, 0)) for gib in (14, 16)]
    names = [cheapest_that_fits(setup, room).name for room in rooms]
    assert said == f"On 14 GiB it answers {names[0]!r}, on 16 GiB {names[1]!r}."


@pytest.mark.parametrize("front", sorted(LENGTHS))
def test_only_the_longest_batch_first_is_right(front):
    feedback = check("7.7", [front, *(length for length in LENGTHS if length != front)])
    assert (feedback.status == "right") == (front == max(LENGTHS)), feedback
