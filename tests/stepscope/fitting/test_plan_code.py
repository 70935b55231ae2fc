"""Every kind of text that is printed for a plan, executed: the model, the optimizer and the peak are the plan's."""

import os
import warnings
from dataclasses import replace

import pytest
import torch

from memkit.cards import CARDS
from memkit.formula.parameters import count_parameters
from memkit.models import TINY_LLAMA, gpt2_config, llama_config
from memkit.program.transformer import Transformer, random_batches
from memkit.recipes import (
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
from memkit.strategies import FULL, SAVE_ATTENTION, SAVE_EVERY_SECOND, every, groups
from stepscope.experts import PUBLISHED_MODELS, experts_config
from stepscope.fitting import plan_run
from stepscope.fitting.plan import plan_of
from stepscope.fitting.plan_code import LIBRARIES, code_of, trainer_arguments, why_not
from stepscope.fitting.plan_run import made_from_config, run_text, traced
from stepscope.fitting.plans import find_plans
from stepscope.formula.adapters import count_adapter_parameters
from stepscope.hugging_face import config_of, model_of_config
from stepscope.optimizers import OPTIMIZERS
from stepscope.setup import AdapterConfig, Job, Layout, linear_layers

os.environ["HF_HUB_OFFLINE"] = "1"
CARD = CARDS["RTX 4090"]
SIZES = {"num_layers": 3, "hidden_size": 512, "num_heads": 8}
LLAMA = llama_config("small", **SIZES, num_kv_heads=4, intermediate_size=1376, vocab_size=8192, max_seq_len=512)
MODELS = {
    "Llama": LLAMA,
    "Qwen2": replace(LLAMA, ties_embeddings=True, has_qkv_bias=True),
    "GPT-2": replace(gpt2_config("small", **SIZES), vocab_size=8192, max_seq_len=512),
    "Qwen3": replace(LLAMA, has_qk_norm=True),
    "experts": experts_config(replace(LLAMA, has_qk_norm=True), num_experts=8, experts_per_token=2, expert_size=256),
}


def named(name: str, implementation: str = "fused", place: str = "after backward") -> dict:
    return {"optimizer": OptimizerConfig(record=OPTIMIZERS[name], implementation=implementation), "place": place}


def adamw(place: str, implementation: str = "fused") -> dict:
    return named("AdamW", implementation, place)


def sharded(stage: int, **choices) -> Layout:
    return Layout(stage=stage, dp_size=4, **choices)


LORA, QLORA = {"precision": PURE_BF16, "adapter": "as loaded"}, {"precision": PURE_BF16, "adapter": "nf4"}
IN_BF16 = {"precision": FP32, "layout": sharded(3, param_dtype="bfloat16", reduce_dtype="float32")}
AUTO, AT_ONCE = {"precision": AUTOCAST_BF16}, {"precision": PURE_BF16, "grad_accum_steps": 1}
PLANS = {
    "full": {"precision": AUTOCAST_BF16}, "pure, recomputed": {"precision": PURE_BF16, "recomputation": FULL},
    "float32": {"precision": FP32}, "float16": {"precision": AUTOCAST_FP16},
    "Kahan": {"precision": KAHAN_BF16}, "master": {"precision": BF16_MASTER}, "Megatron": {"precision": MEGATRON},
    "LoRA": LORA, "QLoRA": {**QLORA, "recomputation": FULL},
    "host": {"precision": PURE_BF16, **adamw("on the host", "foreach")},
    "gradients too": {**AUTO, **adamw("on the host, gradients too", "foreach"), "grad_accum_steps": 1},
    "in backward": {**adamw("in backward"), **AT_ONCE},
    "paged in backward": {**named("paged AdamW", place="in backward"), **AT_ONCE},
    "Adafactor in backward": {**named("Adafactor", "for-loop", "in backward"), **AT_ONCE},
    "4-bit on the host": {
        **AUTO, **named("torchao 4-bit AdamW", "foreach", "on the host"), "recomputation": groups(2, "", 1),
    },
    "Adafactor on the host": {"precision": FP32, **named("Adafactor", "for-loop", "on the host")},
    "paged, groups": {"precision": AUTOCAST_BF16, **named("paged AdamW"), "recomputation": groups(2)},
    "8-bit, first": {**AUTO, **named("torchao 8-bit AdamW"), "recomputation": groups(1, num_again=2)},
    "4-bit, policy": {
        "precision": PURE_BF16, **named("torchao 4-bit AdamW"), "recomputation": SAVE_EVERY_SECOND,
    },
    "Adafactor, every second": {**AUTO, **named("Adafactor", "for-loop"), "recomputation": every(2)},
    "policy": {**AUTO, "recomputation": SAVE_ATTENTION}, "DDP": {**AUTO, "layout": sharded(0)},
    "DDP, view": {"precision": PURE_BF16, "layout": sharded(0, gradient_as_bucket_view=True)},
    "ZeRO-1": {"precision": AUTOCAST_BF16, "layout": sharded(1)},
    "ZeRO-2": {**IN_BF16, "layout": replace(IN_BF16["layout"], stage=2), "recomputation": FULL},
    "ZeRO-3": IN_BF16, "ZeRO-3, host": {"precision": PURE_BF16, "layout": sharded(3, offloads=True)},
}


def made(family: str, name: str, kind: str):
    choices = {"grad_accum_steps": 2, "optimizer": FUSED_ADAMW} | PLANS[name]
    layout, base = choices.pop("layout", None), choices.pop("adapter", None)
    adapter = base and AdapterConfig(rank=16, targets=linear_layers(MODELS[family]), base=base)
    setup = Job(
        model=MODELS[family], seq_len=512, micro_batch_size=2, adapter=adapter,
        uses_fused_norm=LIBRARIES[kind] == "book", **choices,
    )
    return plan_of(setup, CARD, layout)


EACH = [("Llama", "plain", name) for name in PLANS]
EACH += [(family, "transformers", name) for name in PLANS for family in ("Llama", "GPT-2")][::3]
EACH += [(family, "trainer", name) for family, name in (
    ("Llama", "full"), ("Qwen2", "LoRA"), ("GPT-2", "LoRA"), ("Llama", "QLoRA"), ("GPT-2", "pure, recomputed"),
    ("Llama", "paged, groups"), ("GPT-2", "8-bit, first"), ("Qwen2", "Adafactor, every second"),
    ("Llama", "4-bit, policy"), ("GPT-2", "float16"), ("Qwen2", "policy"),
)]
EACH += [("Qwen2", "transformers", "QLoRA"), ("GPT-2", "transformers", "QLoRA"), ("GPT-2", "plain", "QLoRA")]
EACH += [("GPT-2", "trainer", "QLoRA"), ("Qwen3", "transformers", "LoRA"), ("Qwen3", "trainer", "full")]
EACH += [("experts", "plain", "LoRA"), ("experts", "transformers", "pure, recomputed"), ("experts", "plain", "ZeRO-3")]
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
    assert traced(plan, kind).traced_bytes == pytest.approx(plan.peak_bytes, rel=0.01)
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
    wanted = wanted or {"on the host": "CPUOffloadOptimizer"}.get(str(setup.place)[:11], "")
    wanted = wanted or ("ZeroRedundancyOptimizer" if plan.layout and plan.layout.stage == 1 else "")
    known = setup.optimizer.record.made_by.partition(":")[2]
    assert (wanted or known) in names or (known.startswith("Paged") and optimizer.is_paged)
    num_wrapped = sum("checkpoint" in str(vars(module).get("forward")) for module in model.modules())
    regions = [is_again for _, is_again in setup.recomputation.regions(setup.model.num_layers)]
    if kind == "trainer" and setup.recomputation == FULL and not setup.adapter:
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
        config_of(replace(model, position="learned" if model.position == "rotary" else "rotary"))


def test_a_loop_in_float16_trains():
    """The printed code on the CPU, with real values: its scale holds, and one step lowers the loss of its batch."""
    torch.manual_seed(0)
    setup = Job(model=TINY_LLAMA, seq_len=64, precision=AUTOCAST_FP16, optimizer=FUSED_ADAMW, device="cpu")
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
    assert all(plan.setup.place == "after backward" for plan in found.in_order)
    kinds = "plain, transformers, trainer"
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


def test_a_paged_state_takes_no_memory_of_this_machine():
    """A trace of Llama-3.2-1B's paged AdamW once took 10 GB of it."""
    assert plan_run.paged_on_host(2**20, 2**20, dtype=torch.float32, device=None).numel() == 2**40
