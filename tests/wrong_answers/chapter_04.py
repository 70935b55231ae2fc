"""Wrong answers to the judged exercises of chapter 04, each with a part of what its judge has to say."""

import torch
from torch.utils.checkpoint import CheckpointPolicy

MATMUL = torch.ops.aten.mm.default


def keeps(*numbers, attention=True):
    """A ``make_policy`` that saves attention, and of a block's seven linear layers those with these numbers."""

    def make_policy():
        count = 0

        def policy(ctx, op, *args, **kwargs):
            nonlocal count
            count += op is MATMUL
            is_kept = (attention and "attention" in str(op)) or (op is MATMUL and count in numbers)
            return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

        return policy

    return make_policy


WRONG = {
    "4.4": (
        (["mm", "attention"], "You still save mm."),
        (["addmm", "gelu", "attention"], "You save the output of gelu"),
        (["addmm"], "These still run again: attention."),
        ("addmm", "'addmm' is one name. The answer is a list"),
        ([], "An empty list keeps nothing"),
        (["attention"], "These still run again:"),
        (["aten.addmm.default", "attention"], "is not one of mm, addmm"),
        (["linear"], "is not one of mm, addmm"),
    ),
    "4.6": (
        (keeps(*range(1, 8)), "The budget is 18"),
        (keeps(attention=False), "Your policy saves nothing"),
        (keeps(), "At most half may run again"),
        (keeps(*range(1, 8), attention=False), "The budget is 18 sbh"),
        (lambda ctx, op, *args: None, "Is it the policy itself?"),
        (lambda: "MUST_SAVE", "returned no function"),
        (["attention"], "the answer is a function that returns a policy"),
    ),
}
