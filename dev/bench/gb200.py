"""Six pairs of a batch that trained and the next that ran out of memory, on four GB200s, and what the formula says.

Llama-3-8B, 2,048 tokens a sequence, FSDP on four ranks. The formula has no word for torchtitan's ``torch_remat`` under
``torch.compile`` with the loss in four pieces, nor for compiled MXFP8 and NVFP4, nor for a whole step in CUDA graphs.
For compiled bf16 it says a range: from every block recomputed to an eager step that keeps every second product.

Source: github.com/rdspring1/nvfp4-training-harness at 76f703b,
llama3/run_logs/smoke_max_batch_size_results/20260712_max_batch/README.md.
"""

from memkit import TrainingSetup, models, recipes
from memkit.strategies import FULL, SAVE_EVERY_SECOND, Strategy
from stepscope.setup import Layout
from stepscope.sharding import estimate_sharded

USABLE_GIB = 184.30
PAIRS = {
    ("BF16", "eager"): (36, 37),
    ("BF16", "graph"): (23, 24),
    ("MXFP8", "eager"): (33, 34),
    ("MXFP8", "graph"): (22, 23),
    ("NVFP4", "eager"): (67, 68),
    ("NVFP4", "graph"): (67, 68),
}
"""The largest batch that trained and the next, which ran out of memory."""
REASONS = {
    "graph": "a step in CUDA graphs is not in the formula",
    "eager": "compiled 8- and 4-bit products are not",
}


def peak_gib(batch: int, recomputation: Strategy) -> float:
    """The greatest allocated GiB of a rank, by formula."""
    setup = TrainingSetup(
        model=models.LLAMA_3_8B,
        precision=recipes.FP32,
        micro_batch_size=batch,
        seq_len=2048,
        recomputation=recomputation,
    )
    layout = Layout(stage=3, dp_size=4, param_dtype="bfloat16", reduce_dtype="float32")
    return estimate_sharded(setup, layout).peak_bytes / 2**30


def verdict(precision: str, trainer: str, batch: int) -> str:
    """``fits`` or ``does not fit`` where both ends of the range agree, else why there is none."""
    if (precision, trainer) != ("BF16", "eager"):
        return REASONS[trainer]
    low, high = peak_gib(batch, FULL), peak_gib(batch, SAVE_EVERY_SECOND)
    if high < USABLE_GIB:
        return "fits"
    return "does not fit" if low > USABLE_GIB else f"{low:.0f} to {high:.0f} GiB: no verdict"


def judged() -> list[tuple[str, str, int, bool, str]]:
    """Each run: precision, trainer, batch, whether it trained, and the verdict."""
    return [
        (*how, batch, trained, verdict(*how, batch))
        for how, pair in PAIRS.items()
        for batch, trained in zip(pair, (True, False), strict=True)
    ]
