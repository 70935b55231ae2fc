"""Every kind of text that is printed for a plan, executed: the model, the optimizer and the peak are the plan's."""

import os
import warnings
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from memkit.fitting import plan_run
from memkit.fitting.accelerate_file import accelerate_yaml, opposites
from memkit.fitting.grid import layouts_of
from memkit.fitting.plan import plan_of
from memkit.fitting.plan_code import KINDS, LIBRARIES, code_of, trainer_arguments, why_not
from memkit.fitting.plan_run import NUM_STEPS, made_from_config, run_text, traced
from memkit.fitting.plans import find_plans
from memkit.formula.parameters import count_adapter_parameters, count_parameters
from memkit.hardware.cards import CARDS
from memkit.program.transformer import Transformer, random_batches
from memkit.setup.adapters import AdapterConfig, linear_layers
from memkit.setup.hugging_face import config_of, model_of_config
from memkit.setup.layouts import Layout
from memkit.setup.models import PUBLISHED_MODELS, TINY_LLAMA, gpt2_config, llama_config
from memkit.setup.recipes import (
    AUTOCAST_BF16,
    AUTOCAST_FP16,
    BF16_MASTER,
    FP32,
    FUSED_ADAMW,
    KAHAN_BF16,
    MEGATRON,
    PURE_BF16,
    OptimizerConfig,
)
from memkit.setup.strategies import FULL, SAVE_ATTENTION, SAVE_EVERY_SECOND, every, groups, sequential
from memkit.setup.training import TrainingSetup

os.environ["HF_HUB_OFFLINE"] = "1"
CARD = CARDS["RTX 4090"]
SIZES = {"num_layers": 3, "hidden_size": 512, "num_heads": 8}
LLAMA = llama_config("small", **SIZES, num_kv_heads=4, intermediate_size=1376, vocab_size=8192, max_seq_len=512)
MODELS = {
    "Llama": LLAMA,
    "Qwen2": replace(LLAMA, ties_embeddings=True, has_qkv_bias=True),
    "GPT-2": replace(gpt2_config("small", **SIZES), vocab_size=8192, max_seq_len=512),
}


def adamw(place: str, implementation: str = "fused") -> OptimizerConfig:
    return OptimizerConfig(place=place, implementation=implementation)


def named(name: str, implementation: str = "fused") -> OptimizerConfig:
    return OptimizerConfig(name=name, implementation=implementation)


def sharded(stage: int, **choices) -> Layout:
    return Layout(stage=stage, dp_size=4, **choices)


LORA, QLORA = {"precision": PURE_BF16, "adapter": "as loaded"}, {"precision": PURE_BF16, "adapter": "nf4"}
IN_BF16 = {"precision": FP32, "layout": sharded(3, param_dtype="bfloat16", reduce_dtype="float32")}
PLANS = {
    "full": {"precision": AUTOCAST_BF16}, "pure, recomputed": {"precision": PURE_BF16, "recomputation": FULL},
    "float32": {"precision": FP32}, "float16": {"precision": AUTOCAST_FP16},
    "Kahan": {"precision": KAHAN_BF16}, "master": {"precision": BF16_MASTER}, "Megatron": {"precision": MEGATRON},
    "LoRA": LORA, "QLoRA": {**QLORA, "recomputation": FULL},
    "host": {"precision": PURE_BF16, "optimizer": adamw("on the host", "foreach")},
    "gradients too": {
        "precision": AUTOCAST_BF16, "optimizer": adamw("on the host, gradients too", "foreach"), "grad_accum_steps": 1,
    },
    "in backward": {"precision": PURE_BF16, "optimizer": adamw("in backward"), "grad_accum_steps": 1},
    "paged, groups": {"precision": AUTOCAST_BF16, "optimizer": named("paged AdamW"), "recomputation": groups(2)},
    "8-bit, segments": {
        "precision": AUTOCAST_BF16, "optimizer": named("torchao 8-bit AdamW"), "recomputation": sequential(3),
    },
    "4-bit, policy": {
        "precision": PURE_BF16, "optimizer": named("torchao 4-bit AdamW"), "recomputation": SAVE_EVERY_SECOND,
    },
    "Adafactor, every second": {
        "precision": AUTOCAST_BF16, "optimizer": named("Adafactor", "for-loop"), "recomputation": every(2),
    },
    "policy": {"precision": AUTOCAST_BF16, "recomputation": SAVE_ATTENTION},
    "DDP": {"precision": AUTOCAST_BF16, "layout": sharded(0)},
    "DDP, view": {"precision": PURE_BF16, "layout": sharded(0, gradient_as_bucket_view=True)},
    "ZeRO-1": {"precision": AUTOCAST_BF16, "layout": sharded(1)},
    "ZeRO-2": {**IN_BF16, "layout": replace(IN_BF16["layout"], stage=2), "recomputation": FULL},
    "ZeRO-3": IN_BF16, "ZeRO-3, host": {"precision": PURE_BF16, "layout": sharded(3, offloads=True)},
}


def made(family: str, name: str, kind: str):
    choices = {"grad_accum_steps": 2, "optimizer": FUSED_ADAMW} | PLANS[name]
    layout, base = choices.pop("layout", None), choices.pop("adapter", None)
    adapter = base and AdapterConfig(rank=16, targets=linear_layers(MODELS[family]), base=base)
    setup = TrainingSetup(
        model=MODELS[family], seq_len=512, micro_batch_size=2, adapter=adapter,
        uses_fused_norm=LIBRARIES[kind] == "book", **choices,
    )
    return plan_of(setup, CARD, layout)


EACH = [("Llama", "plain", name) for name in PLANS]
EACH += [(family, "transformers", name) for name in PLANS for family in ("Llama", "GPT-2")][::3]
EACH += [(family, "trainer", name) for family, name in (
    ("Llama", "full"), ("Qwen2", "LoRA"), ("GPT-2", "LoRA"), ("Llama", "QLoRA"), ("GPT-2", "pure, recomputed"),
    ("Llama", "paged, groups"), ("GPT-2", "8-bit, segments"), ("Qwen2", "Adafactor, every second"),
    ("Llama", "4-bit, policy"), ("GPT-2", "float16"), ("Qwen2", "policy"),
)]
EACH += [("Qwen2", "transformers", "QLoRA"), ("GPT-2", "transformers", "QLoRA"), ("GPT-2", "plain", "QLoRA")]
ALL = [(family, kind, name) for family in MODELS for kind in ("plain", "transformers", "trainer") for name in PLANS]
REST = [pytest.param(*case, marks=pytest.mark.exhaustive) for case in ALL if case not in EACH]


@pytest.mark.parametrize(("family", "kind", "name"), [*EACH, *REST])
def test_the_text_is_the_plan(family, kind, name, monkeypatch):
    """Traced as it is printed: peak, weights' dtypes, trained parameters, optimizer, checkpoints."""
    pytest.importorskip("bitsandbytes")
    pytest.importorskip("torchao")
    plan, seen = made(family, name, kind), {}
    if why_not(plan, kind):
        with pytest.raises(ValueError, match="not offered"):
            code_of(plan, kind)
        return
    plan_run.traced_bytes.cache_clear()
    monkeypatch.setattr(plan_run, "run_text", lambda text, *how: run_text(text, *how, seen=seen))
    assert traced(plan, kind).traced_bytes == pytest.approx(plan.peak_bytes, rel=0.015 if name == "QLoRA" else 0.01)
    assert_it_is_the_plan(plan, kind, seen)


def assert_it_is_the_plan(plan, kind: str, seen: dict) -> None:
    """What the executed text left behind, by torch's and the libraries' own words."""
    setup, model = plan.setup, seen["model"]
    trained = [p for p in model.parameters() if p.requires_grad]
    if setup.adapter:
        assert sum(p.numel() for p in trained) == count_adapter_parameters(setup.model, setup.adapter)
        assert {p.dtype for p in trained} == {torch.float32}
        num_4_bit = sum(type(m).__name__.endswith("Linear4bit") and not hasattr(m, "lora_A") for m in model.modules())
        num_linear = len(linear_layers(setup.model)) * setup.model.num_layers
        assert num_4_bit == (num_linear if setup.adapter.base == "nf4" else 0)
    elif plan.layout is None:
        assert sum(p.numel() for p in trained) == count_parameters(setup.model)
        assert {p.dtype for p in trained} == {getattr(torch, setup.precision.weight_dtype)}
    optimizer = seen.get("optimizer") or getattr(seen.get("trainer"), "optimizer", None)
    optimizer = optimizer or next(iter(seen["optimizers"].values()))  # in the backward each weight has its own
    optimizer = getattr(optimizer, "optimizer", optimizer)  # Accelerate's wrapper
    names = {type(optimizer).__name__, *(c.__name__ for c in type(optimizer).__mro__)}
    wanted = {"kahan": "SixteenBitAdamW", "master": "SixteenBitAdamW"}.get(getattr(optimizer, "write", ""), "")
    wanted = wanted or {"on the host": "CPUOffloadOptimizer"}.get(str(setup.optimizer.place)[:11], "")
    wanted = wanted or ("ZeroRedundancyOptimizer" if plan.layout and plan.layout.stage == 1 else "")
    known = setup.optimizer.record.made_by.partition(":")[2]
    assert (wanted or known) in names or (known.startswith("Paged") and optimizer.is_paged)
    num_wrapped = sum("checkpoint" in str(vars(module).get("forward")) for module in model.modules())
    regions = [is_again for _, is_again in setup.recomputation.regions(setup.model.num_layers)]
    if kind == "trainer" and setup.recomputation == FULL:
        assert seen["trainer"].args.activation_checkpointing
    else:
        assert num_wrapped == sum(regions)


# --- what stands in for files and for a driver ------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["Llama", "GPT-2"])
def test_what_stands_in_for_the_loader_is_what_it_loads(family, tmp_path):
    """A saved model in 4 bits by ``from_pretrained`` on the CPU: the same modules and dtypes."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("bitsandbytes")
    setup = replace(made(family, "QLoRA", "transformers").setup, device="cpu")
    choices = {"device_map": "cpu", "dtype": torch.bfloat16, "use_cache": False}
    made_from_config(setup, "saved", **choices).save_pretrained(tmp_path)
    in_4_bits = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4",
                                                bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.bfloat16)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=in_4_bits, **choices)
    ours = made_from_config(setup, "saved", quantization_config=in_4_bits, **choices)

    def what(model) -> dict:
        return {name: (type(module).__name__, *(p.dtype for p in module.parameters(recurse=False)))
                for name, module in model.named_modules()}

    assert what(loaded) == what(ours)


@pytest.mark.parametrize("model", [*PUBLISHED_MODELS.values(), *MODELS.values()], ids=lambda model: model.name)
def test_a_configuration_is_the_way_back(model):
    assert replace(model_of_config(config_of(model)), name=model.name) == model
    with pytest.raises(ValueError, match="no model of transformers"):
        config_of(replace(model, norm="layernorm", mlp="swiglu"))


def test_a_loop_in_float16_trains():
    """The printed code on the CPU, with real values: its scale holds, and one step lowers the loss of its batch."""
    torch.manual_seed(0)
    setup = TrainingSetup(model=TINY_LLAMA, seq_len=64, precision=AUTOCAST_FP16, optimizer=FUSED_ADAMW, device="cpu")
    batch = random_batches(TINY_LLAMA, setup)()
    names = {"model": Transformer(setup), "batches": iter([batch] * 9)}
    exec(code_of(plan_of(setup, CARDS["T4"])), names)
    first, *_, last = (names["step"]() for _ in range(4))
    assert names["scaler"].get_scale() == 2**16 and last < first


# --- what each library has an argument for ----------------------------------------------------------------------------


def test_what_a_library_cannot_say_is_not_offered_and_the_reason_is_given():
    """Llama-2-7B on a 4090 was printed for the trainer without its offload: 52.81 GiB for 19.73."""
    found = find_plans(PUBLISHED_MODELS["Llama-2-7B"], CARD, tokens_per_step=16384, seq_len=2048, code="trainer")
    assert "on the host: the trainer has no argument" in found.not_tried
    assert all(plan.setup.optimizer.place == "after backward" for plan in found.in_order)
    kinds = "plain, transformers, trainer, accelerate"
    with pytest.raises(ValueError, match=f"kind='jax' is not one of {kinds}"):
        code_of(found.plans[0], "jax")


@pytest.mark.parametrize("name", [name for name in PLANS if not why_not(made("GPT-2", name, "trainer"), "trainer")])
def test_the_trainer_takes_every_argument(name, tmp_path):
    """Nothing is deprecated, and what its own class holds is the plan."""
    transformers, plan = pytest.importorskip("transformers"), made("GPT-2", name, "trainer")
    given = trainer_arguments(plan) | {"output_dir": str(tmp_path)}
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        args = transformers.TrainingArguments(**given, use_cpu=True)
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (2, plan.setup.grad_accum_steps)
    assert args.optim == given["optim"] and (args.fp16, args.bf16) == (plan.scales_loss, given["bf16"])


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


def in_file():
    """Plans that Accelerate's file can say."""
    setups = [made("Llama", "full", "plain").setup, replace(made("Llama", "ZeRO-3", "plain").setup, recomputation=FULL)]
    for setup in setups:
        for layout in layouts_of(4):
            half = "bfloat16" if setup.precision == FP32 and layout.is_fully_sharded else None
            plan = plan_of(setup, CARD, replace(layout, param_dtype=half))
            if not why_not(plan, "accelerate"):
                yield plan


@pytest.mark.parametrize("plan", in_file(), ids=lambda plan: plan.name)
def test_accelerate_reads_the_file_as_the_plan(plan, tmp_path, monkeypatch):
    """Its loader takes every key, and the plugin that it makes of them has the layout's choices."""
    from torch.distributed.fsdp import CPUOffloadPolicy

    environment = as_launched(accelerate_yaml(plan), tmp_path / "accelerate.yaml")
    is_mixed = plan.setup.precision.uses_autocast or bool(plan.layout.param_dtype)
    assert environment["ACCELERATE_MIXED_PRECISION"] == ("bf16" if is_mixed else "no")
    assert ("ACCELERATE_USE_FSDP" in environment) == plan.layout.is_fully_sharded
    if not plan.layout.is_fully_sharded:
        return
    for name, value in environment.items():
        if name.startswith("FSDP_"):
            monkeypatch.setenv(name, value)
    plugin = pytest.importorskip("accelerate").FullyShardedDataParallelPlugin()
    assert plugin.fsdp_version == 2 and plugin.reshard_after_forward == (plan.layout.stage == 3)
    assert isinstance(plugin.cpu_offload, CPUOffloadPolicy) == plan.layout.offloads
    assert plugin.activation_checkpointing == (plan.setup.recomputation == FULL)
    if is_mixed:
        plugin.set_mixed_precision("bf16")
        policy = plugin.mixed_precision_policy
        assert (policy.param_dtype, policy.reduce_dtype) == (torch.bfloat16, torch.bfloat16)  # "not offered" says so


def test_accelerate_refuses_a_key_that_is_none(tmp_path):
    text = accelerate_yaml(next(in_file())) + "\nreshard: true"
    with pytest.raises(ValueError, match="unknown keys"):
        as_launched(text, tmp_path / "accelerate.yaml")


def test_a_key_is_worth_what_its_opposite_traces():
    """The bytes of a comment are the difference of two traces."""
    is_full = (lambda plan: plan.layout.stage == 3 and plan.layout.param_dtype and plan.setup.recomputation == FULL)
    plan = next(filter(is_full, in_file()))
    here = traced(plan).traced_bytes
    assert set(opposites(plan)) == {"mixed_precision", "num_processes", "fsdp_reshard_after_forward",
                                    "fsdp_offload_params", "fsdp_activation_checkpointing"}
    for key, (value, other) in opposites(plan).items():
        more = traced(other).traced_bytes - here
        assert other.peak_bytes - plan.peak_bytes == pytest.approx(more, abs=0.02 * here)
        [line] = [line for line in accelerate_yaml(plan).splitlines() if line.strip().startswith(f"{key}:")]
        sign = (other.peak_bytes > plan.peak_bytes) - (other.peak_bytes < plan.peak_bytes)
        assert f"# {value}: " in line and line.endswith(("the same peak", "more", "less")[sign])


def test_every_kind_of_text_is_python_or_a_file():
    for kind in KINDS:
        plan = next(in_file()) if kind == "accelerate" else made("Llama", "LoRA", kind)
        text = code_of(plan, kind)
        with nullcontext() if kind == "accelerate" else warnings.catch_warnings():
            assert text if kind == "accelerate" else compile(text, "plan", "exec")
    assert NUM_STEPS == 2
