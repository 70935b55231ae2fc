"""What a linear layer keeps, against torchao's real layer and published tables of memory."""

import pytest
import torch
from torch import nn
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

from book.linear_memory import LINEAR_KEEPS, linear_inputs, linear_keeps, saved_inputs_bytes
from memkit.by_hand import Fp8Linear
from memkit.formats.blocks import scale_to
from memkit.formats.records import get_format
from memkit.measure import measure_memory
from memkit.models import LLAMA_3_8B, llama_config
from memkit.tracing.trace import trace_memory

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


def casts_of(name: str) -> list[tuple[str, str]]:
    """The formats of everything that a library keeps cast: the input, and the weight once or twice."""
    return [LINEAR_KEEPS[name].saved, *LINEAR_KEEPS[name].weight_casts]


@pytest.mark.parametrize("name", [name for name in LINEAR_KEEPS if LINEAR_KEEPS[name].saved[1]])
def test_a_cast_takes_the_bytes_of_its_codes_and_scales(name):
    """Of the matrices themselves, two four-bit codes a byte: each is cast along the dimension that is summed."""
    shapes = [(INPUTS, TOKENS), (OUTPUTS, INPUTS), (INPUTS, OUTPUTS)]
    sizes = []
    for shape, (element, scaling) in zip(shapes, casts_of(name), strict=False):
        held = scale_to(torch.randn(shape).numpy(), element, scaling)
        scale_bits = held.scaling.scale.storage_bits * held.factors.block_scales.size
        tensor_scale = 32 * held.scaling.has_tensor_scale
        element_bits = get_format(element).bits * held.codes.size
        sizes.append((element_bits + scale_bits + tensor_scale) // 8)
    parts = linear_keeps(name, TOKENS, INPUTS, OUTPUTS)
    assert sizes[0] == parts["saved input"]
    assert sum(sizes[1:]) == parts["weight, cast"] + parts["weight, cast and transposed"]


@pytest.mark.parametrize("tell", [trace_memory, measure_memory])
def test_a_layer_that_keeps_its_casts_keeps_so_many_bytes(tell):
    """The lesson's layer: the input and the weight, a byte a value and a factor each."""

    def build():
        model = nn.Sequential(Fp8Linear(INPUTS, OUTPUTS, bias=False, dtype=torch.bfloat16))
        x = torch.zeros(TOKENS, INPUTS, dtype=torch.bfloat16, requires_grad=True)
        return lambda: model(x.clone()).sum().backward()

    parts = linear_keeps("TE per tensor, Blackwell", TOKENS, INPUTS, OUTPUTS)
    kept = tell(build, device="cpu", steps=1).at("forward").activations
    assert kept == parts["saved input"] + parts["weight, cast"] + 4  # the loss


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
