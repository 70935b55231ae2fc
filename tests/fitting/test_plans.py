"""Plans against traces, their code against torch and the libraries' own argument classes."""

import json
import random
import re
import runpy
import warnings
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

from memkit.fitting.plan_code import (
    KINDS,
    accelerate_yaml,
    code_of,
    opposites,
    plain_code,
    trainer_arguments,
)
from memkit.fitting.plans import (
    GIVES_UP,
    PlansFound,
    find_plans,
    plan_of,
    plan_recomputation,
    runs_without_a_card,
    traced,
    ways_of,
)
from memkit.fitting.room import fit_on
from memkit.hardware.cards import CARDS
from memkit.program.sharded import one_rank_of, sent_at_once
from memkit.program.transformer import Transformer, random_batches
from memkit.recomputation.costs import step_flops
from memkit.setup.layouts import Layout
from memkit.setup.models import LLAMA_2_7B, LLAMA_32_1B, TINY_LLAMA
from memkit.setup.recipes import PURE_BF16, OptimizerConfig
from memkit.setup.strategies import NONE
from memkit.setup.training import TrainingSetup
from memkit.tracing.trace import trace_memory
from memkit.units import GIB

ROOT = Path(__file__).parents[2]
JUDGE = runpy.run_path(str(ROOT / "scripts" / "judge_plans.py"))
RECORDED = json.loads(JUDGE["FILE"].read_text(encoding="utf-8"))
CARD = CARDS["RTX 4090"]
FOUND = find_plans(LLAMA_32_1B, CARD, tokens_per_step=8192, seq_len=2048)
TINY = TrainingSetup(model=TINY_LLAMA, seq_len=128)
TINY_PLANS = [plan_of(setup, CARD) for setup, _ in ways_of(TINY, None, 2)]
LAYOUTS = [Layout(stage=stage, dp_size=4) for stage in range(4)]
HALVES = (CARD, "bfloat16"), (CARDS["T4"], "float16")
SPREAD = [plan_of(setup, card, spread) for layout in LAYOUTS for card, half in HALVES
          for setup, spread in ways_of(TINY, layout, 2, half=half)]
HALF = [plan_of(setup, CARDS["T4"]) for setup, _ in ways_of(TINY, None, 2, half="float16")]
OFFLOADED = [plan_of(p.setup, CARD, replace(p.layout, offloads=True)) for p in SPREAD if p.layout.stage == 3]


def test_a_plan_fits_by_the_one_rule():
    for plan in FOUND.plans:
        assert plan.fits == (fit_on(CARD, plan.peak_bytes).expected_bytes >= 0) == (plan in FOUND.fitting)
    assert len(FOUND.fitting) + len(FOUND.missed) == len(FOUND.plans)


def test_more_memory_never_costs_more_flops_and_none_is_never_enough():
    setup = TrainingSetup(model=LLAMA_32_1B, precision=PURE_BF16, seq_len=8192)
    fitting = [plan_recomputation(setup, card * GIB).fitting for card in range(8, 60, 4)]
    costs = [step_flops(plans[0].setup).total for plans in fitting if plans]
    assert costs == sorted(costs, reverse=True) and len(set(costs)) > 2
    assert not fitting[0] and fitting[-1][0].setup.recomputation is NONE


def test_every_plan_does_the_same_work():
    assert {plan.setup.tokens_per_micro_batch * plan.setup.grad_accum_steps for plan in FOUND.plans} == {8192}


def test_nothing_on_the_front_is_beaten_and_everything_else_is():
    for plan in FOUND.fitting:
        mine = plan.peak_bytes, plan.seconds
        better = [o for o in FOUND.fitting if o.peak_bytes <= mine[0] and o.seconds <= mine[1]
                  and set(o.gives_up) <= set(plan.gives_up) and (o.peak_bytes, o.seconds) != mine]
        assert bool(better) == (plan not in FOUND.front), plan.name


def test_what_does_not_fit_is_told_by_how_much():
    text = str(replace(FOUND, plans=FOUND.missed))
    assert "Nothing fits." in text and f"{len(FOUND.missed)} of {len(FOUND.missed)} do not fit" in text
    sizes = [plan.peak_bytes for plan in FOUND.missed]
    assert sizes == sorted(sizes) and FOUND.missed[0].fit.expected_bytes < 0


@pytest.mark.parametrize("plan", [*TINY_PLANS[::9], *HALF[::9]], ids=lambda plan: plan.name)
def test_the_formula_is_the_trace(plan):
    again = traced(plan)
    if not runs_without_a_card(plan.setup):
        assert again.traced_bytes is None
    else:
        assert again.traced_bytes == pytest.approx(plan.peak_bytes, rel=0.01)


@pytest.mark.parametrize("stage", range(4))
def test_a_rank_is_traced_too(stage):
    setup, layout = next(ways_of(TINY, Layout(stage=stage, dp_size=4), 2))
    plan = plan_of(setup, CARD, layout)
    assert traced(plan).traced_bytes == pytest.approx(plan.peak_bytes, rel=0.02)


def test_sharding_lets_a_model_fit_that_no_card_holds():
    one, eight = (find_plans(LLAMA_2_7B, CARD, tokens_per_step=16384, seq_len=2048, num_cards=n) for n in (1, 8))
    assert all(plan.gives_up for plan in one.fitting)
    assert eight.fitting[0].layout.stage == 3 and eight.fitting[0].gives_up == ()


def test_the_words_of_a_sacrifice_are_ordered():
    costs = {plan.gives_up: plan.sacrifice for plan in TINY_PLANS}
    factored, small, smaller, rounded, adapters, four_bits = GIVES_UP
    assert costs[()] < costs[factored,] < costs[small,] < costs[smaller,] < costs[rounded,]
    assert costs[rounded,] < costs[small, rounded] < costs[adapters,]
    assert costs[adapters,] < costs[adapters, four_bits]
    assert [plan.sacrifice for plan in FOUND.fitting] == sorted(plan.sacrifice for plan in FOUND.fitting)


RUN_BY_TORCH = [p for p in TINY_PLANS if runs_without_a_card(p.setup) and p.setup.adapter is None][::9]
HALF_BY_TORCH = [p for p in HALF if runs_without_a_card(p.setup) and p.setup.adapter is None][::5]
WITH_ADAPTERS = [p for p in (*TINY_PLANS, *HALF) if p.setup.adapter and p.setup.adapter.base == "as loaded"][::3]


# --- its code -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [*RUN_BY_TORCH, *HALF_BY_TORCH, *SPREAD[::11]], ids=lambda p: p.name)
def test_the_plain_code_runs_and_peaks_where_the_plan_says(plan):
    """The text, executed on a model that recomputes nothing by itself, is traced."""

    def build():
        bare = replace(plan.setup, recomputation="none")
        names = {"model": Blocks(Transformer(bare)), "batches": batches_of(plan.setup)}
        text = plain_code(plan)
        if plan.layout and plan.layout.is_fully_sharded:  # without a card torch would shard over processors
            names["mesh"] = init_device_mesh("cuda", (plan.layout.world_size,))
            text = re.sub(r"fully_shard\((block|model)", r"\g<0>, mesh=mesh", text)
        exec(text, names)
        if isinstance(names["model"], torch.nn.parallel.DistributedDataParallel):
            names["model"].register_comm_hook(None, sent_at_once)
        return names["step"]

    with one_rank_of(plan.layout.world_size) if plan.layout else nullcontext():
        found = trace_memory(build, steps=2).for_step(2)
    assert found.peak_bytes == pytest.approx(plan.peak_bytes, rel=0.02)


def import_peft() -> None:
    """peft loads bitsandbytes, which would ask for a card's functions if it first did so in a trace."""
    pytest.importorskip("bitsandbytes")
    pytest.importorskip("peft")


def batches_of(setup: TrainingSetup):
    """Random inputs and targets without end."""
    draw = random_batches(setup.model, setup)
    while True:
        yield draw()


@pytest.mark.parametrize("plan", [*RUN_BY_TORCH[::3], *HALF_BY_TORCH[::3], *WITH_ADAPTERS], ids=lambda p: p.name)
def test_the_plain_code_runs_on_a_model_of_transformers(plan):
    """A Llama of Hugging Face's of the same sizes, whose layers, names and outputs are its own."""
    import_peft()
    transformers, model = pytest.importorskip("transformers"), plan.setup.model
    config = transformers.LlamaConfig(
        hidden_size=model.hidden_size, num_hidden_layers=model.num_layers, num_attention_heads=model.num_heads,
        num_key_value_heads=model.num_kv_heads, intermediate_size=model.intermediate_size,
        vocab_size=model.vocab_size, max_position_embeddings=model.max_seq_len,
    )

    def build():
        names = {"model": transformers.LlamaForCausalLM(config).to("cuda"), "batches": batches_of(plan.setup)}
        exec(code_of(plan, "transformers"), names)
        return names["step"]

    peak = trace_memory(build, steps=2).for_step(2).peak_bytes
    assert peak == pytest.approx(plan.peak_bytes, rel=0.05)  # its rotary tables and masks are not ours


@pytest.mark.parametrize("plan", WITH_ADAPTERS, ids=lambda p: p.name)
def test_adapters_are_added_to_the_books_model_by_its_own_names(plan):
    import_peft()

    def build():
        names = {"model": Transformer(replace(plan.setup, adapter=None, recomputation="none")),
                 "batches": batches_of(plan.setup)}
        exec(plain_code(plan), names)
        return names["step"]

    assert trace_memory(build, steps=2).for_step(2).peak_bytes == pytest.approx(plan.peak_bytes, rel=0.05)


def test_what_a_library_does_otherwise_is_said():
    plans = {plan.setup.optimizer.place: plan for plan in TINY_PLANS}
    assert "# an optimizer in backward has no argument" in code_of(plans["in backward"], "trainer")
    saving = next(plan for plan in TINY_PLANS if plan.setup.recomputation.name == "save attention")
    assert "'save attention' has no argument" in code_of(saving, "trainer")
    assert "adapters have no key" in accelerate_yaml(WITH_ADAPTERS[0])
    assert "never all the logits" in code_of(TINY_PLANS[0], "trainer")


def test_the_host_is_said_and_checked():
    """Llama-2-7B in full on one card by 10.1's answer: weights, gradients and two moments in bf16 are on the host."""
    place = "on the host, gradients too"
    setup = TrainingSetup(
        model=LLAMA_2_7B, precision=PURE_BF16, seq_len=2048, recomputation="full",
        optimizer=OptimizerConfig(place=place),
    )
    plan = plan_of(setup, CARDS["RTX 4090"])
    assert plan.fits and place in plan.name
    assert plan.host_bytes == pytest.approx(8 * 6_738_415_616, rel=0.001)
    assert not replace(plan, host_room_bytes=32 * GIB).fits and replace(plan, host_room_bytes=64 * GIB).fits
    missed = PlansFound(plans=(replace(plan, host_room_bytes=32 * GIB),))
    assert "the host would hold 50.21 GiB, 32.00 GiB are there" in " ".join(str(missed).split())


class Blocks(torch.nn.Module):
    """A model with ``blocks``, in the precision that it is given."""

    def __init__(self, model):
        super().__init__()
        self.inner, self.blocks = model, model.blocks

    def forward(self, inputs, targets):
        with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.FLASH_ATTENTION,
                                             torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION]):
            return self.inner(inputs, targets)


@pytest.mark.parametrize("plan", [*TINY_PLANS[::3], *SPREAD[::5], *HALF[::5]], ids=lambda plan: plan.name)
def test_the_trainer_takes_every_argument(plan, tmp_path):
    """TRL's own class is made of them; nothing is deprecated, and what it holds is the plan."""
    trl = pytest.importorskip("trl")
    given = trainer_arguments(plan) | {"output_dir": str(tmp_path)}
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        made = trl.SFTConfig(**given, use_cpu=True)
    assert (made.per_device_train_batch_size, made.gradient_accumulation_steps) == (
        plan.setup.micro_batch_size, plan.setup.grad_accum_steps)
    assert (made.max_length, made.optim) == (plan.setup.seq_len, given["optim"])
    assert made.fp16 == plan.scales_loss and made.bf16 == given["bf16"]
    in_file = plan.layout is not None and plan.layout.is_fully_sharded
    assert made.activation_checkpointing == (plan.setup.recomputation.name != "none" and not in_file)


def as_launched(text: str, path: Path) -> dict:
    """What ``accelerate launch`` hands to the script's environment for a file, by its own code."""
    launch = pytest.importorskip("accelerate.commands.launch")
    path.write_text(text, encoding="utf-8")
    arguments = launch.launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
    arguments, config, _ = launch._validate_launch_command(arguments)
    assert isinstance(config, pytest.importorskip("accelerate.commands.config.config_args").ClusterConfig)
    if config.num_processes == 1:
        return launch.prepare_simple_launcher_cmd_env(arguments)[1]
    return launch.prepare_multi_gpu_env(arguments)


@pytest.mark.parametrize("plan", [*TINY_PLANS[::17], *HALF[::17], *SPREAD[::3], *OFFLOADED[::7]], ids=lambda p: p.name)
def test_accelerate_reads_the_file_as_the_plan(plan, tmp_path, monkeypatch):
    """Its loader takes every key, and the plugin that it makes of them has the layout's choices."""
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

    environment = as_launched(accelerate_yaml(plan), tmp_path / "accelerate.yaml")
    is_mixed = plan.setup.precision.uses_autocast or bool(plan.layout and plan.layout.param_dtype)
    wanted = "fp16" if plan.scales_loss else "bf16" if is_mixed else "no"
    assert environment["ACCELERATE_MIXED_PRECISION"] == wanted
    sharded = plan.layout is not None and plan.layout.is_fully_sharded
    assert ("ACCELERATE_USE_FSDP" in environment) == sharded
    if not sharded:
        return
    for name, value in environment.items():
        if name.startswith("FSDP_"):
            monkeypatch.setenv(name, value)
    plugin = pytest.importorskip("accelerate").FullyShardedDataParallelPlugin()
    assert plugin.fsdp_version == 2 and plugin.reshard_after_forward == (plan.layout.stage == 3)
    assert isinstance(plugin.cpu_offload, CPUOffloadPolicy) == plan.layout.offloads
    assert plugin.activation_checkpointing == (plan.setup.recomputation.name == "full")
    if is_mixed:
        plugin.set_mixed_precision(environment["ACCELERATE_MIXED_PRECISION"])
        assert isinstance(plugin.mixed_precision_policy, MixedPrecisionPolicy)
        assert plugin.mixed_precision_policy.param_dtype == getattr(torch, plan.layout.param_dtype)


def test_accelerate_refuses_a_key_that_is_none(tmp_path):
    text = accelerate_yaml(SPREAD[-1]) + "\nreshard: true"
    with pytest.raises(ValueError, match="unknown keys"):
        as_launched(text, tmp_path / "accelerate.yaml")


def test_a_key_is_worth_what_its_opposite_traces():
    """The bytes of a comment are the difference of two traces."""
    plan = next(p for p in SPREAD if p.layout.stage == 3 and p.setup.recomputation.name == "full")
    text = accelerate_yaml(plan)
    here = traced(plan).traced_bytes
    assert set(opposites(plan)) == {"mixed_precision", "num_processes", "fsdp_reshard_after_forward",
                                    "fsdp_offload_params", "fsdp_activation_checkpointing"}
    for key, (value, other) in opposites(plan).items():
        more = traced(other).traced_bytes - here
        assert other.peak_bytes - plan.peak_bytes == pytest.approx(more, abs=0.02 * here)
        [line] = [line for line in text.splitlines() if line.strip().startswith(f"{key}:")]
        sign = (other.peak_bytes > plan.peak_bytes) - (other.peak_bytes < plan.peak_bytes)
        assert f"# {value}: " in line and line.endswith(("the same peak", "more", "less")[sign])


def test_every_kind_of_code_is_given():
    plan = TINY_PLANS[0]
    assert all(code_of(plan, kind) for kind in KINDS)
    kinds = "plain, transformers, trainer, accelerate"
    with pytest.raises(ValueError, match=f"kind='jax' is not one of {kinds}"):
        code_of(plan, "jax")


# --- judged ---------------------------------------------------------------------------------------------------------


def test_the_recorded_jobs_were_judged_right():
    jobs, about = RECORDED["jobs"], RECORDED["about"]
    found = JUDGE["about"](jobs, about["seed"])
    assert all(found[key] == about[key] for key in ("jobs", "right", "traced", "said", "ratio_least", "ratio_most"))
    assert about["right"] == about["jobs"] == len(jobs) == sum(bool(job["traced"]) for job in jobs)


@pytest.mark.parametrize("number", [0, -1])
def test_a_recorded_job_is_judged_right_again(number):
    recorded = RECORDED["jobs"][number]
    chance = random.Random(f"{RECORDED['about']['seed']} {number % len(RECORDED['jobs'])}")
    again = JUDGE["judged"](JUDGE["random_job"](chance), chance)
    advice = "the planner tries other plans than were judged: run scripts/judge_plans.py 30 for new jobs"
    assert recorded["plans"] == again["plans"], advice
    assert all(again[key] == recorded[key] for key in recorded if key != "traced") and not again["wrong"]
    traced_again = {name: by_trace for name, _, _, by_trace in again["traced"]}
    assert {name: size for name, _, _, size in recorded["traced"] if size}.items() <= traced_again.items()


@pytest.mark.parametrize("tokens, words", [(1000, "no whole number of 2048 × 1 tokens; 2048 would be"), (0, "below 1"),
                                           (5000, "4096 or 6144 would be")])
def test_a_wrong_number_of_tokens_is_refused(tokens, words):
    with pytest.raises(ValueError, match=words):
        find_plans(TINY_LLAMA, CARD, tokens_per_step=tokens, seq_len=2048)
