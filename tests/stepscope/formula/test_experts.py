"""A block of experts against transformers' own module, tensor by tensor of what autograd keeps."""

from dataclasses import replace

import pytest
import torch
from ledger_sections import section_of

from memkit.formula.activations import block_ledger
from memkit.low_precision import LOWER_PRECISION
from memkit.measure import saved_bytes
from memkit.models import TINY_LLAMA
from memkit.recipes import AUTOCAST_BF16, FP32, PURE_BF16
from memkit.setup import TrainingSetup
from stepscope.experts import experts_config
from stepscope.program.job import Experts

MODEL = experts_config(
    replace(TINY_LLAMA, has_qk_norm=True), num_experts=8, experts_per_token=2, expert_size=104
)


@pytest.mark.parametrize("precision", [FP32, PURE_BF16], ids=lambda precision: precision.name)
def test_a_block_keeps_what_transformers_own_keeps_whatever_is_chosen(precision):
    transformers = pytest.importorskip("transformers", reason="the extra zoo")
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

    setup = TrainingSetup(
        model=MODEL,
        precision=precision,
        micro_batch_size=2,
        seq_len=32,
        device="cpu",
        attention="stored",
    )
    ours = section_of(block_ledger(setup), "experts").num_bytes
    h, e, c, g = MODEL.hidden_size, MODEL.num_experts, MODEL.experts_per_token, MODEL.expert_size
    w = 4 if precision is FP32 else 2
    assert (
        ours == 64 * (4 * (e + 1) + c * ((2 * h + 4 * g + 1) * w + 4 * 8 + 4)) + 64 * h * w + 4 * e
    )

    config = transformers.Qwen3MoeConfig(
        hidden_size=h,
        num_experts=e,
        num_experts_per_tok=c,
        moe_intermediate_size=g,
        norm_topk_prob=True,
    )
    config._experts_implementation = "grouped_mm"
    dtype = getattr(torch, precision.weight_dtype)
    block = Qwen3MoeSparseMoeBlock(config).to(dtype)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    tokens = torch.randn(2, 32, h, dtype=dtype)
    # every token to its own experts, all to the same
    for x in (tokens, tokens[:1, :1].expand(2, 32, h).contiguous()):
        x.requires_grad_()
        assert saved_bytes(lambda x=x: block(x), block.parameters()) == ours


def test_autocast_does_not_know_a_grouped_product():
    assert not {"grouped_mm", "_grouped_mm"} & set(LOWER_PRECISION.split())  # CUDA's list
    experts = Experts(TrainingSetup(model=MODEL, precision=AUTOCAST_BF16), device="cpu")
    with torch.autocast("cpu", torch.bfloat16):
        out = experts.mlp(torch.randn(4, MODEL.hidden_size), torch.full((8,), 4, dtype=torch.int32))
    assert out.dtype is torch.float32
