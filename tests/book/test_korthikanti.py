"""The paper's formulas against its own equations, against our ledger, and against the percentages that the book quotes.

Printed figures are from Korthikanti et al. 2022, arXiv:2205.05198v1; the section or table stands beside each.
"""

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from ledger_sections import section_of
from torch.utils.checkpoint import set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

from book.korthikanti import (
    ADDENDS,
    LAYER_MILLISECONDS,
    MODEL_22B,
    MODEL_175B,
    MODEL_530B,
    PAPER_MODELS,
    PaperModel,
    layer_bytes,
    model_flops,
    paper_setup,
    printed_hardware_flops,
    recomputed_flops,
)
from memkit.formula.activations import block_ledger
from memkit.program.transformer import Transformer
from memkit.recipes import FP32

BOTH = "tensor and sequence"
each_model = pytest.mark.parametrize("model", PAPER_MODELS, ids=lambda model: model.name)


def letters(model: PaperModel) -> tuple[int, ...]:
    return model.seq_len, model.micro_batch_size, model.hidden_size, model.num_heads, model.tp_size


def percent(part: float, whole: float) -> float:
    return 100 * part / whole


# The formulas.


@each_model
def test_a_model_has_the_billions_of_its_name(model):
    """12 h² a layer and the embedding: table 3 gives layers, width and this count."""
    parameters = 12 * model.num_layers * model.hidden_size**2 + model.vocab_size * model.hidden_size
    assert f"{parameters / 10**9:.0f}B" == model.name.split()[0]


@each_model
def test_table_2(model):
    s, b, h, a, t = letters(model)
    sbh, square = s * b * h, Fraction(5 * a * s, h)
    assert layer_bytes(model) == sbh * (34 + square)  # equation 1
    assert layer_bytes(model, "tensor") == sbh * (10 + Fraction(24, t) + square / t)  # equation 2
    assert layer_bytes(model, BOTH) == sbh * (34 + square) / t  # equation 4
    assert layer_bytes(model, "tensor", "selective") == sbh * (10 + Fraction(24, t))
    # equation 6, a layer of it
    assert layer_bytes(model, BOTH, "selective") == Fraction(34 * sbh, t)
    assert layer_bytes(model, "none", "full") == layer_bytes(model, BOTH, "full") == 2 * sbh


# The same from our own ledger.


def statistics(model: PaperModel) -> int:
    """Two float32 numbers per norm and token, which the paper leaves out."""
    return 2 * 2 * 4 * model.seq_len * model.micro_batch_size


@each_model
def test_our_ledger_gives_table_2(model):
    none, selective, full = (
        block_ledger(paper_setup(model, kind)) for kind in ("none", "selective", "full")
    )
    assert none.num_bytes == layer_bytes(model) + statistics(model)
    assert selective.num_bytes == layer_bytes(model, recomputation="selective") + statistics(model)
    assert full.num_bytes == layer_bytes(model, recomputation="full")


@each_model
def test_our_ledger_gives_the_papers_blocks(model):
    ledger = block_ledger(paper_setup(model))
    ours = {name: section_of(ledger, name).num_bytes for name in ("attention", "mlp", "norms")}
    paper = {
        block: sum(a.num_bytes(model) for a in ADDENDS if a.block == block)
        for block in ("attention", "MLP")
    }
    assert (ours["attention"], ours["mlp"]) == (paper["attention"], paper["MLP"])
    assert ours["norms"] - statistics(model) == 4 * model.sbh


def test_a_fused_qkv_matrix_keeps_2sbh_more_for_a_single_sequence():
    for model, extra in ((MODEL_22B, 0), (MODEL_175B, 2)):  # b = 4, b = 1
        setup = paper_setup(model)
        fused = replace(setup, model=replace(setup.model, fuses_qkv=True))
        assert block_ledger(fused).num_bytes - block_ledger(setup).num_bytes == extra * model.sbh


# Memory percentages.


def test_section_6_1_each_technique_halves_and_both_leave_a_fifth():
    """Figure 7: "cut the memory requirement nearly in half", "5x", "under 20 %", full recomputation "10 %"."""
    shares = {
        (kind, model.name): percent(layer_bytes(model, *kind), layer_bytes(model, "tensor"))
        for kind in ((BOTH, "none"), ("tensor", "selective"), (BOTH, "selective"), (BOTH, "full"))
        for model in PAPER_MODELS
    }
    of = {kind: [share for (k, _), share in shares.items() if k == kind] for kind, _ in shares}
    assert [round(share) for share in of[BOTH, "none"]] == [67, 62, 58]
    assert [round(share) for share in of["tensor", "selective"]] == [49, 57, 62]
    # 20 %, not quite under
    assert [round(share, 1) for share in of[BOTH, "selective"]] == [16.1, 18.5, 20.2]
    assert [round(share) for share in of[BOTH, "full"]] == [8, 9, 10]
    assert all(round(100 / share) in (5, 6) for share in of[BOTH, "selective"])


@each_model
def test_section_6_1_twice_the_memory_of_full_recomputation(model):
    # "only ~2x"
    assert round(layer_bytes(model, BOTH, "selective") / layer_bytes(model, BOTH, "full"), 1) == 2.1


# Operations.


@each_model
def test_equation_7(model):
    s, _, h, _, _ = letters(model)
    big_b, layers, v = model.global_batch_size, model.num_layers, model.vocab_size
    expected = 72 * big_b * layers * s * h**2 * (1 + s / (6 * h) + v / (12 * h * layers))
    assert model_flops(model) == pytest.approx(expected, rel=1e-12)
    expected = 72 * big_b * layers * s * h**2 * (1 + s / (3 * h) + v / (12 * h * layers))
    assert printed_hardware_flops(model) == pytest.approx(expected, rel=1e-12)


SMALL = replace(
    MODEL_22B,
    num_heads=4,
    hidden_size=64,
    num_layers=3,
    seq_len=32,
    vocab_size=96,
    micro_batch_size=2,
    global_batch_size=2,
)


def counted_flops(recomputation: str, stops_early: bool = True) -> int:
    """Operations of one step of our transformer, by torch's counter."""
    setup = replace(paper_setup(SMALL, recomputation), precision=FP32, device="cpu", dropout=0.0)
    model = Transformer(setup)
    ids = torch.randint(SMALL.vocab_size, (SMALL.micro_batch_size, SMALL.seq_len))
    with FlopCounterMode(display=False) as counter, set_checkpoint_early_stop(stops_early):
        model(ids, ids).backward()
    return counter.get_total_flops()


def test_equation_7_is_what_torch_counts():
    assert counted_flops("none") == model_flops(SMALL)


def test_slip_1_equation_8_counts_the_recomputation_three_times():
    extra = counted_flops("selective", stops_early=False) - counted_flops("none")
    assert extra == recomputed_flops(SMALL)
    assert printed_hardware_flops(SMALL) - model_flops(SMALL) == 3 * extra


def test_torch_stops_before_the_weighted_sum():
    """The checkpoint ends when the last tensor that the backward needs is back: half of the recomputation."""
    assert 2 * (counted_flops("selective") - counted_flops("none")) == recomputed_flops(SMALL)


# Times.


@pytest.mark.parametrize(
    "kind, printed",
    [
        ("none, sequence parallel", -3),
        ("full", 39),
        ("selective", 7),
        ("selective, sequence parallel", 4),
    ],
)
def test_table_4_overheads(kind, printed):
    total = {name: sum(times) for name, times in LAYER_MILLISECONDS.items()}
    assert round(percent(total[kind] - total["none"], total["none"])) == printed


def test_abstract_90_percent_of_the_overhead_is_gone():
    total = {name: sum(times) for name, times in LAYER_MILLISECONDS.items()}
    full, both = (total[name] - total["none"] for name in ("full", "selective, sequence parallel"))
    assert percent(full - both, full) > 90


def test_refusals():
    with pytest.raises(ValueError, match="parallelism='data'"):
        layer_bytes(MODEL_530B, "data")
    with pytest.raises(ValueError, match="recomputation='some'"):
        layer_bytes(MODEL_530B, "tensor", "some")
