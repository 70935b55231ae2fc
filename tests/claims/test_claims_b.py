"""Proofs of group B: activations."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import torch
from torch.autograd.graph import saved_tensors_hooks

from book.claims import rounds_to
from memkit.formula.activations import activation_bytes, block_ledger
from memkit.formula.estimate import estimate_memory
from memkit.formula.korthikanti import ADDENDS
from memkit.formula.parameters import count_parameters
from memkit.formula.states import state_bytes
from memkit.hardware.cards import CARDS
from memkit.measuring.saved_tensors import saved_bytes, saved_storages
from memkit.program.transformer import Block
from memkit.setup.models import GPT2_LARGE, LLAMA_2_7B, TINY_GPT2
from memkit.setup.recipes import ADAMW, AUTOCAST_BF16, BF16_MASTER, PURE_BF16
from memkit.setup.training import TrainingSetup
from memkit.units import GIB, KIB, MIB

# The setup that the printed figures speak of: 36 blocks, dropout as GPT-2 was trained, stored scores.
GPT2 = TrainingSetup(
    model=GPT2_LARGE, precision=PURE_BF16, micro_batch_size=8, seq_len=1024, attention="stored", dropout=0.1
)
GPT2_FLASH = replace(GPT2, attention="flash")
LLAMA = TrainingSetup(model=LLAMA_2_7B, precision=PURE_BF16, seq_len=2048)
PAPER_LINEAR = sum(addend.value_bytes * addend.width for addend in ADDENDS if not addend.is_square)
PAPER_SQUARE = sum(addend.value_bytes for addend in ADDENDS if addend.is_square)
SCORES_PER_SBH = GPT2.seq_len * GPT2_LARGE.num_heads / GPT2_LARGE.hidden_size  # as/h
SBH = GPT2.micro_batch_size * GPT2.seq_len * GPT2_LARGE.hidden_size


def all_blocks(setup: TrainingSetup) -> int:
    return setup.model.num_layers * block_bytes(setup)


def per_score(setup: TrainingSetup) -> float:
    """Bytes that a block keeps for each of its b·a·s·s scores."""
    scores = setup.micro_batch_size * setup.model.num_heads * setup.seq_len**2
    return sum(line.num_bytes for line in block_ledger(setup).lines if line.axes == "b a s s") / scores


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
    """Bytes that torch's autograd saves in a real 16-bit block of this shape; meta tensors have no data.

    Without dropout, whose mask has another dtype away from CUDA.
    """
    assert (setup.precision, setup.attention, setup.dropout) == (PURE_BF16, "stored", 0)
    block = Block(setup).to(device="meta", dtype=torch.bfloat16)
    mask = torch.ones(setup.seq_len, setup.seq_len, dtype=torch.bool, device="meta").triu(1)
    shape = (setup.micro_batch_size, setup.seq_len, setup.model.hidden_size)
    x = torch.empty(shape, dtype=torch.bfloat16, device="meta", requires_grad=True)
    return saved_bytes(lambda: block(x, {"mask": mask}), elsewhere=[*block.parameters(), mask])


def score_bytes(setup: TrainingSetup) -> int:
    return sum(line.num_bytes for line in block_ledger(setup).lines if line.axes == "b a s s")


def block_bytes(setup: TrainingSetup) -> int:
    """The ledger's bytes of a block, which without dropout are what a real block of the same shape saves."""
    if setup.model.name == GPT2_LARGE.name and setup.attention == "stored" and setup.precision == PURE_BF16:
        plain = replace(setup, dropout=0)
        assert block_ledger(plain).num_bytes == saved_by_real_block(plain)
    return block_ledger(setup).num_bytes


@cache
def peak(setup: TrainingSetup) -> int:
    return estimate_memory(setup).for_step(2).peak_bytes


def model_states(setup: TrainingSetup) -> int:
    return sum(state_bytes(setup.model, setup.precision, ADAMW).values())


GPT2_STATES = sum(state_bytes(GPT2_LARGE, BF16_MASTER, ADAMW).values())


def test_C059(figures):
    assert figures["seq"] == LLAMA.seq_len
    room = CARDS["H100 SXM"].memory_bytes
    assert rounds_to(room / GIB, figures["card_gib"])
    assert rounds_to(2 * count_parameters(LLAMA_2_7B) / GIB, figures["weights_gib"])
    peaks = {batch: peak(replace(LLAMA, micro_batch_size=batch)) for batch in range(1, 9)}
    assert figures["fits"] == max(batch for batch, num_bytes in peaks.items() if num_bytes <= room)
    assert figures["fails"] == min(batch for batch, num_bytes in peaks.items() if num_bytes > room)
    assert rounds_to(peaks[figures["fits"]] / GIB, figures["fits_gib"])
    assert rounds_to(peaks[figures["fails"]] / GIB, figures["fails_gib"])
    figures.settle(loads=2 * count_parameters(LLAMA_2_7B) < room, dies=peaks[figures["fails"]] > room)


def test_C061(figures):
    assert figures["tokens"] == GPT2.seq_len
    squares = {addend.name: addend.value_bytes for addend in ADDENDS if addend.is_square}
    assert figures["softmax"] == squares["softmax output"]
    assert figures["mask"] == squares["softmax dropout mask"]
    assert figures["dropped"] == squares["softmax dropout output"]
    assert per_score(GPT2) == sum(squares.values())
    kept_elsewhere = [line for line in block_ledger(GPT2).lines if line.axes != "b a s s"]
    assert all(line.axes.split().count("s") < 2 for line in kept_elsewhere)
    assert rounds_to(100 * score_bytes(GPT2) / block_bytes(GPT2), figures["share_percent"])
    figures.settle(
        only_scores=all(line.axes.split().count("s") < 2 for line in kept_elsewhere) and score_bytes(GPT2) > 0,
    )


def test_C063(figures):
    assert (figures["batch"], figures["tokens"]) == (GPT2.micro_batch_size, GPT2.seq_len)
    assert rounds_to(all_blocks(GPT2) / 1e9, figures["stored_gb"])
    assert rounds_to(figures["printed_gb"] * 1e9 / all_blocks(GPT2), figures["off_by"])
    assert rounds_to(all_blocks(replace(GPT2, dropout=0)) / 1e9, figures["no_dropout_gb"])
    assert rounds_to(all_blocks(GPT2_FLASH) / 1e9, figures["flash_gb"])
    figures.settle(
        **{
            name: abs(figures["printed_gb"] / figures[name] - 1) < 0.1
            for name in ("stored_gb", "no_dropout_gb", "flash_gb")
        }
    )


def test_C064(figures):
    card = CARDS["A100 SXM 40 GB"]
    assert figures["label_gb"] == card.label_gb
    planned = GPT2_STATES + figures["printed_act_gb"] * 10**9
    assert rounds_to(planned / 1e9, figures["plan_gb"])
    assert rounds_to(planned / GIB, figures["plan_gib"])
    assert rounds_to(card.memory_bytes / GIB, figures["card_gib"])
    assert rounds_to((card.memory_bytes - planned) / GIB, figures["left_gib"])
    assert rounds_to(all_blocks(GPT2) / 1e9, figures["act_gb"])
    assert rounds_to((GPT2_STATES + all_blocks(GPT2)) / 1e9, figures["true_gb"])
    figures.settle(no_room=planned >= card.memory_bytes)


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
    short, long = (replace(GPT2, model=model, seq_len=figures[name], dropout=0) for name in ("short", "long"))
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
    for setup in (LLAMA, replace(LLAMA, attention="stored"), GPT2, replace(GPT2, precision=AUTOCAST_BF16)):
        for batch in (1, 2, 7, 64):
            assert twice(replace(setup, micro_batch_size=batch), "micro_batch_size", measure=peak) < 2
    figures.settle(
        **{
            f"from_{batch}": twice(replace(LLAMA, micro_batch_size=batch), "micro_batch_size", measure=peak) > 2
            for batch in (1, 4, 64)
        }
    )


def test_C072(figures):
    block = prove_square(figures)
    figures.settle(scores=figures["scores"] == 4, a_block=round(block, 1) == figures["scores"])


def test_C073(figures):
    assert rounds_to(twice(LLAMA, "micro_batch_size"), figures["batch"])
    assert rounds_to(twice(LLAMA, "seq_len"), figures["sequence"])
    assert rounds_to(twice(LLAMA, "num_layers"), figures["layers"])
    stored = replace(LLAMA, attention="stored")
    assert rounds_to(activation_bytes(stored) / activation_bytes(LLAMA), figures["stored"])
    figures.settle(batch=twice(LLAMA, "micro_batch_size") > 1, sequence=twice(LLAMA, "seq_len") > 1)


@cache
def real_block() -> tuple[int, TrainingSetup]:
    """Bytes that torch's autograd saves in a real block on the CPU, by torch's own hooks."""
    setup = TrainingSetup(model=TINY_GPT2, micro_batch_size=2, seq_len=128, attention="stored", device="cpu")
    block, mask = Block(setup), torch.ones(128, 128, dtype=torch.bool).triu(1)
    x = torch.randn(2, 128, TINY_GPT2.hidden_size, requires_grad=True)
    return saved_bytes(lambda: block(x, {"mask": mask}), elsewhere=[*block.parameters(), mask]), setup


def test_C074(figures):
    num_bytes, setup = real_block()
    assert figures["num_bytes"] == num_bytes == block_ledger(setup).num_bytes
    assert (figures["batch"], figures["tokens"]) == (setup.micro_batch_size, setup.seq_len)
    figures.settle(a_real_block=num_bytes == block_ledger(setup).num_bytes)


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
    assert figures["addition"] == len(saved_storages(lambda: x + y))
    figures.settle(
        inner=figures["kept_outputs"] == figures["operations"] - 1,
        addition=figures["addition"] > 0,
    )


def test_C077(figures):
    for name in ("micro_batch_size", "num_layers"):
        assert figures["batch_layers"] == twice(GPT2, name, measure=all_blocks)
    assert rounds_to(twice(GPT2, "seq_len", measure=block_bytes), figures["sequence"])
    assert rounds_to(twice(GPT2, "hidden_size", measure=block_bytes), figures["hidden"])
    for name in ("seq_len", "hidden_size"):
        assert rounds_to(twice(GPT2_FLASH, name, measure=block_bytes), figures["flash"])
    figures.settle(
        batch_and_layers=figures["batch_layers"] == 2,
        sequence=figures["sequence"] == 4,
        hidden=figures["hidden"] == 2,
    )


def test_C078(figures):
    assert figures["seq"] == LLAMA.seq_len
    weights = 2 * count_parameters(LLAMA_2_7B)
    assert rounds_to(weights / GIB, figures["weights_gib"])
    kept = {batch: activation_bytes(replace(LLAMA, micro_batch_size=batch)) for batch in range(1, 10)}
    assert figures["first"] == min(batch for batch, num_bytes in kept.items() if num_bytes > weights)
    assert rounds_to(kept[figures["batch"]] / GIB, figures["act_gib"])
    figures.settle(eight=kept[figures["batch"]] > weights)


def test_C079(figures):
    checkpoint = block_ledger(replace(LLAMA, recomputation="full")).per_sbh
    llama, gpt2 = block_ledger(LLAMA).per_sbh, block_ledger(GPT2).per_sbh
    assert figures["counted"] == checkpoint == torch.bfloat16.itemsize
    assert rounds_to(llama, figures["llama"])
    assert rounds_to(gpt2, figures["gpt2"])
    assert rounds_to(llama / checkpoint, figures["llama_times"])
    assert rounds_to(gpt2 / checkpoint, figures["gpt2_times"])
    figures.settle(llama=figures["llama"] == figures["counted"], gpt2=figures["gpt2"] == figures["counted"])


def test_C080(figures):
    assert figures["seq"] == LLAMA.seq_len
    token = LLAMA_2_7B.hidden_size * torch.bfloat16.itemsize
    assert figures["token_kib"] * KIB == token
    assert figures["layer_mib"] * MIB == token * figures["seq"]
    assert figures["sequence_mib"] == figures["layer_mib"] * LLAMA_2_7B.num_layers
    assert figures["batch_gib"] * GIB == figures["batch"] * figures["sequence_mib"] * MIB
    real = replace(LLAMA, micro_batch_size=figures["batch"])
    assert rounds_to(all_blocks(real) / GIB, figures["flash_gib"])
    assert rounds_to(all_blocks(replace(real, attention="stored")) / GIB, figures["stored_gib"])
    figures.settle(
        flash=figures["flash_gib"] == figures["batch_gib"],
        stored=figures["stored_gib"] == figures["batch_gib"],
    )


def test_C081(figures):
    assert figures["one"] == torch.bfloat16.itemsize
    assert figures["kept"] == per_score(GPT2)
    assert figures["autocast"] == per_score(replace(GPT2, precision=AUTOCAST_BF16))
    assert figures["no_dropout"] == per_score(replace(GPT2, dropout=0))
    assert figures["flash"] == per_score(GPT2_FLASH)
    figures.settle(
        **{name: figures[name] == figures["one"] for name in ("kept", "autocast", "no_dropout", "flash")},
    )
