"""Proofs of group F, activation recomputation: what stays and what runs again, by formula."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import sqrt

from ledger_sections import section_of

from book.claims import rounds_to
from book.korthikanti import (
    ADDENDS,
    LAYER_MILLISECONDS,
    MODEL_22B,
    MODEL_175B,
    MODEL_530B,
    VALUE_BYTES,
    layer_bytes,
    paper_setup,
)
from memkit.formula.activations import activation_bytes, block_ledger
from memkit.formula.estimate import estimate_memory
from memkit.models import GPT2_LARGE, LLAMA_2_7B
from memkit.recipes import PURE_BF16
from memkit.recomputation import blocks_ledger, step_flops
from memkit.setup import TrainingSetup
from memkit.strategies import CORE, FULL, FULL_NO_STOP, NONE, Strategy, square_root_groups
from memkit.timeline import Instant
from stepscope.allocator.replay import replay_trace

FLASH = TrainingSetup(
    model=GPT2_LARGE,
    precision=PURE_BF16,
    micro_batch_size=8,
    seq_len=1024,
    attention="flash",
    dropout=0.1,
)
STORED = replace(FLASH, attention="stored")
NO_DROPOUT = replace(FLASH, dropout=0)
LLAMA = TrainingSetup(model=LLAMA_2_7B, precision=PURE_BF16, seq_len=4096)


@cache
def peak(setup: TrainingSetup) -> Instant:
    """The tallest moment of the second step."""
    return estimate_memory(setup).for_step(2).peak


def full(setup: TrainingSetup) -> TrainingSetup:
    return replace(setup, recomputation="full")


@cache
def predicted(setup: TrainingSetup, strategy: Strategy) -> int:
    events = estimate_memory(setup.under(strategy))
    return replay_trace(events, compute_capability=(8, 0)).peak_allocated_bytes


def saved_percent(measure: Callable[[TrainingSetup], int], setup: TrainingSetup) -> float:
    """What full recomputation takes off, in percent."""
    return 100 * (1 - measure(full(setup)) / measure(setup))


def block_bytes(setup: TrainingSetup) -> int:
    return block_ledger(setup).num_bytes


def peak_bytes(setup: TrainingSetup) -> int:
    return peak(setup).total_bytes


def extra_percent(setup: TrainingSetup, strategy: Strategy = FULL) -> float:
    return 100 * step_flops(setup, strategy).overhead


def percent_at_most() -> float:
    """One more forward, where the backward costs two: what a step without head and kernels would pay."""
    flops = step_flops(STORED, NONE)
    return 100 * flops.forward / (flops.forward + flops.backward)


def slower_percent(recomputation: str) -> float:
    """Time of a layer of the 22B model in the paper's table 4, beside no recomputation with the same parallelism."""
    plain = "none, sequence parallel" if "sequence" in recomputation else "none"
    return 100 * (sum(LAYER_MILLISECONDS[recomputation]) / sum(LAYER_MILLISECONDS[plain]) - 1)


def test_C181(figures):
    for name, setup in (("flash", FLASH), ("stored", STORED)):
        assert rounds_to(saved_percent(block_bytes, setup), figures[f"{name}_block"])
        assert rounds_to(saved_percent(activation_bytes, setup), figures[f"{name}_all"])
        assert rounds_to(saved_percent(peak_bytes, setup), figures[f"{name}_peak"])
    about = {
        name: round(saved_percent(activation_bytes, s), -1)
        for name, s in (("flash", FLASH), ("stored", STORED))
    }
    figures.settle(**{name: percent >= 90 for name, percent in about.items()})


def test_C182(figures):
    assert rounds_to(percent_at_most(), figures["most_percent"])
    assert rounds_to(extra_percent(NO_DROPOUT), figures["gpt2_percent"])
    assert rounds_to(extra_percent(LLAMA), figures["llama_percent"])
    assert rounds_to(extra_percent(NO_DROPOUT, FULL_NO_STOP), figures["no_stop_percent"])
    time = slower_percent("full")
    assert rounds_to(time, figures["time_percent"])
    # the decade in which both the FLOPs and the time lie
    assert figures["low"] == 10 * int(percent_at_most() // 10)
    assert figures["high"] == figures["low"] + 10 and figures["low"] < time < figures["high"]
    percents = {
        "no_stop": extra_percent(NO_DROPOUT, FULL_NO_STOP),
        "gpt2": extra_percent(NO_DROPOUT),
    }
    percents |= {
        "llama": extra_percent(LLAMA),
        "upper_end": figures["high"] * (percent_at_most() > figures["high"]),
    }
    figures.settle(
        **{name: figures["low"] <= percent <= figures["high"] for name, percent in percents.items()}
    )


def test_C183(figures):
    squares = sum(addend.value_bytes for addend in ADDENDS if addend.is_square)
    linear = {block: 0 for block in ("attention", "MLP", "layer norms")}
    for addend in ADDENDS:
        if not addend.is_square:
            linear[addend.block] += addend.value_bytes * addend.width
    assert figures["square"] == squares
    assert figures["attention"] == linear["attention"]
    assert figures["mlp"] == linear["MLP"]
    assert figures["norms"] == linear["layer norms"]
    selective = block_ledger(paper_setup(MODEL_22B, "selective"))
    assert figures["kept"] == sum(linear.values())
    assert rounds_to(selective.per_sbh, figures["kept"])
    plain = block_ledger(paper_setup(MODEL_22B))
    figures.settle(
        mlp_is_kept=section_of(selective, "mlp").num_bytes == section_of(plain, "mlp").num_bytes,
        core_goes=rounds_to(section_of(selective, "attention").per_sbh, figures["attention"]),
        all_of_attention_goes=section_of(selective, "attention").num_bytes == 0,
    )


def test_C184(figures):
    for name, model in (("gpt3_percent", MODEL_175B), ("mtnlg_percent", MODEL_530B)):
        kept = layer_bytes(model, recomputation="selective") / layer_bytes(model)
        assert rounds_to(100 * (1 - kept), figures[name])
    flash = replace(paper_setup(MODEL_175B), attention="flash")
    core = blocks_ledger(flash, CORE).num_bytes / blocks_ledger(flash, NONE).num_bytes
    assert rounds_to(100 * (1 - core), figures["flash_percent"])
    stored = layer_bytes(MODEL_175B, recomputation="selective") / layer_bytes(MODEL_175B)
    figures.settle(stored=rounds_to(1 - stored, 0.7), flash=rounds_to(1 - core, 0.7))


def test_C186(figures):
    llama = LLAMA_2_7B
    assert figures["tokens"] == 2 * llama.max_seq_len
    model = replace(
        MODEL_22B,
        hidden_size=llama.hidden_size,
        num_heads=llama.num_heads,
        num_layers=llama.num_layers,
        seq_len=figures["tokens"],
        micro_batch_size=1,
    )
    for way in ("none", "selective", "full"):
        num_bytes = model.num_layers * layer_bytes(model, recomputation=way)
        assert rounds_to(num_bytes / 1e9, figures[f"{way}_gb"])
    assert rounds_to(layer_bytes(model) / 1e9, figures["layer_gb"])
    flash = replace(paper_setup(model), attention="flash")
    assert rounds_to(model.num_layers * block_bytes(flash) / 1e9, figures["flash_gb"])
    figures.settle(
        stored=figures["none_gb"] > 100 > figures["full_gb"], flash=figures["flash_gb"] > 100
    )


def test_C188(figures):
    deep = GPT2_LARGE.num_layers
    assert figures["layers"] == deep
    segments = min(range(1, deep + 1), key=lambda k: k + deep / k)
    assert figures["chen"] == segments + deep / segments == 2 * sqrt(deep)
    deeper = replace(FLASH, model=replace(GPT2_LARGE, num_layers=4 * deep))
    assert figures["times"] * deep == deeper.model.num_layers
    per_block = [blocks_ledger(setup, FULL).num_bytes for setup in (FLASH, deeper)]
    assert figures["per_block"] == per_block[1] / per_block[0]
    grouped = []
    for setup in (FLASH, deeper):
        way = square_root_groups(setup.model.num_layers)
        grouped.append(blocks_ledger(setup, way).num_bytes + way.group_size * block_bytes(setup))
    assert figures["grouped"] == grouped[1] / grouped[0]
    assert rounds_to(VALUE_BYTES, figures["per_layer"])
    grows = sqrt(figures["times"])
    figures.settle(
        root_segments=figures["grouped"] == grows, one_a_segment=figures["per_block"] == grows
    )


def test_C193(figures):
    llama = block_ledger(LLAMA)
    for name, ledger in (
        ("stored", block_ledger(STORED)),
        ("flash", block_ledger(FLASH)),
        ("llama", llama),
    ):
        assert rounds_to(section_of(ledger, "attention").per_sbh, figures[f"{name}_attention"])
        assert rounds_to(section_of(ledger, "mlp").per_sbh, figures[f"{name}_mlp"])
    shares = (STORED, FLASH, LLAMA)
    larger = [
        section_of(s, "attention").num_bytes > section_of(s, "mlp").num_bytes
        for s in map(block_ledger, shares)
    ]
    figures.settle(once=larger[0], flash=larger[1], llama=larger[2])


def test_C200(figures):
    assert rounds_to(percent_at_most(), figures["printed_percent"])
    assert rounds_to(percent_at_most(), figures["most_percent"])
    assert rounds_to(extra_percent(NO_DROPOUT, FULL_NO_STOP), figures["no_stop_percent"])
    assert rounds_to(extra_percent(NO_DROPOUT), figures["gpt2_percent"])
    percents = {"a_layer": percent_at_most(), "no_stop": extra_percent(NO_DROPOUT, FULL_NO_STOP)}
    percents["early_stop"] = extra_percent(NO_DROPOUT)
    figures.settle(
        **{name: round(percent) == figures["printed_percent"] for name, percent in percents.items()}
    )


def test_C211(figures):
    for name, setup in (("stored", STORED), ("flash", FLASH)):
        core = blocks_ledger(setup, CORE).num_bytes / blocks_ledger(setup, NONE).num_bytes
        assert rounds_to(100 * (1 - core), figures[f"{name}_percent"])
    assert rounds_to(saved_percent(block_bytes, FLASH), figures["block_percent"])
    core_share = {
        s: 1 - blocks_ledger(s, CORE).num_bytes / blocks_ledger(s, NONE).num_bytes
        for s in (STORED, FLASH)
    }
    figures.settle(once=core_share[STORED] > 0.5, flash=core_share[FLASH] > 0.5)
