"""Sentences that were false, or true only somewhere: each as it stands now, and the number that it tells."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from cells import texts_of

from memkit import OptimizerConfig, TrainingSetup, estimate_memory, measure_memory, models, recipes, trace_memory


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
        traced, measured = (of(attends, device="cpu", steps=1) for of in (trace_memory, measure_memory))
    assert traced.peak_bytes >= 2 * 2 * 8 * 512 * 64 * 4  # the operand and the result: no tensor is missed
    assert traced.peak_bytes + 64 * 512 * 4 <= measured.peak_bytes
    assert "may miss a kernel's scratch and a library's workspace" in texts_of("00")["columns-differ-read"]
    assert "misses no tensor that PyTorch allocates" not in "".join(texts_of("00").values())


FUSED = OptimizerConfig(implementation="fused")
LLAMAS = [getattr(models, name) for name in dir(models) if name.startswith("LLAMA_")]


def saved_percent(model, tokens_per_unit: float) -> float:
    """How much lower autocast's peak is than float32's, with flash attention and fused AdamW."""
    tokens = int(tokens_per_unit * model.hidden_size)
    rows = min(tokens, 1024 if model.name.startswith("GPT") else 2048)
    setup = TrainingSetup(
        model=model, optimizer=FUSED, attention="flash", seq_len=rows, micro_batch_size=tokens // rows,
    )
    peaks = [
        estimate_memory(TrainingSetup(**{**vars(setup), "precision": precision})).peak_bytes
        for precision in (recipes.AUTOCAST_BF16, recipes.FP32)
    ]
    return 100 * (1 - peaks[0] / peaks[1])


def test_what_autocast_saves_belongs_to_a_model():
    """Chapter 03's sentence of two tokens per hidden unit, for each model that it names, and for every Llama."""
    text, rule = texts_of("03")["cures-text"], texts_of("03")["printed-text"]
    for name, told in (("GPT2_SMALL", "GPT-2 small saves 0.7 %"), ("GPT2_LARGE", "GPT-2 large 6.7 %"),
                       ("LLAMA_3_8B", "Llama-3-8B 12.2 %"), ("LLAMA_3_70B", "Llama-3-70B 14.5 %")):
        assert told.endswith(f" {saved_percent(getattr(models, name), 2):.1f} %") and told in text
    assert saved_percent(models.GPT2_SMALL, 2) < 10 < saved_percent(models.GPT2_SMALL, 4)
    at = {ratio: [saved_percent(model, ratio) for model in LLAMAS] for ratio in (1 / 16, 1 / 4, 1 / 2, 1, 2, 4)}
    most = max(max(at[ratio]) for ratio in (1 / 16, 1 / 4, 1 / 2, 1))
    assert f"by {min(at[2]):.0f} to {max(at[2]):.0f} % at two" in text and f"by {most:.0f} % at most at one" in text
    assert f"{min(at[2]):.0f} to {max(at[2]):.0f} % at twice as many" in rule
    assert f"{min(at[4]):.0f} to {max(at[4]):.0f} % at four times" in rule
    assert len(LLAMAS) > 5 and saved_percent(models.GPT2_SMALL, 2) == pytest.approx(0.69, abs=0.01)
