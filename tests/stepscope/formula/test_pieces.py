"""The loss in pieces by formula against a trace of the program, and the program against the loss as a whole."""

from dataclasses import replace

import pytest
import torch

from memkit.formula.estimate import estimate_memory
from memkit.formula.model import model_of
from memkit.models import TINY_LLAMA, gpt2_config, llama_config
from memkit.recipes import AUTOCAST_BF16, AUTOCAST_FP16, FP32, FUSED_ADAMW, PURE_BF16
from memkit.tracing.trace import trace_memory
from stepscope.formula import operations_table
from stepscope.program.job import Transformer, job_build
from stepscope.setup import AdapterConfig, Job, linear_layers

SIZES = {"num_layers": 3, "hidden_size": 512, "num_heads": 8}
LLAMA = llama_config(
    "small", **SIZES, num_kv_heads=4, intermediate_size=1376, vocab_size=32768, max_seq_len=512
)
GPT2 = replace(gpt2_config("small", **SIZES), max_seq_len=512)
PRECISIONS = FP32, AUTOCAST_BF16, AUTOCAST_FP16, PURE_BF16


def jobs():
    for model in (LLAMA, replace(LLAMA, ties_embeddings=True), GPT2):
        job = Job(
            model=model, seq_len=512, micro_batch_size=4, optimizer=FUSED_ADAMW, loss_pieces=8
        )
        yield from (
            replace(job, precision=precision, recomputation="full") for precision in PRECISIONS
        )
        # the forward is highest
        yield replace(job, precision=AUTOCAST_BF16, micro_batch_size=1, grad_accum_steps=2)
        adapter = AdapterConfig(rank=16, targets=linear_layers(model))
        yield replace(job, precision=PURE_BF16, adapter=adapter, grad_accum_steps=2)


@pytest.mark.parametrize(
    "job", [*jobs()], ids=lambda job: f"{job.model.name} {job.precision.name} {job.adapter}"[:40]
)
def test_the_peak_is_the_traced_one_to_the_byte(job):
    traced = trace_memory(job_build(job)).for_step(2).peak_bytes
    assert estimate_memory(job).for_step(2).peak_bytes == traced
    whole = estimate_memory(replace(job, loss_pieces=1)).for_step(2).peak_bytes
    num_logits = job.tokens_per_micro_batch * job.model.vocab_size
    assert whole - traced > 2 * num_logits  # at least two bytes of each logit are gone


def test_it_is_the_same_loss_with_the_same_gradients():
    """Against torch's own cross-entropy over all tokens, in float32."""
    torch.manual_seed(0)
    job = Job(model=TINY_LLAMA, seq_len=64, device="cpu", loss_pieces=8)
    model, tokens = Transformer(job), torch.randint(TINY_LLAMA.vocab_size, (1, 65))
    gradients = []
    for pieces in (8, 1):
        model.loss_pieces = pieces
        model.zero_grad()
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        gradients.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*gradients, strict=True))


def test_pieces_of_unequal_size_have_no_formula():
    with pytest.raises(ValueError, match="loss_pieces=7 of 512 tokens are not equal"):
        estimate_memory(Job(model=LLAMA, seq_len=512, loss_pieces=7))


@pytest.mark.parametrize("pieces", [1, 4])
def test_the_table_has_a_line_for_each_operation_that_makes_something(pieces):
    job = Job(model=TINY_LLAMA, seq_len=64, loss_pieces=pieces, recomputation="full")
    header, _, *rows = operations_table(job).splitlines()
    made = [op for op in model_of(job).graph.operations if not op.is_view]
    assert [row.split()[0] for row in rows] == [str(number) for number in range(1, len(made) + 1)]
    right = header.index("bytes") + len("bytes")  # a number ends below its header's last letter
    sizes = [row[:right].rpartition(" ")[2].replace(",", "") for row in rows]
    assert sizes == [str(sum(x.num_bytes for x in op.makes)) for op in made]
