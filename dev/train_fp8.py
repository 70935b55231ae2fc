"""Train the small GPT in float32, bf16 and eight or four bits, three seeds each: the curves of chapter 06.

    python dev/train_fp8.py [--seed 0] [run ...]

Writes chapters/recordings/fp8_training_cpu.json after every run; runs that are there already are left out.
"""

import argparse
import json
import subprocess
from datetime import date
from pathlib import Path

import torch

from book.small_gpt import held_out_loss, make_small_gpt, text_batches, train
from memkit.low_precision.fp8 import FP8_RECIPES, Fp8Recipe, convert_to_fp8

FILE = Path(__file__).parents[1] / "chapters" / "recordings" / "fp8_training_cpu.json"
SEEDS, NUM_STEPS, SPIKE_STEP, SPIKE = (0, 1, 2), 300, 150, 64.0
WARM_UP_STEPS, MAX_NORM = 30, 1.0
OUTLIER_CHANNELS, OUTLIER = [17, 90], 1000.0

INT8 = Fp8Recipe(name="int8", element="int8", gradient_element="int8")
RECIPES = {**FP8_RECIPES, "int8": INT8, "head too": FP8_RECIPES["tensor"]}
RUNS = (
    "bf16",
    "tensor",
    "row",
    "block",
    "mxfp8",
    "delayed",
    "unscaled",
    "fp32",
    "row_wide_wgrad",
    "bf16 spike",
    "delayed spike",
    "tensor spike",
    "head too",
    "int8",
    "bf16 outliers",
    "tensor outliers",
    "int8 outliers",
    "bf16 warm-up",
    "tensor warm-up",
    "unscaled warm-up",
)


def with_spike(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """In one forward pass every LayerNorm of the blocks gives ``SPIKE`` times what it should."""
    steps = []

    def note(_module, _inputs) -> None:
        steps.append(None)

    def spike(_module, _inputs, output):
        return output * SPIKE if len(steps) == SPIKE_STEP else output

    model.register_forward_pre_hook(note)
    for block in model.blocks:
        block.norm_1.register_forward_hook(spike)
        block.norm_2.register_forward_hook(spike)


class ByColumn(torch.nn.Module):
    """A weight as its parameter times one factor a column."""

    def __init__(self, factors: torch.Tensor):
        super().__init__()
        self.register_buffer("factors", factors)

    def forward(self, parameter: torch.Tensor) -> torch.Tensor:
        return parameter * self.factors


def with_outliers(model: torch.nn.Module) -> None:
    """Two channels of what the blocks' LayerNorms give are ``OUTLIER`` times as large, and the weights that read
    them as much smaller: in exact arithmetic the same model, and the same for AdamW."""
    factors = torch.ones(model.config.hidden_size)
    factors[OUTLIER_CHANNELS] = OUTLIER
    for block in model.blocks:
        for norm, linear in ((block.norm_1, block.attention.qkv), (block.norm_2, block.mlp.up)):
            norm.register_forward_hook(lambda _module, _inputs, output: output * factors)
            torch.nn.utils.parametrize.register_parametrization(
                linear, "weight", ByColumn(1 / factors), unsafe=True
            )


def one_run(name: str, seed: int) -> dict:
    """Losses of the steps and the loss on held-out text, in nats a character."""
    model = make_small_gpt(seed)
    recipe = name.removesuffix(" spike").removesuffix(" outliers").removesuffix(" warm-up")
    if recipe in RECIPES:
        convert_to_fp8(model, RECIPES[recipe], keep=() if name == "head too" else ("head",))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if name.endswith("spike"):
        with_spike(model, optimizer)
    if name.endswith("outliers"):
        with_outliers(model)
    autocast_dtype = None if name == "fp32" else torch.bfloat16
    is_careful = name.endswith("warm-up")
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / WARM_UP_STEPS) if is_careful else 1.0
    )
    max_norm, losses = MAX_NORM if is_careful else None, []
    for batch in text_batches(NUM_STEPS, seed=seed):
        losses += train(model, optimizer, [batch], autocast_dtype=autocast_dtype, max_norm=max_norm)
        schedule.step()
    with torch.autocast("cpu", torch.bfloat16, enabled=name != "fp32"):
        held_out = held_out_loss(model)
    return {"losses": [round(loss, 4) for loss in losses], "held_out": round(held_out, 5)}


def main(names: tuple[str, ...], seeds: tuple[int, ...]) -> None:
    torch.set_num_threads(1)
    about = {
        "what": "small GPT, losses in nats a character: each step's, and on held-out text after the last one",
        "setup": f"{NUM_STEPS} steps of 8 x 64 characters, AdamW lr 1e-3, autocast bf16 around all but fp32; "
        f"head in bf16 but in 'head too'; spike: LayerNorm outputs x {SPIKE:g} in step {SPIKE_STEP}; "
        f"outliers: {len(OUTLIER_CHANNELS)} channels of the LayerNorm outputs x {OUTLIER:g}, undone in the weights; "
        f"warm-up: the rate rises over {WARM_UP_STEPS} steps, gradients are clipped at {MAX_NORM:g}",
        "machine": "2-core x86-64 CPU",
        "torch": torch.__version__,
        "date": date.today().isoformat(),
        "command": "python dev/train_fp8.py",
    }
    describe = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(describe, check=True, capture_output=True, text=True).stdout.strip()
    for seed in seeds:
        for name in names:
            if str(seed) in stored().get(name, {}):
                continue
            run = {"commit": commit, **one_run(name, seed)}
            print(seed, name, run["held_out"], flush=True)
            runs = stored()
            runs.setdefault(name, {})[str(seed)] = run
            runs = {name: dict(sorted(runs[name].items())) for name in RUNS if name in runs}
            text = json.dumps({"about": about, "runs": runs}, ensure_ascii=False)
            FILE.write_text(text.replace("}, ", "},\n") + "\n", encoding="utf-8")


def stored() -> dict:
    """The runs that the file holds."""
    return json.loads(FILE.read_text(encoding="utf-8"))["runs"] if FILE.exists() else {}


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("runs", nargs="*", default=RUNS, help=", ".join(RUNS))
    arguments.add_argument("--seed", type=int, help="this seed alone")
    asked = arguments.parse_args()
    main(tuple(asked.runs), SEEDS if asked.seed is None else (asked.seed,))
