"""Proofs of group K, offload: what leaves the card, what crosses the link, and what the libraries call it."""

import inspect
from dataclasses import replace

import pytest
import torch
from claims.test_claims_a import BILLION, parameters_of

from book.claims import rounds_to
from memkit.cards import CARDS
from memkit.models import LLAMA_2_7B, TINY_LLAMA
from memkit.recipes import FP32, PURE_BF16, OptimizerConfig
from memkit.setup import TrainingSetup
from stepscope.formula import link_bytes
from stepscope.program.sharded import one_rank_of, sharded_build
from stepscope.setup import Job, Layout
from stepscope.sharding import estimate_sharded
from stepscope.tracing.trace import trace_script

TOKENS = 2048
LLAMA = TrainingSetup(
    model=LLAMA_2_7B,
    precision=PURE_BF16,
    seq_len=TOKENS,
    recomputation="full",
    optimizer=OptimizerConfig(implementation="fused"),
)
CARD, LINK_CARD = "RTX 4090", "A100 SXM 80 GB"
PUBLISHED = {"card_s": 1.27, "host_s": 1.52}
"""Seconds a step in the table of torchao/optim/README.md: no offload, and its own CPUOffloadOptimizer."""


def test_C334(figures):
    layout = Layout(
        stage=3,
        dp_size=figures["ranks"],
        param_dtype="bfloat16",
        reduce_dtype="float32",
        offloads=True,
    )
    setup = replace(LLAMA, precision=FP32)
    short = estimate_sharded(replace(setup, seq_len=figures["short"]), layout).for_step(2).peak
    long = estimate_sharded(replace(setup, recomputation="none"), layout).for_step(2).peak
    assert (figures["ranks"], figures["short"], figures["long"]) == (8, 512, TOKENS)
    assert rounds_to(short.total_bytes / BILLION, figures["short_gb"])
    assert rounds_to(long.total_bytes / BILLION, figures["long_gb"])
    assert rounds_to((short.total_bytes - short.activations) / BILLION, figures["moving_gb"])
    figures.settle(
        few_activations=rounds_to(short.total_bytes / BILLION, figures["printed_gb"]),
        nothing_run_again=rounds_to(long.total_bytes / BILLION, figures["printed_gb"]),
    )


def test_C335(figures):
    """On the card after a traced step of FSDP2 with ``CPUOffloadPolicy``."""
    setup = TrainingSetup(model=replace(TINY_LLAMA, num_layers=2), seq_len=64)
    on_card = {}
    for offloads in (False, True):
        with one_rank_of(2):
            timeline = trace_script(
                sharded_build(setup, Layout(stage=3, dp_size=2, offloads=offloads))
            )
        on_card[offloads] = timeline.at("optimizer", step=2).parts
    assert on_card[False]["weights"] and on_card[False]["optimizer_states"]
    figures.settle(
        parameters=not on_card[True]["weights"], states=not on_card[True]["optimizer_states"]
    )


def test_C336(figures):
    rates = {}  # PCI-SIG: gigatransfers a second and lane, 128 of 130 bits are data, 16 lanes, 8 bits a byte
    for name, generation, transfers in (("T4", 3, 8), ("RTX 4090", 4, 16), ("H100 SXM", 5, 32)):
        rates[generation] = transfers * 16 * 128 / 130 / 8
        assert CARDS[name].pcie_bytes_per_s == pytest.approx(rates[generation] * BILLION)
        assert rounds_to(rates[generation], figures[f"gen_{generation}"])
    assert (
        rounds_to(100 * figures["printed"] / rates[4], figures["percent"])
        and figures["printed"] == 20
    )
    figures.settle(gen_3=rates[3] >= figures["printed"], gen_4=rates[4] >= figures["printed"])


def test_C340(figures):
    accelerate = pytest.importorskip("accelerate")
    assert figures["argument"] == accelerate.cpu_offload.__name__
    assert figures["field"] in inspect.signature(accelerate.DeepSpeedPlugin).parameters
    plugin = accelerate.DeepSpeedPlugin(**{"zero_stage": 2, figures["field"]: "cpu"})
    assert plugin.deepspeed_config["zero_optimization"]["offload_optimizer"]["device"] == "cpu"
    try:
        inspect.signature(accelerate.Accelerator).bind(**{figures["argument"]: True})
    except TypeError:
        is_taken = False
    else:
        is_taken = True
    figures.settle(argument=is_taken)


def test_C342(figures):
    card = CARDS[LINK_CARD]
    on_host = Job(**vars(LLAMA), place="on the host")
    moved = 2 * torch.bfloat16.itemsize * parameters_of(LLAMA_2_7B)
    assert moved == sum(link_bytes(on_host).values()) and figures["tokens"] == TOKENS
    link_s = moved / card.pcie_bytes_per_s
    compute_s = 8 * parameters_of(LLAMA_2_7B) * TOKENS / (card.peak_tflops["bfloat16"] * 10**12)
    assert rounds_to(link_s, figures["link_s"]) and rounds_to(compute_s, figures["compute_s"])
    assert all(figures[name] == seconds for name, seconds in PUBLISHED.items())
    figures.settle(measured=figures["host_s"] > figures["card_s"], link=link_s > compute_s)
