"""Judge the formula: random setups estimated and traced on CUDA's rules, every instant compared to the byte.

    python scripts/judge_estimate.py [--seed N] [--cases 300]

Without ``--seed`` a new one is drawn; it is printed, so that a finding can be found again.
"""

import argparse
import random
import secrets

from memkit.formula.estimate import estimate_memory
from memkit.program.transformer import training_build
from memkit.setup.models import ModelConfig
from memkit.setup.recipes import IMPLEMENTATIONS, PRECISIONS, TORCH_PRECISIONS, OptimizerConfig
from memkit.setup.training import ATTENTIONS, RECOMPUTATIONS, TrainingSetup
from memkit.tracing.trace import trace_memory

GPT2 = {"norm": "layernorm", "mlp": "gelu", "position": "learned"} | dict.fromkeys(
    ("ties_embeddings", "has_qkv_bias", "has_output_bias", "has_mlp_bias", "fuses_qkv"), True
)
OPTIMIZERS = ("SGD", "SGD momentum", "Adam", "AdamW", "AdamW amsgrad", "Adafactor")


def random_model(r: random.Random, seq_len: int) -> ModelConfig:
    """GPT-2, Llama or a mixture of both, up to 4 layers."""
    heads, head_dim = r.choice((1, 2, 4, 8, 12, 16, 20)), r.choice((32, 36, 64, 64, 64, 80, 128, 264))
    family, choices = r.choice(("GPT-2", "Llama", "mixed")), {}
    if family == "GPT-2":
        choices = dict(GPT2)
    if family == "mixed":
        choices = {name: r.choice((value, False)) for name, value in GPT2.items() if value is True}
        choices |= {"norm": r.choice(("layernorm", "rmsnorm")), "mlp": r.choice(("gelu", "swiglu"))}
        choices |= {"position": r.choice(("learned", "rotary"))}
    if family != "GPT-2":
        choices["num_kv_heads"] = r.choice([n for n in range(1, heads + 1) if heads % n == 0])
        choices["intermediate_size"] = r.choice((0, 8 * r.randint(1, 300), r.randint(1, 3000)))
    return ModelConfig(
        name=family, num_layers=r.randint(1, 4), hidden_size=heads * head_dim, num_heads=heads, head_dim=head_dim,
        vocab_size=r.choice((100, 8192, 32000, r.randint(2, 60000))), max_seq_len=seq_len + r.choice((0, 100)),
        **choices,
    )  # fmt: skip


def random_setup(r: random.Random) -> TrainingSetup:
    """A setup that torch can run, on CUDA.

    Raises: ValueError: heads that no kernel takes.
    """
    seq_len = r.choice((1, 7, 64, 128 * r.randint(1, 12), r.randint(1, 2000)))
    name = r.choice(OPTIMIZERS)
    how = r.choice([way for way in IMPLEMENTATIONS if (name, way) != ("Adafactor", "fused")])
    return TrainingSetup(
        model=random_model(r, seq_len), precision=PRECISIONS[r.choice(TORCH_PRECISIONS)],
        optimizer=OptimizerConfig(name=name, implementation=how), seq_len=seq_len,
        micro_batch_size=r.choice((1, 1, 2, 3, 4, 8)), grad_accum_steps=r.choice((1, 1, 2, 3)),
        attention=r.choice(ATTENTIONS), recomputation=r.choice(list(RECOMPUTATIONS)), dropout=r.choice((0.0, 0.1)),
        uses_fused_norm=r.random() < 0.7, uses_fused_gelu=r.random() < 0.7, upcasts_logits=r.random() < 0.3,
        sets_grads_to_none=r.random() < 0.8,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**9))
    parser.add_argument("--cases", type=int, default=300)
    asked = parser.parse_args()
    num_setups = num_peaks = num_instants = num_equal = 0
    for number in range(asked.cases):
        try:
            setup = random_setup(random.Random(f"{asked.seed} {number}"))
        except ValueError:
            continue
        estimated, traced = estimate_memory(setup), trace_memory(training_build(setup))
        pairs = [(e, traced.at(e.name, e.step, e.micro_batch)) for e in estimated.instants]
        wrong = [(e, t) for e, t in pairs if e != t]
        num_setups, num_instants = num_setups + 1, num_instants + len(pairs)
        num_equal += len(pairs) - len(wrong)
        num_peaks += estimated.peak_bytes == traced.peak_bytes
        if wrong:
            e, t = max(wrong, key=lambda pair: abs(pair[0].total_bytes - pair[1].total_bytes))
            parts = ", ".join(f"{p} {e.parts[p]:,} {t.parts[p]:,}" for p in e.parts if e.parts[p] != t.parts[p])
            print(f"{asked.seed} {number}: {len(wrong)} instants; {e.name}, step {e.step}: {parts}", flush=True)
            ratio = estimated.peak_bytes / traced.peak_bytes - 1
            print(f"    peak {estimated.peak_bytes:,} {traced.peak_bytes:,} ({ratio:+.2%}) {setup}", flush=True)
    print(f"seed {asked.seed}: {num_setups} setups, peak equal in {num_peaks}, {num_equal} of {num_instants} instants")


if __name__ == "__main__":
    main()
