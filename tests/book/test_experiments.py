"""What the prose of chapters 00, 04, 05, 07 and 08 says of its experiments and panels, computed."""

import re
from dataclasses import replace

import torch
from cells import texts_of

from memkit.cards import CARDS
from memkit.fit import fit_on
from memkit.formula.parameters import count_by_kind
from memkit.models import LLAMA_2_7B, LLAMA_32_1B
from memkit.recipes import PURE_BF16, OptimizerConfig
from memkit.recomputation import MODELS, pareto_front, points
from memkit.setup import TrainingSetup
from memkit.tracing import trace_memory
from memkit.units import MIB, format_bytes
from memkit.widgets.batch_planner import BatchPlanner
from memkit.widgets.frontier_explorer import cheapest
from stepscope.allocator.caching import AllocatorConfig
from stepscope.allocator.film import STORIES, Film
from stepscope.planner.plan import least_seconds, second_step
from stepscope.setup import AdapterConfig, Job


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


def test_what_the_frontier_explorer_chooses():
    told = texts_of("04")
    text, room = (
        told["time-read"].partition("## The frontier")[2],
        fit_on(CARDS["RTX 4090"], 0).room_bytes,
    )
    lengths = re.findall(r"([\d,]+)(?: tokens)?: \*([^*]+)\*", text)
    assert len(lengths) == 3
    for length, name in lengths:
        found = points(MODELS["Llama-3.2-1B"], 8, int(length.replace(",", "")))
        assert cheapest(found, room).strategy.name == name
    assert all(point.peak_bytes > room for point in points(MODELS["Llama-3.2-1B"], 8, 4096))
    assert "From 4,096 on nothing fits." in text
    assert "From 4,096 tokens on, at a micro-batch of 8." in told["timed-read"]
    large = points(MODELS["GPT-2 large"], 8, 1024)
    assert (
        cheapest(large, room).strategy.name == "none"
        and "*None* fits the RTX 4090" in told["timed-read"]
    )
    chosen = cheapest(large, fit_on(CARDS["T4"], 0).room_bytes).strategy.name
    assert f"On a T4 it {chosen.replace('save', 'saves', 1)}." in told["timed-read"]
    on_front = {p.strategy.name for p in pareto_front(points(MODELS["Llama-3.2-1B"], 8, 1024))}
    assert "√L groups" in on_front and "attention core" not in on_front
    assert "√L groups" not in {
        p.strategy.name for p in pareto_front(points(MODELS["Llama-3-8B"], 1, 8192))
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


def bars(**controls) -> dict[str, tuple[str, ...]]:
    """The planner's table: micro-batch → (steps, peak, relative time)."""
    rows = {}
    for cut, peak, _, _, time in BatchPlanner(**controls).shown.table[1:]:
        size, steps = cut.split(" × ")
        rows[size] = (steps, peak, time)
    return rows


def test_the_experiments_find_what_the_text_says():
    text, opened, with_ddp = texts_of("05")["planner-text"], bars(dp_size=1), bars(dp_size=8)
    sizes = {size: float(peak.removesuffix(" GiB")) for size, (_, peak, _) in opened.items()}
    assert f"Micro-batch 2, with {sizes['2']:.1f} GiB. 4 is tight: {sizes['4']:.1f} of" in text
    assert [row[3] for row in BatchPlanner(dp_size=1).shown.table[1:]] == [
        "fits",
        "fits",
        "tight",
        "does not fit",
    ]
    assert {
        f"{float(peak.removesuffix(' GiB')) - sizes[size]:.1f}"
        for size, (_, peak, _) in with_ddp.items()
    } == {"2.3"}
    assert "By 2.3 GiB: with several cards DDP keeps each gradient a second time" in text
    further = texts_of("05")["planner-roofline"]
    assert f"divided by the shortest, is {bars(dp_size=8, seq_len=128)['1'][2]}." in further
    assert {row[2] for row in bars(seq_len=512).values()} == {"1.00"}


def test_a_pass_of_295_tokens_computes_as_long_as_it_reads():
    card = CARDS["H100 SXM"]
    rate, bandwidth = card.peak_tflops["bfloat16"], card.memory_bandwidth
    assert (
        f"({rate} · 10¹² FLOP/s ÷ {bandwidth / 1e12:.2f} · 10¹² B/s)"
        in texts_of("05")["planner-roofline"]
    )
    assert round(rate * 1e12 / bandwidth) == 295
    fused = OptimizerConfig(implementation="fused")
    setup = TrainingSetup(model=LLAMA_32_1B, precision=PURE_BF16, optimizer=fused)
    seconds = [least_seconds(replace(setup, seq_len=tokens), card) for tokens in (100, 295, 590)]
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
