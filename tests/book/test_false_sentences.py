"""Sentences that were false, or true only somewhere: each as it stands now, and the number that it tells."""

import importlib.util
import re
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from cells import texts_of
from torch.utils.checkpoint import checkpoint

from book.cheat_sheet import TECHNIQUES
from memkit import (
    CARDS,
    GIB,
    OptimizerConfig,
    TrainingSetup,
    estimate_memory,
    measure_memory,
    models,
    recipes,
    strategies,
    trace_memory,
)
from memkit.formats.blocks import SCALINGS
from memkit.low_precision import SixteenBitAdamW
from memkit.recomputation import step_flops
from memkit.widgets import FrontierExplorer
from stepscope import OPTIMIZERS, AdapterConfig, Job, Layout, estimate_sharded
from stepscope.planner import code_of, plan_of
from stepscope.widgets import ShardingExplorer


def attends():
    """A program whose peak is inside an attention without gradients; it makes no other large tensor."""
    scale = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([scale], lr=0.1)
    x = torch.ones(2, 8, 512, 64)

    def step():
        with torch.no_grad():
            F.scaled_dot_product_attention(x, x, x)
        scale.sum().backward()
        optimizer.step()

    return step


def test_a_trace_misses_scratch_that_no_operation_returns():
    """The profiler sees what the CPU's attention takes and gives back; each of its threads takes a tile of scores."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced, measured = (
            of(attends, device="cpu", steps=1) for of in (trace_memory, measure_memory)
        )
    # the operand and the result: no tensor is missed
    assert traced.peak_bytes >= 2 * 2 * 8 * 512 * 64 * 4
    assert traced.peak_bytes + 64 * 512 * 4 <= measured.peak_bytes
    assert "misses no tensor" not in "".join(texts_of("00").values())


FUSED = OptimizerConfig(implementation="fused")
LLAMAS = [getattr(models, name) for name in dir(models) if name.startswith("LLAMA_")]


def saved_percent(model, tokens_per_unit: float) -> float:
    """How much lower autocast's peak is than float32's, with flash attention and fused AdamW."""
    tokens = int(tokens_per_unit * model.hidden_size)
    rows = min(tokens, 1024 if model.name.startswith("GPT") else 2048)
    setup = TrainingSetup(
        model=model,
        optimizer=FUSED,
        attention="flash",
        seq_len=rows,
        micro_batch_size=tokens // rows,
    )
    peaks = [
        estimate_memory(TrainingSetup(**{**vars(setup), "precision": precision})).peak_bytes
        for precision in (recipes.AUTOCAST_BF16, recipes.FP32)
    ]
    return 100 * (1 - peaks[0] / peaks[1])


def test_what_autocast_saves_belongs_to_a_model():
    """*Further* of 03: two tokens per hidden unit, for each model that it names, and for every Llama."""
    text = texts_of("03")["curve-read"]
    for name, told in (
        ("GPT2_SMALL", "GPT-2 small saves 0.7 %"),
        ("GPT2_LARGE", "GPT-2 large 6.7 %"),
        ("LLAMA_3_8B", "Llama-3-8B 12.2 %"),
        ("LLAMA_3_70B", "Llama-3-70B 14.5 %"),
    ):
        assert told.endswith(f" {saved_percent(getattr(models, name), 2):.1f} %") and told in text
    assert saved_percent(models.GPT2_SMALL, 2) < 10 < saved_percent(models.GPT2_SMALL, 4)
    at = {
        ratio: [saved_percent(model, ratio) for model in LLAMAS]
        for ratio in (1 / 16, 1 / 4, 1 / 2, 1, 2, 4)
    }
    most = max(max(at[ratio]) for ratio in (1 / 16, 1 / 4, 1 / 2, 1))
    assert (
        f"by {min(at[2]):.0f} to {max(at[2]):.0f} % at two" in text
        and f"by {most:.0f} % at most at one" in text
    )
    assert f"At four a Llama saves {min(at[4]):.0f} to {max(at[4]):.0f} %." in text
    assert len(LLAMAS) > 5 and saved_percent(models.GPT2_SMALL, 2) == pytest.approx(0.69, abs=0.01)


SHARES = {
    174.49: "94.7",
    179.94: "97.6",
    110.95: "60.2",
    112.88: "61.25",
    112.63: "61.12",
    78.63: "42.67",
}
"""torchtitan's nvfp4.md: the reserved peak of each of the six runs in GiB, and its share of the card in per cent."""


def test_the_cards_of_torchtitan_s_runs_are_no_b200():
    """Every share, rounded as it is printed, allows an interval of sizes; a B200 lies below all of them."""
    least, most = 0.0, 1000.0
    for gib, printed in SHARES.items():
        percent, half = float(printed), 0.5 / 10 ** len(printed.partition(".")[2])
        least = max(least, 100 * gib / (percent + half))
        most = min(most, 100 * gib / (percent - half))
    assert least < most and round(least, 1) == round(most, 1) == 184.3
    b200_gib = CARDS["B200"].memory_bytes / GIB
    assert b200_gib < 179.94 < least
    told = texts_of("06")["memory-check-read"]
    assert "a card of 184.3 GiB" in told and f"A B200 has {b200_gib:.2f} GiB" in told
    assert "four Blackwell cards of 184 GiB (GB200-class" in texts_of("06")["published-text"]
    assert "four B200" not in "".join(texts_of("06").values())


def test_bits_of_a_value_are_told_with_their_scales():
    told = texts_of("06")["memory-check-read"]
    assert f"**MXFP8** has {SCALINGS['mx'].bits_per_value('float8_e4m3fn')} bits per value" in told
    assert (
        f"**NVFP4** has {SCALINGS['nvfp4'].bits_per_value('float4_e2m1fn')}: an 8-bit scale for 16 values"
        in told
    )
    assert SCALINGS["nvfp4"].bits_per_value("float4_e2m1fn") == 4 + 8 / 16
    assert (
        f"MXFP8, {SCALINGS['mx'].bits_per_value('float8_e4m3fn')} bits a value"
        in texts_of("06")["torchao-text"]
    )
    assert (
        f"its input takes {SCALINGS['nvfp4'].bits_per_value('float4_e2m1fn')} bits a value"
        in texts_of("06")["published-text"]
    )


def test_the_third_figure_of_torchtitan_s_page_agrees_less():
    """Its version 3a299f2: "The bf16 tail costs about [...] 8 GiB compared with full NVFP4"; the tail is 5 blocks."""
    gib = 5 * (3 * 4096 + 14_336) * 65_536 * (16 - 4.5) / 8 / GIB
    told = texts_of("06")
    assert "about 8 GiB" in told["published-text-further"]
    assert (
        f"they cost {gib:.1f} GiB, which is {gib / 8 - 1:.0%}".replace("%", " %")
        in told["speed-text-further"]
    )
    assert f"cost about 8 GiB there, and {gib:.1f} by our count" in told["speed-text"]


def test_six_gigabytes_are_reached_at_1346_tokens():
    """Lesson 10's recipe of QLoRA: the longest sequence whose step stays below 6 GB, beside the recipe's batch."""
    recipe = Job(
        model=models.LLAMA_2_7B,
        precision=recipes.AUTOCAST_BF16,
        micro_batch_size=4,
        seq_len=2048,
        adapter=AdapterConfig(rank=16, base="nf4"),
        recomputation="full",
        optimizer=OptimizerConfig(record=OPTIMIZERS["paged 8-bit AdamW"]),
    )

    def peak(tokens: int) -> int:
        return (
            estimate_memory(replace(recipe, micro_batch_size=1, seq_len=tokens))
            .for_step(2)
            .peak.total_bytes
        )

    assert peak(1346) <= 6 * 10**9 < peak(1347)
    assert 8192 / 1346 == pytest.approx(6.1, abs=0.05)
    text = texts_of("10")["qlora-recipe-read"]
    assert all(words in text for words in ("about 1,350 tokens", "six times fewer", "8,192"))


def test_the_panel_of_the_frontier_is_one_plane():
    """Chapter 04's panel has one pair of axes, so the text describes one."""
    words = re.findall(
        r"<text[^>]*>([^<]+)", FrontierExplorer(model="GPT-2 large").shown.chart.svg()
    )
    assert words.count("peak") == 1 == sum("FLOPs run again" in word for word in words)
    assert not any("sequence" in word for word in words)
    assert " half" not in texts_of("04")["timed-read"]


def test_collectives_call_record_stream_no_more():
    """torch's own sources: NCCL's header keeps the tensors, FSDP1 records a stream itself, ``fully_shard`` does not."""
    root = Path(torch.__file__).parent
    header = (root / "include/torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp").read_text(
        encoding="utf-8"
    )
    assert "std::shared_ptr<TensorShelf> stashed_for_allocator_safety_" in header
    assert tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 8)
    fsdp = root / "distributed/fsdp"
    assert "    _no_dispatch_record_stream(" in (fsdp / "_flat_param.py").read_text(
        encoding="utf-8"
    )
    newer = "".join(
        path.read_text(encoding="utf-8") for path in (fsdp / "_fully_shard").glob("*.py")
    )
    assert "foreach_all_gather" in newer and "record_stream(" not in newer
    told = texts_of("11")["cluster"]
    assert "PyTorch 2.7 " in told and "`record_stream`" in told
    assert "pytorch#148590" in told and "pytorch#194701" in told


BRIDGED = ("A100 PCIe 40 GB", "A100 PCIe 80 GB", "H100 PCIe", "H100 NVL", "RTX 3090")
"""NVIDIA's data sheets: NVLink of these is a bridge between two cards (three bridges side by side on A100 and H100)."""


def test_a_bridge_joins_two_cards_and_the_text_says_so():
    """Which cards have one, and 1.5 F/B by a bridge and by PCIe, which the answers of lesson 11 tell."""
    told, at_nine = texts_of("11")["links-text"], texts_of("09")["planner-eight-text"]
    times = [CARDS[name].link_bytes_per_s / CARDS[name].pcie_bytes_per_s for name in BRIDGED]
    assert f"{min(times):.1f} to {max(times):.1f} times PCIe's" in at_nine
    assert {name for name, card in CARDS.items() if card.num_linked_cards == 2} == set(BRIDGED)
    card, answers = CARDS["H100 PCIe"], texts_of("11")["explorer-text"]
    for dp_size, rate in ((2, 0.8 * 300), (8, 0.5 * 63)):
        said = " ".join(ShardingExplorer(card=card.name, dp_size=dp_size).shown.words)
        least = 1.5 * 0.4 * card.peak_tflops["bfloat16"] * 1e3 / rate
        words = f"{float(f'{least:.2g}'):,.0f}"
        assert f"and {rate:.0f} GB/s it takes about {words} tokens" in said and words in answers
    assert all(name.removesuffix(" 40 GB").removesuffix(" 80 GB") in told for name in BRIDGED)


def test_megatron_s_distributed_optimizer_shards_states_only():
    """NVIDIA's table: "Distributed Optimizer": parameters replicated, states sharded; in our stages that is stage 1."""
    told = texts_of("C")["names"]
    assert "| weights, gradients, states sharded | d | `fsdp` | `use_megatron_fsdp` |" in told
    assert "`use_distributed_optimizer` alone shards the optimizer states" in told
    setup = TrainingSetup(model=models.TINY_LLAMA, seq_len=64, optimizer=FUSED)
    whole, first = (
        estimate_sharded(setup, Layout(stage=stage, dp_size=2)).for_step(2).at("optimizer")
        for stage in (0, 1)
    )
    assert first.weights == whole.weights and first.gradients == whole.gradients
    assert first.optimizer_states == pytest.approx(whole.optimizer_states / 2, rel=0.01)


def test_the_sheet_s_flags_are_today_s_names():
    """transformers' own source: the old argument is an alias that goes in version 6."""
    told, flags = texts_of("D")["sheet-text"], {technique.flag for technique in TECHNIQUES}
    assert "activation_checkpointing=True" in flags
    assert "`activation_checkpointing` was `gradient_checkpointing`" in told
    spec = importlib.util.find_spec("transformers")
    if spec is None:
        pytest.skip("transformers is not installed")
    source = Path(spec.origin).with_name("training_args.py").read_text(encoding="utf-8")
    assert re.search(r"eprecated.*`activation_checkpointing`.* v6\b", source)
    assert all(name in source for name in ("use_liger_kernel", "adamw_bnb_8bit"))


def test_the_rate_of_the_printed_code_is_a_placeholder():
    """Every text has it, for adapters and for all weights, and no byte of a trace depends on it."""
    told = texts_of("09")["planner-code-text"]
    for adapter, rate in ((None, "2e-05"), (AdapterConfig(rank=16), "0.0002")):
        job = Job(
            model=models.LLAMA_32_1B,
            precision=recipes.AUTOCAST_BF16,
            optimizer=FUSED,
            adapter=adapter,
        )
        assert (
            f"learning_rate = {rate}  # yours to choose"
            in code_of(plan_of(job, CARDS["H100 SXM"])).text
        )
    assert "learning rate" in told and "0.00002" in told

    def traced(lr: float):
        def build():
            layer = torch.nn.Linear(64, 64)
            optimizer = torch.optim.AdamW(layer.parameters(), lr=lr)

            def step():
                layer(torch.ones(1, 64)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()

            return step

        return trace_memory(build, device="cpu").instants

    assert traced(3e-4) == traced(2e-5)


def test_fp16_arrives_at_four_by_luck():
    """Lesson 02's sum: between 2 and 4 a term is just over half a step, so each addition moves a whole one."""
    term, total, at = torch.tensor(0.001).half(), torch.tensor(0.0).half(), {}
    for number in range(1, 4097):
        total = total + term
        at.setdefault(total.item(), number)
    assert total == 4.0 and at[4.0] - at[2.0] == 2 * 2**9  # as many as there are steps from 2 to 4
    assert at[4.0] * term.item() < 3.1  # the exact sum is far behind
    assert "goes too far as well, from 2 on, and sticks at 4" in texts_of("02")["sums-loop-read"]


def test_lesson_04_s_line_runs_the_blocks_in_evaluation_too():
    """What stands in the place of ``x = block(x)`` has to do that where nothing is trained."""
    text = texts_of("04")["two-lines-text"]
    loop = text.partition("```python\n")[2].partition("```")[0].replace("self.", "model.")
    model = torch.nn.Module()
    model.blocks = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))
    for model_ in (model.train(), model.eval()):
        names = {"checkpoint": checkpoint, "model": model_, "x": (x := torch.randn(2, 8))}
        exec(loop, names)
        for block in model.blocks:
            x = block(x)
        assert torch.equal(names["x"], x)


def test_what_the_two_cures_of_lesson_03_take():
    """Weight, gradient and states of bfloat16 weights: rounding by chance keeps what plain rounding keeps."""
    taken = []
    for write in ("nearest", "kahan"):
        weight = torch.nn.Parameter(torch.ones(1000, dtype=torch.bfloat16))
        optimizer = SixteenBitAdamW([weight], lr=1e-3, write=write)
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        kept = [t for t in optimizer.state[weight].values() if torch.is_tensor(t) and t.dim()]
        taken.append(sum(t.nbytes for t in (weight, weight.grad, *kept)) / 1000)
    told = "want {:g} or {:g} bytes per parameter | bf16 weights with stochastic rounding ({:g}) or Kahan ({:g})"
    assert told.format(*taken, *taken) in texts_of("03")["rule"]


def test_saving_attention_alone_spares_few_flops():
    """Lesson 04's table says it of both models, so a fifth that is too much asks for the products."""
    large = TrainingSetup(model=models.GPT2_LARGE, micro_batch_size=8)
    llama = TrainingSetup(model=models.LLAMA_3_8B, precision=recipes.PURE_BF16, seq_len=4096)
    shares = [
        [f"{100 * step_flops(setup, way).overhead:.0f}" for setup in (large, llama)]
        for way in (strategies.SAVE_ATTENTION, strategies.FULL)
    ]
    (attention, of_attention), (full, of_full) = shares
    told = texts_of("04")["strategies-read"]
    assert f"two values, for {attention} to {of_attention} % more FLOPs" in told
    assert f"*full* keeps one, for {full} to {of_full} %" in told
    assert step_flops(large, strategies.SAVE_PRODUCTS).overhead == 0
