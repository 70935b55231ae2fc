"""What chapter 08's prose says of the adapter explorer and of embeddings' states."""

import json
from pathlib import Path

from memkit.fitting.step import second_step
from memkit.formula.parameters import count_by_kind
from memkit.setup.adapters import AdapterConfig
from memkit.setup.models import LLAMA_2_7B, LLAMA_32_1B
from memkit.setup.recipes import PURE_BF16, OptimizerConfig
from memkit.setup.training import TrainingSetup
from memkit.units import format_bytes

CHAPTER = Path(__file__).parents[2] / "chapters" / "08_smaller_states.ipynb"
TEXT = {cell["id"]: "".join(cell["source"]) for cell in json.loads(CHAPTER.read_text(encoding="utf-8"))["cells"]}


def recomputed_peak(base: str, rank: int) -> str:
    """The explorer's bar for LoRA (``as loaded``) or QLoRA (``nf4``) with every block recomputed."""
    adapter = AdapterConfig(rank=rank, targets=("query", "key", "value", "output"), base=base)
    setup = TrainingSetup(
        model=LLAMA_2_7B, precision=PURE_BF16, optimizer=OptimizerConfig(implementation="fused"),
        adapter=adapter, recomputation="full", seq_len=2048, micro_batch_size=4,
    )  # fmt: skip
    return format_bytes(second_step(setup).peak_bytes)


def test_what_a_larger_rank_costs():
    for base in ("nf4", "as loaded"):
        assert f"{recomputed_peak(base, 16)} to {recomputed_peak(base, 256)}" in TEXT["qlora-logits"]


def test_what_32_bit_states_of_an_embedding_cost():
    values = count_by_kind(LLAMA_32_1B)["embedding"]
    assert f"{values:,} values" in TEXT["eight-bit-rules"]
    assert f"{values * (8 - 2) / 1e9:.1f} GB" in TEXT["eight-bit-rules"]
