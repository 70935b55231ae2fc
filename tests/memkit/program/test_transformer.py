"""What the book's transformer begins with: GPT-2's deviation in every matrix, and torch's own ones in the norms."""

import math

import pytest
import torch

from memkit.models import TINY_GPT2, TINY_LLAMA
from memkit.program.transformer import Transformer
from memkit.setup import TrainingSetup


@pytest.mark.parametrize("model", [TINY_GPT2, TINY_LLAMA], ids=["GPT-2", "Llama"])
def test_matrices_begin_with_a_deviation_of_0_02_and_a_fresh_model_knows_nothing(model):
    """``initializer_range`` of GPT-2's and Llama's published configurations; a guess by chance costs ln(vocabulary)."""
    torch.manual_seed(0)
    program = Transformer(TrainingSetup(model=model, seq_len=64), device="cpu")
    for name, parameter in program.named_parameters():
        if parameter.dim() > 1:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.05), name
        elif "norm" in name and name.endswith("weight"):
            assert torch.equal(parameter, torch.ones_like(parameter)), name
    ids = torch.randint(model.vocab_size, (2, 1, 64))
    assert program(*ids).item() == pytest.approx(math.log(model.vocab_size), rel=0.03)
