"""What a linear layer keeps, against torchao's real layer and published tables of memory."""

from functools import partial

import pytest
import torch
from torch import nn
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

from book.linear_memory import LINEAR_KEEPS, linear_inputs, linear_keeps, saved_inputs_bytes
from book.small_gpt import SMALL_GPT
from memkit.low_precision.fp8 import FP8_RECIPES, cast_to, convert_to_fp8
from memkit.measure import measure_memory
from memkit.models import LLAMA_3_8B, llama_config
from memkit.program.transformer import Transformer
from memkit.setup import TrainingSetup
from stepscope.tracing.trace import trace_script

QWEN_3_8B = llama_config("Qwen3-8B", 36, 4096, 32, 8, 12288, 151936, 40960)
TOKENS, INPUTS, OUTPUTS = 256, 384, 128


def saved_by(model: nn.Module) -> int:
    """Bytes that autograd keeps beside the weights."""
    kept = {}
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage
        return tensor

    x = torch.randn(TOKENS, INPUTS, dtype=torch.bfloat16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        model(x).sum()
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "rowwise_with_gw_hp"])
def test_torchao_keeps_what_bf16_keeps(recipe):
    model = nn.Sequential(nn.Linear(INPUTS, OUTPUTS, bias=False, dtype=torch.bfloat16))
    plain = saved_by(model)
    config = Float8LinearConfig.from_recipe_name(recipe)
    object.__setattr__(config, "emulate", True)
    assert saved_by(convert_to_float8_training(model, config=config)) == plain
    for name in ("bf16", "torchao float8"):
        assert linear_keeps(name, TOKENS, INPUTS, OUTPUTS)["saved input"] == plain


CASTING = [
    ("tensor", "TE per tensor, Blackwell"),
    ("block", "TE block, Hopper"),
    ("mxfp8", "TE MXFP8"),
    ("nvfp4", "TE NVFP4"),
]


@pytest.mark.parametrize("ours, name", CASTING)
def test_a_layer_that_keeps_the_cast_input_keeps_so_many_bytes(ours, name):
    model = nn.Sequential(nn.Linear(INPUTS, OUTPUTS, bias=False, dtype=torch.bfloat16))
    assert (
        saved_by(convert_to_fp8(model, ours))
        == linear_keeps(name, TOKENS, INPUTS, OUTPUTS)["saved input"]
    )


def forward_of(recipe: str):
    """A program whose forward ends with what one linear layer keeps, and its loss."""

    def build():
        model = nn.Sequential(nn.Linear(INPUTS, OUTPUTS, bias=False, dtype=torch.bfloat16))
        if recipe != "bf16":
            convert_to_fp8(model, recipe)
        x = torch.zeros(TOKENS, INPUTS, dtype=torch.bfloat16, requires_grad=True)

        def step():
            model(2 * x).sum().backward()

        return step

    return build


@pytest.mark.parametrize("ours, name", CASTING)
@pytest.mark.parametrize(
    "tell, device", [(trace_script, "cpu"), (trace_script, "cuda"), (measure_memory, "cpu")]
)
def test_formula_trace_and_measurement_save_the_same_bytes(ours, name, tell, device):
    """Between forward and backward, against bf16; CUDA's blocks are multiples of 512 bytes."""
    kept = [
        tell(forward_of(recipe), device=device, steps=1).at("forward").activations
        for recipe in ("bf16", ours)
    ]
    formula = [
        linear_keeps(recipe, TOKENS, INPUTS, OUTPUTS)["saved input"] for recipe in ("bf16", name)
    ]
    assert abs((kept[0] - kept[1]) - (formula[0] - formula[1])) <= (
        2 * 512 if device == "cuda" else 0
    )


@pytest.mark.parametrize(
    "name", [name for name, keeps in LINEAR_KEEPS.items() if keeps.weight_casts]
)
@pytest.mark.parametrize("tell", [trace_script, measure_memory])
def test_a_weights_casts_take_what_the_formula_says(name, tell):
    """The cast as it stands and the one of the transpose, held from forward to backward as the libraries do."""

    def build():
        weight = nn.Parameter(torch.ones(OUTPUTS, INPUTS, dtype=torch.bfloat16))
        held = []

        def step():
            casts = LINEAR_KEEPS[name].weight_casts
            held[:] = [
                cast_to(w, *cast).tensors
                for w, cast in zip((weight, weight.t()), casts, strict=False)
            ]
            weight.sum().backward()

        return step

    parts = linear_keeps(name, TOKENS, INPUTS, OUTPUTS)
    wanted = parts["weight, cast"] + parts["weight, cast and transposed"]
    timeline = tell(build, device="cpu", steps=1)
    after = timeline.at("forward").total_bytes - 2 * OUTPUTS * INPUTS
    assert after == wanted + 4  # the loss, and the 1 that its backward starts from


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("recipe", FP8_RECIPES)
def test_a_trace_follows_a_whole_model_under_every_recipe(recipe, device):
    """No NeedsValues: and the model's weights, states and gradients are those of the plain model."""

    def build(recipe=recipe):
        model = Transformer(TrainingSetup(model=SMALL_GPT, seq_len=64, device=device))
        if recipe:
            convert_to_fp8(model, recipe, keep=("head",))
        optimizer = torch.optim.AdamW(model.parameters())
        ids = torch.zeros(2, 64, dtype=torch.long, device=device)

        def step():
            model(ids, ids).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    ours, plain = (
        trace_script(make, device=device, steps=1) for make in (build, partial(build, ""))
    )
    for part in ("weights", "gradients", "optimizer_states"):
        assert getattr(ours.at("backward"), part) == getattr(plain.at("backward"), part)
    is_same = ours.at("forward").activations == plain.at("forward").activations
    assert is_same == (recipe == "row_wide_wgrad")  # it keeps the wide input


def test_transformer_engine_s_example_of_a_square_layer():
    """Its page: 1024 x 1024 weight, 1024 tokens, 2 MB of output: 6.00 MB in bf16, 6.02 MB in FP8 (one cast weight)."""
    output = 2 * 1024 * 1024
    for name, printed in (("bf16", 6.00), ("TE per tensor, Blackwell", 6.02)):
        total = sum(linear_keeps(name, 1024, 1024, 1024).values()) + output
        assert total / 2**20 == pytest.approx(printed, abs=0.021)


@pytest.mark.parametrize(
    "model, tokens, bf16, nvfp4, within",
    [(LLAMA_3_8B, 32 * 2048, 174.49, 110.95, 0.01), (QWEN_3_8B, 16 * 2048, 112.88, 78.63, 0.06)],
)
def test_what_nvfp4_saves_is_what_torchtitan_measured(model, tokens, bf16, nvfp4, within):
    """torchtitan, nvfp4.md: GiB a card of 184.3 GiB, FSDP 4; the first 85 % of the blocks are NVFP4."""
    blocks = int(0.85 * model.num_layers)
    saved = saved_inputs_bytes(model, tokens, blocks, "bf16") - saved_inputs_bytes(
        model, tokens, blocks, "TE NVFP4"
    )
    assert saved / 2**30 == pytest.approx(bf16 - nvfp4, rel=within)


def test_on_hopper_eight_bits_save_only_above_two_tokens_an_output():
    def total(name: str, tokens: int) -> int:
        return sum(linear_keeps(name, tokens, 4096, 4096).values())

    for name, even in (("TE per tensor, Hopper", 2 * 4096), ("TE per tensor, Blackwell", 4096)):
        assert total(name, even - 128) > total("bf16", even - 128)
        assert total(name, even + 128) < total("bf16", even + 128)


def test_names_and_a_bad_one():
    assert linear_inputs(LLAMA_3_8B) == 3 * 4096 + 14336
    assert len(LINEAR_KEEPS) == 8
    with pytest.raises(ValueError, match="recipe='fp8' is not one of bf16"):
        linear_keeps("fp8", 128, 128, 128)
