"""Answers that new readers gave to the exercises of chapters 04 and 07, before they saw what the check knows.

Right answers in other words than the solution's, rounded ones, slips of unit, wrong types, and code that is wrong
in ways that no record lists: each has the status and the words that it must get.
"""

import pytest
import torch
from torch.utils.checkpoint import CheckpointPolicy

from book.exercises import check
from memkit.fitting.plans import plan_recomputation
from memkit.setup.models import GPT2_LARGE
from memkit.setup.recipes import PURE_BF16, OptimizerConfig
from memkit.setup.training import TrainingSetup
from memkit.units import GIB, MIB
from memkit.widgets import FrontierExplorer

ALL_MM = torch.ops.aten.mm.default


def keeps(*numbers):
    """A ``make_policy`` that saves attention, and of a block's seven linear layers those with these numbers."""

    def make_policy():
        count = 0

        def policy(ctx, op, *args, **kwargs):
            nonlocal count
            count += op is ALL_MM
            is_kept = "attention" in str(op) or (op is ALL_MM and count in numbers)
            return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

        return policy

    return make_policy


def policy_itself(ctx, op, *args, **kwargs):
    return CheckpointPolicy.MUST_SAVE


NUMBERS_AND_LETTERS = [
    ("4.1", 18, "right", "the 4 segments"),
    ("4.1", 18.0, "right", ""),
    ("4.1", 3, "not yet", "3 segments run again"),
    ("4.1", 24, "not yet", "never checkpointed"),
    ("4.1", 4, "not yet", "number of segments"),
    ("4.1", 6, "not yet", "one segment"),
    ("4.1", "18 layers", "not yet", "is a str"),
    ("4.2", 2 * GIB, "right", "2,147,483,648"),
    ("4.2", 2.1e9, "right", ""),
    ("4.2", 2.15e9, "right", ""),
    ("4.2", 2, "not yet", "GiB"),
    ("4.2", 2048, "not yet", "MiB"),
    ("4.2", 32 * 8192 * 4096, "not yet", "number of values"),
    ("4.2", 32 * 4 * 8192 * 4096, "not yet", "4 bytes a value"),
    ("4.2", 32 * 2 * 8192, "not yet", "hidden size"),
    ("4.2", 32 * 34 * 8192 * 4096, "not yet", "34 sbh"),
    ("4.5", "c", "right", "save every second product"),
    ("4.5", " C", "right", ""),
    ("4.5", "none", "not yet", "not one of a, b, c, d"),
    ("4.7", "b", "right", "no scores"),
    ("4.7", "B", "right", ""),
    ("4.7", 0.7, "not yet", "not one of"),
    ("7.1", "b", "right", "pool"),
    ("7.1", "B ", "right", ""),
    ("7.1", 26.5, "not yet", "not one of"),
    ("7.2", 0.82, "right", ""),
    ("7.2", 23.64 - 0.31 - 21.90 - 0.61, "right", ""),
    ("7.2", 0.8, "not yet", "small"),
    ("7.2", 1.43, "not yet", "left the cache in"),
    ("7.2", 840, "not yet", "MiB"),
    ("7.2", 0.88, "not yet", "GB"),
    ("7.2", 2.04, "not yet", "added the cache"),
    ("7.2", 22.51, "not yet", "inside the allocator"),
    ("7.2", 0.31, "not yet", "free on the card"),
    ("7.2", 317.44, "not yet", ""),
    ("7.8", "c", "right", "flat floor"),
    ("7.8", "C", "right", ""),
    ("7.8", 311, "not yet", "not one of"),
]


NUMBERS_AND_LETTERS += [
    ("4.2", 2.147, "not yet", "number of GB"),
    ("4.2", 32 * 32 * 8192 * 4096, "not yet", "GPT-2's block"),
    ("4.2", 2**31 / 8, "not yet", "1,024 tokens for 8,192"),
    ("7.2", 820, "not yet", "at 1,000 a GiB"),
    ("11.1", 25_000, "not yet", "rounds up"),
    ("11.1", 102_820, "not yet", "as Llama-3-8B keeps"),
    ("11.1", 205_640, "not yet", "counted bits"),
    ("11.1", "26k", "not yet", "is a str"),
    ("11.2", 56, "not yet", "there and back"),
    ("11.2", 0.0035, "not yet", "thousands of seconds"),
]


@pytest.mark.parametrize("exercise_id, answer, status, words", NUMBERS_AND_LETTERS)
def test_a_number_or_a_letter(exercise_id, answer, status, words):
    feedback = check(exercise_id, answer)
    assert (feedback.status, words in feedback.text) == (status, True), feedback


def test_the_planner_answers_what_4_5_says():
    fused = OptimizerConfig(implementation="fused")
    setup = TrainingSetup(model=GPT2_LARGE, precision=PURE_BF16, micro_batch_size=8, optimizer=fused)
    said = check("4.5", "c").text
    names = [plan_recomputation(setup, gib * GIB).chosen.setup.recomputation.name for gib in (14, 16)]
    assert said == f"On 14 GiB it answers {names[0]!r}, on 16 GiB {names[1]!r}."


def said_of(explorer, **settings) -> str:
    explorer.set(**settings)
    return " ".join(explorer.shown.words)


def test_the_frontier_explorer_shows_what_the_experiments_of_4_6_should_find():
    explorer = FrontierExplorer()
    for tokens, chosen in ((512, "none"), (1024, "save attention and products"), (2048, "save attention")):
        said = said_of(explorer, seq_len=tokens)
        assert f"{chosen}: peak" in said and ("It fits" in said or "It should fit" in said), said
    for tokens in (4096, 8192):
        said = said_of(explorer, seq_len=tokens)
        assert "It does not fit" in said or "It may just fit" in said, said
    said_of(explorer, seq_len=1024)
    for loser, winner in (("attention core", "save attention and products"), ("full, reentrant", "full")):
        assert f"It is not on the front: {winner} costs" in said_of(explorer, strategy=loser)
    said_of(explorer, model="Llama-3-8B", micro_batch_size=1, seq_len=8192)
    assert "It is not on the front: save attention costs" in said_of(explorer, strategy="√L groups")


FUNCTIONS = [
    ("4.3", lambda L, g, block, inputs: -(-L // g) * inputs + g * block, "right", ""),
    ("4.3", lambda L, g, block, inputs: (L + g - 1) // g * inputs + block * g, "right", ""),
    ("4.3", lambda L, g, block, inputs: L / g * inputs + g * block, "not yet", "5.14"),
    ("4.3", lambda L, g, block, inputs: round(L / g) * inputs + g * block, "not yet", "round the number"),
    ("4.3", lambda L, g, block, inputs: g * inputs + L / g * block, "not yet", ""),
    ("4.3", lambda L, g, block, inputs: L * inputs + g * block, "not yet", "input for every layer"),
    ("4.3", lambda L, g: L / g + g, "not yet", "TypeError"),
    ("4.4", ["addmm", "attention"], "right", ""),
    ("4.4", ("attention", "addmm"), "right", ""),
    ("4.4", {"attention", "addmm"}, "right", ""),
    ("4.4", "addmm", "not yet", "one name"),
    ("4.4", ["linear", "attention"], "not yet", "not one of mm, addmm"),
    ("4.4", [torch.ops.aten.addmm.default], "not yet", "These still run again"),
    ("4.4", [3, "mm"], "not yet", "names in quotes"),
    ("4.4", ["mm", "addmm", "attention", "gelu"], "not yet", "gelu"),
    ("4.6", keeps(1, 3, 5, 7), "right", "sbh a layer and"),
    ("4.6", keeps(1, 5, 6), "not yet", "keeps 20.1 sbh"),
    ("4.6", keeps(5), "right", "again"),
    ("4.6", keeps(), "not yet", "At most half may run again"),
    ("4.6", policy_itself, "not yet", "policy itself"),
    ("4.6", lambda: {ALL_MM}, "not yet", "returned no function"),
    ("4.6", keeps(1, 2, 3, 4, 5, 6, 7), "not yet", "The budget is 18"),
    ("7.3", lambda n: 2 * MIB if n <= MIB else 20 * MIB if n < 10 * MIB else (n + 2 * MIB - 1) // (2 * MIB) * 2 * MIB,
     "right", ""),
    ("7.3", lambda n: 2 * MIB if n <= MIB else 20 * MIB if n <= 10 * MIB else -(-n // (2 * MIB)) * 2 * MIB,
     "not yet", "10 MiB itself"),
    ("7.3", lambda n: 2 * MIB if n < MIB else 20 * MIB if n < 10 * MIB else -(-n // (2 * MIB)) * 2 * MIB,
     "not yet", "One MiB itself"),
    ("7.3", lambda n: 2 if n <= MIB else 20 if n < 10 * MIB else -(-n // (2 * MIB)) * 2, "not yet", "That is MiB"),
    ("7.3", lambda n: n, "not yet", "the request itself"),
    ("7.3", lambda n: 2 * MIB if n <= MIB else 20 * MIB if n < 10 * MIB else round(n / (2 * MIB)) * 2 * MIB,
     "not yet", "Too small by"),
    ("7.3", 2 * MIB, "not yet", "the answer is a function"),
]  # fmt: skip


@pytest.mark.parametrize("exercise_id, answer, status, words", FUNCTIONS)
def test_a_function_or_a_list(exercise_id, answer, status, words):
    feedback = check(exercise_id, answer)
    assert (feedback.status, words in feedback.text) == (status, True), feedback


# 7.4: a validation loop


def by_inference_mode(model, batches):
    with torch.inference_mode():
        return sum(model(x).square().mean().item() for x in batches) / len(batches)


@torch.no_grad()
def by_running_mean(model, batches):
    mean = 0.0
    for number, x in enumerate(batches, start=1):
        mean += (float(model(x).square().mean()) - mean) / number
    return mean


@torch.no_grad()
def by_detached_sum(model, batches):
    total = torch.zeros(())
    for x in batches:
        total += model(x).square().mean()
    return total.item() / len(batches)


def detaches_only(model, batches):
    total = 0.0
    for x in batches:
        total += model(x).square().mean().detach()
    return total.item() / len(batches)


def keeps_losses_with_graphs(model, batches):
    return torch.stack([model(x).square().mean() for x in batches]).mean().item()


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


@pytest.mark.parametrize(
    "answer, status, words",
    [
        (by_inference_mode, "right", ""),
        (by_running_mean, "right", ""),
        (by_detached_sum, "right", ""),
        (detaches_only, "not yet", "a backward that never comes"),
        (keeps_losses_with_graphs, "not yet", "the graph of every batch"),
        (keeps_hidden, "not yet", "I cannot tell what"),
        (as_a_list, "not yet", "You returned a list"),
        (freezes, "not yet", "You left gradients switched off"),
        (switches_gradients_off, "not yet", "You left gradients switched off"),
        (of_the_last_batch, "not yet", "the last batch alone"),
        (lambda model, batches: 0.0, "not yet", "The mean loss"),
    ],
)
def test_a_validation_loop(answer, status, words):
    feedback = check("7.4", answer)
    assert (feedback.status, words in feedback.text) == (status, True), feedback
    assert torch.is_grad_enabled()


# 7.5: a guarded step


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


def with_bare_except(step, recover):
    failed = False
    try:
        step()
    except:  # noqa: E722
        failed = True
    if failed:
        recover()
    return not failed


def in_finally(step, recover):
    try:
        step()
        return True
    except torch.OutOfMemoryError:
        return False
    finally:
        recover()


@pytest.mark.parametrize(
    "answer, status, words",
    [
        (with_else, "right", ""),
        (by_its_words, "right", ""),
        (with_bare_except, "not yet", "shape mismatch"),
        (in_finally, "not yet", "recovered after a step that works"),
        (lambda step, recover: step() or True, "not yet", "raised OutOfMemoryError"),
    ],
)
def test_a_guarded_step(answer, status, words):
    feedback = check("7.5", answer)
    assert (feedback.status, words in feedback.text) == (status, True), feedback


@pytest.mark.parametrize(
    "answer, status, words",
    [
        (("statistics", 4 * MIB), "right", ""),
        (("Classifier.statistics", 4_194_304), "right", ""),
        (("statistics()", 4 * MIB), "right", ""),
        (("statistics", 20 * MIB), "not yet", "all five steps"),
        (("statistics", 4), "not yet", "the number of MiB"),
        (("relu", 4 * MIB), "not yet", "No line of the snapshot grows"),
        (("features", 4 * MIB), "not yet", "freed again"),
        ("statistics", "not yet", "a pair"),
    ],
)
def test_an_unknown_snapshot(answer, status, words):
    feedback = check("7.6", answer)
    assert (feedback.status, words in feedback.text) == (status, True), feedback


REST = (531, 354, 604, 866, 249, 274, 748, 296)


@pytest.mark.parametrize("front", sorted(REST))
def test_only_the_longest_batch_first_is_right(front):
    feedback = check("7.7", [front, *(length for length in REST if length != front)])
    assert (feedback.status == "right") == (front == max(REST)), feedback
