"""Wrong answers to the judged exercises of chapter 09, each with a part of what its judge has to say."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from book.exercises.chapter_09 import JOBS
from memkit.cards import CARDS
from memkit.recipes import AUTOCAST_FP16, PURE_BF16, OptimizerConfig
from stepscope.setup import AdapterConfig, Job

QLORA = AdapterConfig(rank=16, base="nf4")
RIGHT = {
    job: (
        "RTX 3090",
        Job(
            model=model,
            seq_len=seq_len,
            precision=PURE_BF16,
            adapter=QLORA if not model.fuses_qkv else replace(QLORA, targets=("qkv", "output")),
            recomputation="full",
            grad_accum_steps=8,
            optimizer=OptimizerConfig(implementation="fused"),
        ),
    )
    for job, (model, seq_len) in JOBS.items()
}
"""Five cards for 10 coins."""


def changed(job: str, card: str, **choices):
    """The right purchase with one job bought otherwise."""
    return RIGHT | {job: (card, replace(RIGHT[job][1], **choices))}


def _piece(rows, head, wanted, reduction="sum"):
    return F.cross_entropy(rows @ head.T, wanted, reduction=reduction)


def _added(hidden, head, targets, pieces, reduction="sum", again=True):
    parts = zip(hidden.chunk(pieces), targets.chunk(pieces), strict=True)
    if not again:
        return sum(_piece(rows, head, wanted, reduction) for rows, wanted in parts)
    return sum(
        checkpoint(_piece, rows, head, wanted, reduction, use_reentrant=False)
        for rows, wanted in parts
    )


def _mean_of_means(hidden, head, targets, pieces):
    return _added(hidden, head, targets, pieces, "mean") / pieces


def _means_without_nan(hidden, head, targets, pieces):
    parts = zip(hidden.chunk(pieces), targets.chunk(pieces), strict=True)
    means = [_piece(rows, head, wanted, "mean") for rows, wanted in parts if (wanted >= 0).any()]
    return sum(means) / len(means)


def _by_all_tokens(hidden, head, targets, pieces):
    return _added(hidden, head, targets, pieces) / targets.numel()


def _keeps_all(hidden, head, targets, pieces):
    return _added(hidden, head, targets, pieces, again=False) / (targets != -100).sum()


def _once_in_the_backward(hidden, head, targets, pieces):
    return checkpoint(_piece, hidden, head, targets, "mean", use_reentrant=False)


def _a_number(hidden, head, targets, pieces):
    return _added(hidden, head, targets, pieces).item() / (targets != -100).sum().item()


def _no_gradient(hidden, head, targets, pieces):
    with torch.no_grad():
        return _keeps_all(hidden, head, targets, pieces)


def _a_head_of_its_own(hidden, head, targets, pieces):
    return _added(hidden, head.detach(), targets, pieces) / (targets != -100).sum()


WRONG = {
    "9.6": (
        (3.5, "3.5 is a float; the answer is a function"),
        (_a_number, "You returned a float; the loss is a tensor of one value"),
        (_mean_of_means, "a piece without a target has no mean"),
        (_means_without_nan, "Is a piece's mean counted as much as another's?"),
        (_added, "That is the sum of the losses"),
        (_by_all_tokens, "You divided by all 64 tokens. 21 of them have no target"),
        (_no_gradient, "no gradient can come from it"),
        (_a_head_of_its_own, "the gradient of head is not"),
        (_once_in_the_backward, "You make a tensor of 32,768 values"),
        (_keeps_all, "Make each piece again there"),
    ),
    "9.9": (
        ({}, "Give a dictionary with the jobs a, b, c, d, e"),
        (RIGHT | {"a": "RTX 3090"}, "Job a: give a pair, first a card's name"),
        (RIGHT | {"a": RIGHT["a"][::-1]}, "Job a: give a pair, first a card's name"),
        (changed("b", CARDS["RTX 3090"]), "Job b: a Card is not for sale; the names T4, RTX 3090"),
        (changed("b", ["RTX 3090"]), "Job b: a list is not for sale"),
        (changed("b", "RTX 3090", micro_batch_size=8, grad_accum_steps=1), "Job b: its peak is"),
        (changed("b", "H100 SXM"), "Job b: 'H100 SXM' is not for sale"),
        (changed("c", "RTX 4090", adapter=None), "Job c: its peak is"),
        (changed("d", "T4"), "Job d: a T4 does not multiply bfloat16"),
        (
            changed("e", "RTX 3090", grad_accum_steps=4),
            "Job e: a step has 8 sequences, and 1 × 4 are others",
        ),
        (changed("e", "RTX 3090", seq_len=512), "Job e: the job is Llama-2-13B with 1024 tokens"),
        (
            {job: ("A100 SXM 80 GB", setup) for job, (_, setup) in RIGHT.items()},
            "the cards cost 45, and there are 20",
        ),
        (changed("a", "T4", precision=AUTOCAST_FP16, adapter=None), "Job a: its peak is"),
        (
            changed("a", "RTX 3090", device="cpu"),
            "Job a: device='cpu' counts by the rules of another machine",
        ),
    ),
}

ALSO_RIGHT = (
    {
        job: (card, replace(setup, micro_batch_size=2, grad_accum_steps=4))
        for job, (card, setup) in RIGHT.items()
    },
    changed("e", "A100 SXM 40 GB", adapter=replace(QLORA, base="as loaded")),
    changed("c", "A100 SXM 80 GB", adapter=None),
    changed(
        "a", "T4", precision=AUTOCAST_FP16, adapter=replace(RIGHT["a"][1].adapter, base="as loaded")
    ),
)
"""Other purchases: another cut of the window, LoRA on a larger card, all of 7B trained, float16 on the cheapest."""
