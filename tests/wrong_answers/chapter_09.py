"""Wrong answers to the judged exercises of chapter 09, each with a part of what its judge has to say."""

from dataclasses import replace

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


WRONG = {
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
