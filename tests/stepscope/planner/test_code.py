"""The text that is printed for a plan, executed: the model, the optimizer and the peak are the plan's."""

import os
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
from stepscope.formula import count_adapter_parameters, host_bytes
from stepscope.hugging_face import config_of, model_of_config
from stepscope.optimizers import OPTIMIZERS
from stepscope.planner import run_code
from stepscope.planner.code import code_of, why_not
from stepscope.planner.plan import first_groups, plan_of
from stepscope.planner.run_code import made_from_config, run_text, traced
from stepscope.planner.search import find_plans
from stepscope.planner.ways import FP16_MASTER
from stepscope.setup import AdapterConfig, Job, Layout, linear_layers

os.environ["HF_HUB_OFFLINE"] = "1"
CARD = CARDS["RTX 4090"]
SIZES = {"num_layers": 3, "hidden_size": 512, "num_heads": 8}
LLAMA = llama_config(
    "small", **SIZES, num_kv_heads=4, intermediate_size=1376, vocab_size=8192, max_seq_len=512
)
MODELS = {
    "Llama": LLAMA,
    "Qwen2": replace(LLAMA, ties_embeddings=True, has_qkv_bias=True),
    "GPT-2": replace(gpt2_config("small", **SIZES), vocab_size=8192, max_seq_len=512),
    "Qwen3": replace(LLAMA, has_qk_norm=True),
    "experts": experts_config(
        replace(LLAMA, has_qk_norm=True), num_experts=8, experts_per_token=2, expert_size=256
    ),
}


def named(name: str, implementation: str = "fused", place: str = "after backward") -> dict:
    return {
        "optimizer": OptimizerConfig(record=OPTIMIZERS[name], implementation=implementation),
        "place": place,
    }


def adamw(place: str, implementation: str = "fused") -> dict:
    return named("AdamW", implementation, place)


def sharded(stage: int, **choices) -> Layout:
    return Layout(stage=stage, dp_size=4, **choices)


LORA = {"precision": PURE_BF16, "adapter": "as loaded"}
QLORA = {"precision": PURE_BF16, "adapter": "nf4"}
IN_BF16 = {"precision": FP32, "layout": sharded(3, param_dtype="bfloat16", reduce_dtype="float32")}
AUTO, AT_ONCE = {"precision": AUTOCAST_BF16}, {"precision": PURE_BF16, "grad_accum_steps": 1}
PLANS = {
    "full": {"precision": AUTOCAST_BF16},
    "pure, recomputed": {"precision": PURE_BF16, "recomputation": FULL},
    "float32": {"precision": FP32},
    "float16": {"precision": AUTOCAST_FP16},
    "Kahan": {"precision": KAHAN_BF16},
    "master": {"precision": BF16_MASTER},
    "Megatron": {"precision": MEGATRON},
    "LoRA": LORA,
    "QLoRA": {**QLORA, "recomputation": FULL},
    "host": {**AUTO, **adamw("on the host")},
    "master on the host": {"precision": BF16_MASTER, **adamw("on the host")},
    "fp16 on the host": {"precision": FP16_MASTER, **adamw("on the host")},
    "gradients too": {**AUTO, **adamw("on the host, gradients too"), "grad_accum_steps": 1},
    "master, gradients too": {
        "precision": FP16_MASTER,
        **adamw("on the host, gradients too"),
        "grad_accum_steps": 1,
        "recomputation": FULL,
    },
    "pieces": {**AUTO, "loss_pieces": 8},
    "LoRA, pieces": {**LORA, "loss_pieces": 8, "recomputation": FULL},
    "8-bit, pieces": {"precision": PURE_BF16, **named("torchao 8-bit AdamW"), "loss_pieces": 8},
    "in backward": {**adamw("in backward"), **AT_ONCE},
    "paged in backward": {**named("paged AdamW", place="in backward"), **AT_ONCE},
    "paged, groups": {
        "precision": AUTOCAST_BF16,
        **named("paged AdamW"),
        "recomputation": groups(2),
    },
    "8-bit, first": {
        **AUTO,
        **named("torchao 8-bit AdamW"),
        "recomputation": first_groups(1, 2),
    },
    "4-bit, policy": {
        "precision": PURE_BF16,
        **named("torchao 4-bit AdamW"),
        "recomputation": SAVE_EVERY_SECOND,
    },
    "4-bit, every second": {**AUTO, **named("torchao 4-bit AdamW"), "recomputation": every(2)},
    "policy": {**AUTO, "recomputation": SAVE_ATTENTION},
    "DDP": {**AUTO, "layout": sharded(0)},
    "DDP, view": {"precision": PURE_BF16, "layout": sharded(0, gradient_as_bucket_view=True)},
    "ZeRO-1": {"precision": AUTOCAST_BF16, "layout": sharded(1)},
    "ZeRO-2": {**IN_BF16, "layout": replace(IN_BF16["layout"], stage=2), "recomputation": FULL},
    "ZeRO-3": IN_BF16,
    "ZeRO-3, host": {"precision": PURE_BF16, "layout": sharded(3, offloads=True)},
}


def made(family: str, name: str, kind: str):
    choices = {"grad_accum_steps": 2, "optimizer": FUSED_ADAMW} | PLANS[name]
    layout, base = choices.pop("layout", None), choices.pop("adapter", None)
    adapter = base and AdapterConfig(rank=16, targets=linear_layers(MODELS[family]), base=base)
    setup = Job(
        model=MODELS[family],
        seq_len=512,
        micro_batch_size=2,
        adapter=adapter,
        uses_fused_norm=kind == "plain",
        **choices,
    )
    return plan_of(setup, CARD, layout)


EACH = [("Llama", "plain", name) for name in PLANS]
EACH += [(family, "transformers", name) for name in PLANS for family in ("Llama", "GPT-2")][::3]
EACH += [
    ("Qwen2", "transformers", "QLoRA"),
    ("GPT-2", "transformers", "QLoRA"),
    ("GPT-2", "plain", "QLoRA"),
]
EACH += [("Qwen3", "transformers", "LoRA"), ("Qwen2", "transformers", "LoRA, pieces")]
EACH += [
    ("experts", "plain", "LoRA"),
    ("experts", "transformers", "pure, recomputed"),
    ("experts", "plain", "ZeRO-3"),
]
ALL = [
    (family, kind, name)
    for family in MODELS
    for kind in ("plain", "transformers")
    for name in PLANS
]
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
    run_code.traced_bytes.cache_clear()
    monkeypatch.setattr(run_code, "run_text", lambda code, *how: run_text(code, *how, seen=seen))
    assert traced(plan, kind).traced_bytes == pytest.approx(plan.peak_bytes, rel=0.01)
    assert_it_is_the_plan(plan, seen)


def assert_it_is_the_plan(plan, seen: dict) -> None:
    """What the executed text left behind, by torch's and the libraries' own words."""
    setup, model = plan.setup, seen["model"]
    trained = [p for p in model.parameters() if p.requires_grad]
    if setup.adapter:
        assert sum(p.numel() for p in trained) == count_adapter_parameters(
            setup.model, setup.adapter
        )
        assert {p.dtype for p in trained} == {torch.float32}
        num_4_bit = sum(
            type(m).__name__.endswith("Linear4bit") and not hasattr(m, "lora_A")
            for m in model.modules()
        )
        num_linear = len(linear_layers(setup.model)) * setup.model.num_layers
        assert num_4_bit == (num_linear if setup.adapter.base == "nf4" else 0)
    elif plan.layout is None:
        assert sum(p.numel() for p in trained) == count_parameters(setup.model)
        assert {p.dtype for p in trained} == {getattr(torch, setup.precision.weight_dtype)}
    # in the backward each has its own
    optimizer = seen.get("optimizer") or next(iter(seen["optimizers"].values()))
    names = {type(optimizer).__name__, *(c.__name__ for c in type(optimizer).__mro__)}
    wanted = {"kahan": "SixteenBitAdamW", "master": "SixteenBitAdamW"}.get(
        getattr(optimizer, "write", ""), ""
    )
    wanted = wanted or ("ZeroRedundancyOptimizer" if plan.layout and plan.layout.stage == 1 else "")
    known = setup.optimizer.record.made_by.partition(":")[2]
    assert (wanted or known) in names or (known.startswith("Paged") and optimizer.is_paged)
    num_wrapped = sum(
        "checkpoint" in str(vars(module).get("forward")) for module in model.modules()
    )
    regions = [is_again for _, is_again in setup.recomputation.regions(setup.model.num_layers)]
    assert num_wrapped == sum(regions)
    assert ("on_host" in seen) == setup.place.is_on_host


# --- what stands in for files and for a driver ------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["Llama", "GPT-2"])
def test_what_stands_in_for_the_loader_is_what_it_loads(family, tmp_path):
    """A saved model in 4 bits by ``from_pretrained`` on the CPU: the same modules and dtypes."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("bitsandbytes")
    setup = replace(made(family, "QLoRA", "transformers").setup, device="cpu")
    choices = {"device_map": "cpu", "dtype": torch.bfloat16, "use_cache": False}
    made_from_config(setup, "saved", **choices).save_pretrained(tmp_path)
    in_4_bits = transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, quantization_config=in_4_bits, **choices
    )
    ours = made_from_config(setup, "saved", quantization_config=in_4_bits, **choices)

    def what(model) -> dict:
        return {
            name: (type(module).__name__, *(p.dtype for p in module.parameters(recurse=False)))
            for name, module in model.named_modules()
        }

    assert what(loaded) == what(ours)


@pytest.mark.parametrize(
    "model", [*PUBLISHED_MODELS.values(), *MODELS.values()], ids=lambda model: model.name
)
def test_a_configuration_is_the_way_back(model):
    assert replace(model_of_config(config_of(model)), name=model.name) == model
    with pytest.raises(ValueError, match="no model of transformers"):
        config_of(replace(model, position="learned" if model.position == "rotary" else "rotary"))


def test_a_loop_in_float16_trains():
    """The printed code on the CPU, with real values: its scale holds, and one step lowers the loss of its batch."""
    torch.manual_seed(0)
    setup = Job(
        model=TINY_LLAMA, seq_len=64, precision=AUTOCAST_FP16, optimizer=FUSED_ADAMW, device="cpu"
    )
    batch = random_batches(TINY_LLAMA, setup)()
    names = {"model": Transformer(setup), "batches": iter([batch] * 9)}
    exec(code_of(plan_of(setup, CARDS["T4"])).text, names)
    first, *_, last = (names["step"]() for _ in range(4))
    assert names["scaler"].get_scale() == 2**16 and last < first


@pytest.mark.parametrize("place", ["on the host", "on the host, gradients too"])
def test_a_step_on_the_host_is_torch_s_own_step_clipped(place):
    """The printed code on the CPU beside AdamW and clipping in float32 on the model itself: the same weights after."""
    torch.manual_seed(0)
    setup = Job(model=TINY_LLAMA, seq_len=64, optimizer=FUSED_ADAMW, device="cpu", place=place)
    batch, model = random_batches(TINY_LLAMA, setup)(), Transformer(setup)
    plain = Transformer(setup)
    plain.load_state_dict(model.state_dict())
    names = {"model": model, "batches": iter([batch] * 3)}
    exec(code_of(plan_of(setup, CARD)).text, names)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=names["learning_rate"])
    for _ in range(3):
        names["step"]()
        plain(*batch).backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    pairs = zip(model.parameters(), plain.parameters(), strict=True)
    assert all(torch.allclose(ours, torchs, atol=1e-6) for ours, torchs in pairs)


@pytest.mark.parametrize("precision", [PURE_BF16, AUTOCAST_BF16])
def test_what_the_code_keeps_on_the_host_is_what_the_plan_says(precision):
    """Bytes of the tensors themselves; a plan leaves those of fewer than 4,096 values on the card, as torchao does."""
    setup = Job(
        model=TINY_LLAMA, seq_len=64, device="cpu", place="on the host", precision=precision
    )
    batch, model = random_batches(TINY_LLAMA, setup)(), Transformer(setup)
    names = {"model": model, "batches": iter([batch] * 2)}
    exec(code_of(plan_of(setup, CARD)).text, names)
    names["step"]()
    copies, states = names["on_host"].values(), names["optimizer"].state.values()
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
        names["to_host"](p)
    tensors = [value for state in states for value in state.values() if value.dim()]
    kept = {
        "weights": copies,
        "gradients": [copy.grad for copy in copies],
        "optimizer_states": tensors,
    }
    found = {part: sum(tensor.nbytes for tensor in kept[part]) for part in kept}
    assert found == pytest.approx(host_bytes(setup), rel=1e-3)


def test_a_float16_model_with_its_copy_on_the_host_trains():
    """Real values on the CPU: after an overflow at most the scale holds, and the loss of the batch falls."""
    torch.manual_seed(0)
    setup = Job(
        model=TINY_LLAMA,
        seq_len=64,
        optimizer=FUSED_ADAMW,
        device="cpu",
        place="on the host",
        precision=FP16_MASTER,
    )
    batch, code = random_batches(TINY_LLAMA, setup)(), code_of(plan_of(setup, CARD))
    names = {"model": Transformer(setup), "batches": iter([batch] * 9)}
    exec(code.text, names)
    first, *_, last = (names["step"]() for _ in range(6))
    assert names["scaler"].get_scale() >= 2**15 and last < first
    copies, model = names["on_host"], names["model"]
    assert all(
        torch.equal(copies[p].half(), p) and copies[p].dtype == torch.float32
        for p in model.parameters()
    )


@pytest.mark.parametrize("num_pieces", [1, 8])
def test_the_loss_of_a_loaded_model_leaves_out_what_is_no_target(num_pieces, tmp_path):
    """Against transformers' own loss on the labels, rows padded on the right, in float32."""
    transformers = pytest.importorskip("transformers")
    setup = Job(
        model=replace(LLAMA, num_layers=1),
        seq_len=64,
        device="cpu",
        loss_pieces=num_pieces,
        uses_fused_norm=False,
    )
    made_from_config(setup, "saved", device_map="cpu", dtype=torch.float32).save_pretrained(
        tmp_path
    )
    code = code_of(
        plan_of(replace(setup, model=replace(setup.model, num_kv_heads=8)), CARD), "transformers"
    )
    names = {}
    exec(code.text.replace("MODEL", str(tmp_path)), names)
    tokens = torch.randint(8192, (2, 65))
    labels = tokens.clone()
    labels[1, 40:] = -100
    own = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)(
        input_ids=tokens, labels=labels
    ).loss
    ours = names["model"](tokens[:, :-1], labels[:, 1:])
    assert torch.allclose(own, ours, atol=1e-5)


def test_what_cannot_be_said_is_not_offered_and_the_reason_is_given():
    found = find_plans(LLAMA, CARD, tokens_per_step=512, seq_len=512, code="transformers")
    assert "products in float32: the attention of transformers" in found.not_tried
    assert all(plan.setup.precision != FP32 for plan in found.in_order)
    with pytest.raises(ValueError, match="model='jax' is not one of plain, transformers"):
        code_of(found.plans[0], "jax")


def test_a_paged_state_takes_no_memory_of_this_machine():
    """A trace of Llama-3.2-1B's paged AdamW once took 10 GB of it."""
    assert run_code.paged_on_host(2**20, 2**20, dtype=torch.float32, device=None).numel() == 2**40
