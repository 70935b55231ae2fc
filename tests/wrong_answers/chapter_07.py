"""Wrong answers to the judged exercises of chapter 07, each with a part of what its judge has to say."""

import torch

from book.exercises.chapter_07 import LEAK_BYTES, LENGTHS, validate


def _sums_losses(model, batches):
    total = 0.0
    for x in batches:
        total += model(x).square().mean()
    return (total / len(batches)).item()


def _keeps_outputs(model, batches):
    with torch.no_grad():
        outputs = [model(x) for x in batches]
    return sum(output.square().mean().item() for output in outputs) / len(outputs)


def _returns_tensor(model, batches):
    with torch.no_grad():
        return sum(model(x).square().mean() for x in batches) / len(batches)


def _keeps_scalars(model, batches):
    with torch.no_grad():
        losses = [model(x).square().mean() for x in batches]
    return torch.stack(losses).mean().item()


def _one_large_forward(model, batches):
    with torch.no_grad():
        return model(torch.cat(batches)).square().mean().item()


def _runs_a_backward(model, batches):
    total = 0.0
    for x in batches:
        loss = model(x).square().mean()
        loss.backward()
        total += loss.item()
    return total / len(batches)


def _guard(
    catches=torch.OutOfMemoryError,
    recovers="after a failure",
    gives=lambda failure: failure is None,
):
    """A guarded step; by default the right one."""

    def guarded(step, recover):
        failure = None
        try:
            step()
        except catches as error:
            if recovers == "inside":
                recover()
            failure = error if recovers == "with the error" else True
        if recovers == "always" or (failure and recovers in ("after a failure", "with the error")):
            recover()
        return gives(failure)

    return guarded


WRONG = {
    "7.4": (
        (_sums_losses, "you keep the graph of every batch"),
        (_keeps_scalars, "You keep every loss as a tensor"),
        (_one_large_forward, "all batches in one forward"),
        (_runs_a_backward, "You ran a backward"),
        (_keeps_outputs, "you keep one output per batch"),
        (_returns_tensor, "Return a number, with .item()."),
        (
            lambda model, batches: (
                sum(model(x).square().mean().item() for x in batches) / len(batches)
            ),
            "for a backward that never comes",
        ),
        (
            lambda model, batches: validate(model, batches) * len(batches),
            "That is the sum of the losses",
        ),
    ),
    "7.5": (
        (_guard(recovers="inside"), "tensors were still in memory"),
        (_guard(recovers="with the error"), "the error and its traceback hold them"),
        (_guard(RuntimeError), "A shape mismatch of the step"),
        (_guard(Exception), "Catch torch.OutOfMemoryError and nothing else."),
        (_guard((torch.OutOfMemoryError, KeyboardInterrupt)), "Ctrl-C disappeared"),
        (_guard(gives=lambda failure: None), "A step that works should give True."),
        (_guard(recovers="never"), "recover() was not called after the failure."),
        (_guard(recovers="always"), "recover only after a failure"),
    ),
    "7.6": (
        (("features", 2 * LEAK_BYTES), "freed again in each step"),
        (("step", 8 * 4096 * 1024), "in step 1 only"),
        (("statistics", 5 * LEAK_BYTES), "the bytes of all five steps"),
        (("statistics", 4096), "That is the number of KiB"),
        (("statistics", 4.0), "That is the number of MiB"),
        (("statistics", 8 * LEAK_BYTES // 3), "is not its bytes per step"),
        ((LEAK_BYTES, "statistics"), "turned round"),
        (("decide", LEAK_BYTES), "No line of the snapshot grows in"),
        ("statistics", "The answer is a pair"),
    ),
    "7.7": (
        (LENGTHS, "This is the order of the question. It runs out of memory."),
        ((748, 531, 354, 604, 866, 249, 274, 296), "by giving its cache back"),
        ((604, 531, 354, 866, 249, 274, 748, 296), "It fails in the batch of 866 tokens"),
        (tuple(sorted(LENGTHS)), "leave the others in their order"),
        ((866,) * 8, "only the first place is yours to fill"),
        (866, "is no list of lengths"),
    ),
}
