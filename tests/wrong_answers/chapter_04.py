"""Wrong answers to the judged exercises of chapter 04, each with a part of what its judge has to say."""





def _saves(*names: str, every_second: bool = False):
    """A ``make_policy`` that saves operations whose name holds one of ``names``."""
    import torch
    from torch.utils.checkpoint import CheckpointPolicy

    def make_policy():
        count = 0

        def policy(ctx, op, *args, **kwargs):
            nonlocal count
            count += op is torch.ops.aten.mm.default
            saves = any(name in str(op) for name in names)
            if every_second and op is torch.ops.aten.mm.default and count % 2 == 0:
                saves = False
            return CheckpointPolicy.MUST_SAVE if saves else CheckpointPolicy.PREFER_RECOMPUTE

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
        (_saves("mm.default", "attention"), "The budget is 18"),
        (_saves("nothing"), "Your policy saves nothing"),
        (_saves("attention"), "At most half may run again"),
        (_saves("mm.default"), "The budget is 18 sbh"),
        (lambda ctx, op, *args: None, "Is it the policy itself?"),
        (lambda: "MUST_SAVE", "returned no function"),
        (["attention"], "the answer is a function that returns a policy"),
    ),
}
