"""Proofs of group B: activations."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import torch
from torch.autograd.graph import saved_tensors_hooks

from book.claims import rounds_to
from book.korthikanti import ADDENDS
from memkit.formula.activations import activation_bytes, block_ledger
from memkit.formula.estimate import estimate_memory
from memkit.formula.states import state_bytes
from memkit.measure import saved_bytes, saved_tensors
from memkit.models import GPT2_LARGE, LLAMA_2_7B, TINY_GPT2
from memkit.program.transformer import Block
from memkit.recipes import ADAMW, AUTOCAST_BF16, BF16_MASTER, PURE_BF16
from memkit.setup import TrainingSetup

# The setup that the printed figures speak of: 36 blocks, dropout as GPT-2 was trained, stored scores.
GPT2 = TrainingSetup(
    model=GPT2_LARGE,
    precision=PURE_BF16,
    micro_batch_size=8,
    seq_len=1024,
    attention="stored",
    dropout=0.1,
)
GPT2_FLASH = replace(GPT2, attention="flash")
LLAMA = TrainingSetup(model=LLAMA_2_7B, precision=PURE_BF16, seq_len=2048)
ON_CPU = TrainingSetup(
    model=TINY_GPT2, micro_batch_size=2, seq_len=128, attention="stored", device="cpu"
)
PAPER_LINEAR = sum(addend.value_bytes * addend.width for addend in ADDENDS if not addend.is_square)
PAPER_SQUARE = sum(addend.value_bytes for addend in ADDENDS if addend.is_square)
SCORES_PER_SBH = GPT2.seq_len * GPT2_LARGE.num_heads / GPT2_LARGE.hidden_size  # as/h


def all_blocks(setup: TrainingSetup) -> int:
    return setup.model.num_layers * block_bytes(setup)


def per_score(setup: TrainingSetup) -> float:
    """Bytes that a block keeps for each of its b·a·s·s scores."""
    return score_bytes(setup) / (setup.micro_batch_size * setup.model.num_heads * setup.seq_len**2)


def twice(setup: TrainingSetup, *names: str, measure: Callable = activation_bytes) -> float:
    """What ``measure`` gives with fields of the setup or its model doubled, by what it gives without."""
    changes = {name: 2 * getattr(setup, name) for name in names if hasattr(setup, name)}
    model = {name: 2 * getattr(setup.model, name) for name in names if hasattr(setup.model, name)}
    if "seq_len" in names:
        model["max_seq_len"] = 2 * setup.model.max_seq_len
    if "hidden_size" in names:  # as many heads, each twice as wide; the MLP follows
        model["head_dim"] = 2 * setup.model.head_dim
        model["intermediate_size"] = 2 * setup.model.intermediate_size
    return measure(replace(setup, **changes, model=replace(setup.model, **model))) / measure(setup)


@cache
def saved_by_real_block(setup: TrainingSetup) -> int:
    """Bytes that torch's autograd saves in a real block: on the CPU, or of tensors without data for a card.

    Without dropout, whose mask has another dtype away from CUDA.
    """
    assert (setup.attention, setup.dropout) == ("stored", 0) and not setup.precision.uses_autocast
    kind = {
        "device": "cpu" if setup.device == "cpu" else "meta",
        "dtype": getattr(torch, setup.precision.weight_dtype),
    }
    block = Block(setup).to(**kind)
    mask = torch.ones(setup.seq_len, setup.seq_len, dtype=torch.bool, device=kind["device"]).triu(1)
    x = torch.zeros(
        setup.micro_batch_size, setup.seq_len, setup.model.hidden_size, requires_grad=True, **kind
    )
    return saved_bytes(lambda: block(x, {"mask": mask}), elsewhere=[*block.parameters(), mask])


def score_bytes(setup: TrainingSetup) -> int:
    return sum(line.num_bytes for line in block_ledger(setup).lines if line.axes == "b a s s")


def block_bytes(setup: TrainingSetup) -> int:
    """The ledger's bytes of a block, which without dropout are what a real block of the same shape saves."""
    if (
        setup.model.name == GPT2_LARGE.name
        and setup.attention == "stored"
        and setup.precision == PURE_BF16
    ):
        plain = replace(setup, dropout=0)
        assert block_ledger(plain).num_bytes == saved_by_real_block(plain)
    return block_ledger(setup).num_bytes


@cache
def peak(setup: TrainingSetup) -> int:
    return estimate_memory(setup).for_step(2).peak_bytes


def model_states(setup: TrainingSetup) -> int:
    return sum(state_bytes(setup.model, setup.precision, ADAMW).values())


GPT2_STATES = sum(state_bytes(GPT2_LARGE, BF16_MASTER, ADAMW).values())


def prove_square(figures) -> float:
    """The scores' growth for twice the tokens; a block's is returned."""
    assert figures["short"] == GPT2.seq_len
    assert figures["long"] == 2 * figures["short"]
    assert figures["scores"] == twice(GPT2, "seq_len", measure=score_bytes)
    block = twice(GPT2, "seq_len", measure=block_bytes)
    assert rounds_to(block, figures["block"])
    return block


def test_C065(figures):
    prove_square(figures)
    model = replace(GPT2_LARGE, max_seq_len=figures["long"])
    short, long = (
        replace(GPT2, model=model, seq_len=figures[name], dropout=0) for name in ("short", "long")
    )
    figures.settle(a_real_block=saved_by_real_block(long) > 2.5 * saved_by_real_block(short))


def printed_block_bytes(score_bytes_each: int, mlp_bytes_each: int) -> int:
    """The printed function: one tensor of scores and one of the MLP's width."""
    b, s = GPT2.micro_batch_size, GPT2.seq_len
    scores = b * GPT2_LARGE.num_heads * s**2
    return score_bytes_each * scores + mlp_bytes_each * b * s * 4 * GPT2_LARGE.hidden_size


def test_C071(figures):
    assert figures["seq"] == LLAMA.seq_len
    small = replace(LLAMA, micro_batch_size=figures["small"])
    assert figures["large"] == 2 * figures["small"]
    assert rounds_to(twice(small, "micro_batch_size"), figures["act"])
    assert rounds_to(twice(small, "micro_batch_size", measure=peak), figures["peak"])
    for setup in (
        LLAMA,
        replace(LLAMA, attention="stored"),
        GPT2,
        replace(GPT2, precision=AUTOCAST_BF16),
    ):
        for batch in (1, 2, 7, 64):
            assert (
                twice(replace(setup, micro_batch_size=batch), "micro_batch_size", measure=peak) < 2
            )
    figures.settle(
        **{
            f"from_{batch}": twice(
                replace(LLAMA, micro_batch_size=batch), "micro_batch_size", measure=peak
            )
            > 2
            for batch in (1, 4, 64)
        }
    )


def test_C072(figures):
    block = prove_square(figures)
    figures.settle(scores=figures["scores"] == 4, a_block=round(block, 1) == figures["scores"])


@cache
def saved_by_mlp() -> tuple[int, int, int]:
    """Of Linear, GELU, Linear: operations, tensors that are kept, outputs among them."""
    mlp = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))
    parameters = {p.data_ptr() for p in mlp.parameters()}
    saved = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        return saved.setdefault(tensor.data_ptr(), tensor)

    x, outputs = torch.randn(8, 64), []
    with saved_tensors_hooks(note, lambda tensor: tensor):
        y = x
        for operation in mlp:
            y = operation(y)
            outputs.append(y)
    kept = {pointer for pointer in saved if pointer not in parameters}
    return len(mlp), len(kept), sum(output.data_ptr() in kept for output in outputs)


def test_C076(figures):
    assert (figures["operations"], figures["kept"], figures["kept_outputs"]) == saved_by_mlp()
    x, y = (torch.randn(8, 64, requires_grad=True) for _ in range(2))
    assert figures["addition"] == len(saved_tensors(lambda: x + y))
    figures.settle(
        inner=figures["kept_outputs"] == figures["operations"] - 1,
        addition=figures["addition"] > 0,
    )
