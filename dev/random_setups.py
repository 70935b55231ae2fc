"""Random setups that torch can run, for whoever compares two of the book's columns."""

import random
from collections.abc import Mapping

from memkit.models import GPT2, NORMS, ModelConfig
from memkit.recipes import (
    IMPLEMENTATIONS,
    OPTIMIZERS,
    PRECISIONS,
    TORCH_PRECISIONS,
    Optimizer,
    OptimizerConfig,
)
from memkit.setup import ATTENTIONS, TrainingSetup
from memkit.strategies import RECOMPUTATIONS

NAMES = ("SGD", "SGD momentum", "AdamW", "Adafactor")


def random_model(r: random.Random, seq_len: int) -> ModelConfig:
    """GPT-2, Llama or a mixture of both, up to 3 layers."""
    heads = r.choice((1, 2, 4, 8, 12, 16, 20))
    head_dim = r.choice((32, 40, 64, 64, 64, 80, 128, 264))
    family, choices = r.choice(("GPT-2", "Llama", "mixed")), {}
    if family == "GPT-2":
        choices = dict(GPT2)
    if family == "mixed":
        choices = {name: r.choice((value, False)) for name, value in GPT2.items() if value is True}
        choices |= {"norm": r.choice(NORMS), "mlp": r.choice(("gelu", "swiglu"))}
        choices |= {"position": r.choice(("learned", "rotary"))}
    if family != "GPT-2":
        choices["num_kv_heads"] = r.choice([n for n in range(1, heads + 1) if heads % n == 0])
        choices["intermediate_size"] = r.choice((0, 8 * r.randint(1, 300), r.randint(1, 3000)))
    return ModelConfig(
        name=family,
        num_layers=r.choice((1, 1, 1, 1, 1, 2, 2, 3)),
        num_heads=heads,
        head_dim=head_dim,
        hidden_size=heads * head_dim,
        vocab_size=r.choice((100, 8192, 32000, r.randint(2, 60000))),
        max_seq_len=seq_len + r.choice((0, 100)),
        **choices,
    )


def random_setup(r: random.Random, records: Mapping[str, Optimizer] = OPTIMIZERS) -> TrainingSetup:
    """A setup that torch can run, on CUDA, with one of these optimizers.

    Raises: ValueError: heads that no kernel takes, or an optimizer that is not among the records.
    """
    seq_len = r.choice((1, 7, 64, 128 * r.randint(1, 12), r.randint(1, 2000)))
    name = r.choice(NAMES)
    how = r.choice([way for way in IMPLEMENTATIONS if name != "Adafactor" or way == "for-loop"])
    return TrainingSetup(
        model=random_model(r, seq_len),
        precision=PRECISIONS[r.choice(TORCH_PRECISIONS)],
        optimizer=OptimizerConfig(record=records.get(name, name), implementation=how),
        seq_len=seq_len,
        micro_batch_size=r.choice((1, 1, 2, 3, 4, 8)),
        grad_accum_steps=r.choice((1, 1, 1, 2, 3)),
        attention=r.choice(ATTENTIONS),
        recomputation=r.choice(list(RECOMPUTATIONS)),
        dropout=r.choice((0.0, 0.1)),
        uses_fused_norm=r.random() < 0.7,
        upcasts_logits=r.random() < 0.3,
        sets_grads_to_none=r.random() < 0.8,
    )
