"""Korthikanti et al. 2022 (arXiv:2205.05198), addend by addend: what chapters 04, 11 and C compare with our ledger.

Letters: s sequence, b micro-batch, h hidden size, a heads, L layers, v vocabulary, t tensor-parallel size, B global
batch. Values have 16 bits, dropout masks one byte. ``paper_setup`` makes paper and ledger the same model.

Equation 8 charges the recomputed attention three times. Running QKᵀ and the weighted sum again costs 4BLs²h operations
(``recomputed_flops``), a third of the 12BLs²h by which equation 8 exceeds equation 7. The printed 2.7 % for GPT-3 and
1.6 % for MT-NLG follow from equation 8; 0.9 % and 0.5 % follow from the count.
"""

from dataclasses import dataclass

from memkit.models import ModelConfig
from memkit.recipes import PURE_BF16
from memkit.setup import TrainingSetup
from memkit.strategies import RECOMPUTATIONS
from memkit.units import as_one_of

VALUE_BYTES, MASK_BYTES = 2, 1
PARALLELISMS = ("none", "tensor", "tensor and sequence")


@dataclass(frozen=True, kw_only=True)
class PaperModel:
    """A row of the paper's table 3."""

    name: str
    num_heads: int
    hidden_size: int
    num_layers: int
    global_batch_size: int
    micro_batch_size: int
    tp_size: int = 8
    seq_len: int = 2048
    vocab_size: int = 51200

    @property
    def sbh(self) -> int:
        """Values in one hidden state of one micro-batch."""
        return self.seq_len * self.micro_batch_size * self.hidden_size

    @property
    def as2b(self) -> int:
        """Values in the attention weights of one layer."""
        return self.num_heads * self.seq_len**2 * self.micro_batch_size


PAPER_MODELS = tuple(
    PaperModel(
        name=name,
        num_heads=heads,
        hidden_size=hidden,
        num_layers=layers,
        global_batch_size=batch,
        micro_batch_size=micro_batch,
    )
    for name, heads, hidden, layers, batch, micro_batch in (
        ("22B", 64, 6144, 48, 4, 4),
        ("175B (GPT-3)", 96, 12288, 96, 64, 1),
        ("530B (MT-NLG)", 128, 20480, 105, 280, 1),
    )
)
MODEL_22B, MODEL_175B, MODEL_530B = PAPER_MODELS

LAYER_MILLISECONDS = {
    "none": (7.7, 11.9),
    "none, sequence parallel": (7.2, 11.8),
    "full": (7.7, 19.5),
    "selective": (7.7, 13.2),
    "selective, sequence parallel": (7.2, 13.1),
}
"""Forward and backward of one layer of the 22B model on eight A100 (the paper's table 4)."""


@dataclass(frozen=True)
class Addend:
    """One kept tensor: bytes per value, on sbh or as²b values, ``width`` hidden sizes wide.

    Tensor parallelism splits what lies inside attention and MLP; what lies between them every device holds
    whole.
    """

    name: str
    block: str
    value_bytes: int
    is_split: bool
    width: int = 1
    is_square: bool = False

    def num_bytes(self, model: PaperModel) -> int:
        """Bytes in one layer on one device without any parallelism."""
        return self.value_bytes * self.width * (model.as2b if self.is_square else model.sbh)


ADDENDS = (
    Addend("norm 1 input", "layer norms", VALUE_BYTES, False),
    Addend("norm 2 input", "layer norms", VALUE_BYTES, False),
    Addend("QKV input", "attention", VALUE_BYTES, False),
    Addend("query", "attention", VALUE_BYTES, True),
    Addend("key", "attention", VALUE_BYTES, True),
    Addend("value", "attention", VALUE_BYTES, True),
    Addend("softmax output", "attention", VALUE_BYTES, True, is_square=True),
    Addend("softmax dropout mask", "attention", MASK_BYTES, True, is_square=True),
    Addend("softmax dropout output", "attention", VALUE_BYTES, True, is_square=True),
    Addend("projection input", "attention", VALUE_BYTES, True),
    Addend("attention dropout mask", "attention", MASK_BYTES, False),
    Addend("first linear input", "MLP", VALUE_BYTES, False),
    Addend("GELU input", "MLP", VALUE_BYTES, True, width=4),
    Addend("second linear input", "MLP", VALUE_BYTES, True, width=4),
    Addend("MLP dropout mask", "MLP", MASK_BYTES, False),
)
"""11sbh + 5as²b of attention, 19sbh of the MLP and 4sbh of the layer norms, section 4.1."""


def layer_bytes(model: PaperModel, parallelism: str = "none", recomputation: str = "none") -> int:
    """Bytes that one layer keeps on one device: table 2 of the paper.

    None: sbh(34 + 5as/h). Tensor: sbh(10 + 24/t + 5as/ht). Tensor and sequence: sbh/t · (34 + 5as/h).
    Selective recomputation drops the as²b addends. Full recomputation keeps 2sbh on each device, however many
    there are.

    Raises: ValueError: an unknown name.
    """
    as_one_of("parallelism", parallelism, PARALLELISMS)
    as_one_of("recomputation", recomputation, RECOMPUTATIONS)
    if recomputation == "full":
        return ADDENDS[0].num_bytes(model)
    total = 0
    for addend in ADDENDS:
        if recomputation == "selective" and addend.is_square:
            continue
        is_split = parallelism == "tensor and sequence" or (
            parallelism == "tensor" and addend.is_split
        )
        total += addend.num_bytes(model) // (model.tp_size if is_split else 1)
    return total


def model_flops(model: PaperModel) -> int:
    """Operations of the matrix products of one iteration, equation 7: 72BLsh²(1 + s/6h + v/12hL).

    Forward, per layer: 6Bsh² for QKV, 2Bs²h each for QKᵀ and the weighted sum, 2Bsh² for the projection,
    16Bsh² for the MLP; 2Bshv for the logits. The backward costs twice the forward.
    """
    b, s, h = model.global_batch_size, model.seq_len, model.hidden_size
    layer = b * s * h * (6 * h + 2 * s + 2 * s + 2 * h + 16 * h)
    return 3 * (model.num_layers * layer + 2 * b * s * h * model.vocab_size)


def recomputed_flops(model: PaperModel) -> int:
    """Operations that selective recomputation adds: QKᵀ and the weighted sum once more, 4BLs²h."""
    return 4 * model.global_batch_size * model.num_layers * model.seq_len**2 * model.hidden_size


def printed_hardware_flops(model: PaperModel) -> int:
    """Equation 8 as printed: 72BLsh²(1 + s/3h + v/12hL), which adds ``recomputed_flops`` three times."""
    return model_flops(model) + 3 * recomputed_flops(model)


def paper_setup(model: PaperModel, recomputation: str = "none") -> TrainingSetup:
    """The same model for ``memkit.formula.activations``: GPT-2 style, 16-bit, dropout, stored attention weights.

    Query, key and value are three matrices here. With one fused matrix and b = 1 our transformer keeps 2sbh
    more, see ``memkit.formula.activations``.
    """
    config = ModelConfig(
        name=model.name,
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        num_heads=model.num_heads,
        vocab_size=model.vocab_size,
        max_seq_len=model.seq_len,
        norm="layernorm",
        mlp="gelu",
        position="learned",
        ties_embeddings=True,
        has_qkv_bias=True,
        has_output_bias=True,
        has_mlp_bias=True,
    )
    return TrainingSetup(
        model=config,
        precision=PURE_BF16,
        micro_batch_size=model.micro_batch_size,
        seq_len=model.seq_len,
        attention="stored",
        dropout=0.1,
        recomputation=recomputation,
    )
