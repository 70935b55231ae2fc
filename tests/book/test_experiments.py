"""What the prose of chapters 00, 04, 05, 07 and 08 says of its experiments and panels, computed."""

import re
from dataclasses import replace

import torch
from cells import texts_of

from memkit.cards import CARDS
from memkit.fit import fit_on
from memkit.formula.parameters import count_by_kind
from memkit.models import LLAMA_2_7B, LLAMA_32_1B, ModelConfig
from memkit.recipes import FUSED_ADAMW, PURE_BF16, OptimizerConfig
from memkit.recomputation import Point, cheapest, pareto_front, points
from memkit.setup import TrainingSetup
from memkit.tracing import trace_memory
from memkit.units import GIB, MIB, format_bytes
from memkit.widgets.frontier_explorer import MODELS
from stepscope.allocator.caching import AllocatorConfig
from stepscope.allocator.film import STORIES, Film
from stepscope.planner.plan import least_seconds, second_step
from stepscope.setup import AdapterConfig, Job, Layout
from stepscope.sharding import estimate_sharded

LLAMA = TrainingSetup(model=LLAMA_32_1B, precision=PURE_BF16, optimizer=FUSED_ADAMW)


def own_build(make_optimizer, rows: int):
    """The program of chapter 00, section "Your own model"."""

    def build():
        layers = (torch.nn.Linear(20_000, 20_000), torch.nn.ReLU(), torch.nn.Linear(20_000, 20_000))
        model = torch.nn.Sequential(*layers).to("cuda")
        optimizer = make_optimizer(model.parameters())

        def step():
            model(torch.randn(rows, 20_000, device="cuda")).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return build


def test_sgd_and_a_hundred_times_the_batch():
    sgd = trace_memory(own_build(lambda p: torch.optim.SGD(p, lr=0.1), 64)).for_step(2)
    large = trace_memory(own_build(torch.optim.AdamW, 6400)).for_step(2)
    text = texts_of("00")["own-read"]
    assert format_bytes(sgd.peak_bytes) in text
    assert format_bytes(large.at("forward").activations) in text
    assert format_bytes(large.peak_bytes) in text and "optimizer" in large.peak.name


def plane(model: ModelConfig, micro_batch_size: int, seq_len: int) -> tuple[Point, ...]:
    """What the explorer shows."""
    shape = {"micro_batch_size": micro_batch_size, "seq_len": seq_len}
    return points(replace(LLAMA, model=model, **shape))


def test_what_the_frontier_explorer_chooses():
    told = texts_of("04")
    text, room = (
        told["time-read"].partition("## The frontier")[2],
        fit_on(CARDS["RTX 4090"], 0).room_bytes,
    )
    lengths = re.findall(r"([\d,]+)(?: tokens)?: \*([^*]+)\*", text)
    assert len(lengths) == 3
    for length, name in lengths:
        found = plane(MODELS["Llama-3.2-1B"], 8, int(length.replace(",", "")))
        assert cheapest(found, room).strategy.name == name
    assert all(point.peak_bytes > room for point in plane(MODELS["Llama-3.2-1B"], 8, 4096))
    assert "From 4,096 on nothing fits." in text
    assert "From 4,096 tokens on, at a micro-batch of 8." in told["timed-read"]
    large = plane(MODELS["GPT-2 large"], 8, 1024)
    assert (
        cheapest(large, room).strategy.name == "none"
        and "*None* fits the RTX 4090" in told["timed-read"]
    )
    chosen = cheapest(large, fit_on(CARDS["T4"], 0).room_bytes).strategy.name
    assert f"On a T4 it {chosen.replace('save', 'saves', 1)}." in told["timed-read"]
    on_front = {p.strategy.name for p in pareto_front(plane(MODELS["Llama-3.2-1B"], 8, 1024))}
    assert "√L groups" in on_front and "attention core" not in on_front
    assert "√L groups" not in {
        p.strategy.name for p in pareto_front(plane(MODELS["Llama-3-8B"], 1, 8192))
    }
    assert (
        "are on the front for Llama-3.2-1B with 8 sequences of 1,024 tokens" in told["groups-read"]
    )


def film_of(story: str, expandable: bool, card_mib: int | None = None) -> Film:
    config = AllocatorConfig(expandable_segments=expandable)
    return Film(tuple(STORIES[story]()), config, card_mib and card_mib * MIB)


def smallest_card(story: str, expandable: bool) -> int:
    """The smallest card, in steps of 4 MiB, on which a story does not fail."""
    for card_mib in range(64, 257, 4):
        film = film_of(story, expandable, card_mib)
        if not film.state(len(film)).failure:
            return card_mib
    raise AssertionError(story)


def test_what_the_allocator_lab_shows():
    text = texts_of("07")["lab-text"].partition("What you should find")[2]
    reserved = re.search(r"2\. (\d+) MiB; (\d+) with", text).groups()
    fails = []
    for option, num_mib in zip((False, True), reserved, strict=True):
        free = film_of("a growing sequence", option)
        small = film_of("a growing sequence", option, 64)
        assert free.state(len(free)).reserved_bytes == int(num_mib) * MIB
        fails.append(bool(small.state(len(small)).failure))
    assert fails == [False, True]
    sizes = re.search(r"3\. (\d+) MiB; (\d+) with", text).groups()
    assert [smallest_card("a training step", option) for option in (False, True)] == list(
        map(int, sizes)
    )


def test_the_cuts_of_a_batch_are_what_the_text_says():
    """The table's rows, and one of eight ranks under DDP."""
    card, setup = CARDS["H100 SXM"], replace(LLAMA, seq_len=8192)
    sizes = {
        1: 2,
        2: 2,
        4: 2,
        8: 2,
    }  # sequences in a micro-batch; from two on their number changes no peak
    sizes = {size: replace(setup, micro_batch_size=size, grad_accum_steps=2) for size in sizes}
    peaks = {size: second_step(each).peak_bytes for size, each in sizes.items()}
    verdicts = [fit_on(card, peak).verdict for peak in peaks.values()]
    assert verdicts == ["fits", "fits", "tight", "does not fit"]
    text = texts_of("05")["back"]
    two, four = (format_bytes(peaks[size], 1) for size in (2, 4))
    assert f"Micro-batch 2 fits, with {two}. 4 is tight: {four.split()[0]} of" in text
    spare = fit_on(card, peaks[4]).fragments_bytes / GIB
    room = (
        f"the card's {format_bytes(card.memory_bytes, 1)}. It fits if no more than {spare:.1f} GiB"
    )
    assert room in text
    ddp = estimate_sharded(sizes[1], Layout(stage=0, dp_size=8)).for_step(2).peak_bytes
    assert f"each peak is {format_bytes(ddp - peaks[1], 1)} higher" in text


def test_a_micro_batch_of_few_tokens_waits_for_the_weights():
    card = CARDS["H100 SXM"]
    short = replace(LLAMA, seq_len=128, grad_accum_steps=4)
    seconds = [
        least_seconds(each, card)
        for each in (short, replace(short, micro_batch_size=4, grad_accum_steps=1))
    ]
    further = texts_of("05")["planner-roofline"]
    assert f"at least {seconds[0] / seconds[1]:.2f} times as long as with four" in further
    whole = replace(LLAMA, seq_len=512, grad_accum_steps=4)
    cut = replace(whole, micro_batch_size=4, grad_accum_steps=1)
    assert least_seconds(whole, card) == least_seconds(cut, card)


def test_a_pass_of_295_tokens_computes_as_long_as_it_reads():
    card = CARDS["H100 SXM"]
    rate, bandwidth = card.peak_tflops["bfloat16"], card.memory_bandwidth
    assert (
        f"({rate} · 10¹² FLOP/s ÷ {bandwidth / 1e12:.2f} · 10¹² B/s)"
        in texts_of("05")["planner-roofline"]
    )
    assert round(rate * 1e12 / bandwidth) == 295
    seconds = [least_seconds(replace(LLAMA, seq_len=tokens), card) for tokens in (100, 295, 590)]
    assert seconds[0] == seconds[1] < 0.51 * seconds[2]


def recomputed_peak(base: str, rank: int) -> str:
    """The explorer's bar for LoRA (``as loaded``) or QLoRA (``nf4``) with every block recomputed."""
    adapter = AdapterConfig(rank=rank, targets=("query", "key", "value", "output"), base=base)
    setup = Job(
        model=LLAMA_2_7B,
        precision=PURE_BF16,
        optimizer=OptimizerConfig(implementation="fused"),
        adapter=adapter,
        recomputation="full",
        seq_len=2048,
        micro_batch_size=4,
    )
    return format_bytes(second_step(setup).peak_bytes)


def test_what_a_larger_rank_costs():
    for base in ("nf4", "as loaded"):
        assert (
            f"{recomputed_peak(base, 16)} to {recomputed_peak(base, 256)}"
            in texts_of("10")["own-read"]
        )


def test_what_32_bit_states_of_an_embedding_cost():
    values = count_by_kind(LLAMA_32_1B)["embedding"]
    assert f"{values:,} values" in texts_of("09")["eight-bit-rules"]
    assert f"{values * (8 - 2) / 1e9:.1f} GB" in texts_of("09")["eight-bit-rules"]
