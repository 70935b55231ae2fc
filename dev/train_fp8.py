"""Train the small GPT in float32, bf16 and eight or four bits, three seeds each: the curves of chapter 06.

    python dev/train_fp8.py [--seed 0] [run ...]

Writes chapters/recordings/fp8_training_cpu.json after every run; runs that are there already are left out.
"""

import argparse
import json
import subprocess
from collections import deque
from datetime import date
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from book.small_gpt import held_out_loss, make_small_gpt, text_batches, train
from memkit.formats.blocks import scale_to
from memkit.formats.records import get_format

FILE = Path(__file__).parents[1] / "chapters" / "recordings" / "fp8_training_cpu.json"
SEEDS, NUM_STEPS, SPIKE_STEP, SPIKE = (0, 1, 2), 300, 150, 64.0
WARM_UP_STEPS, MAX_NORM = 30, 1.0
OUTLIER_CHANNELS, OUTLIER = [17, 90], 1000.0


class Recipe(NamedTuple):
    """The formats of a layer's operands and who shares a factor; ``scaling`` is the input's and the gradient's.

    ``is_wgrad_wide`` is torchao's ``rowwise_with_gw_hp``: wgrad from the uncast matrices, dgrad's weight with one
    factor.
    """

    scaling: str = "tensor"
    weight_scaling: str = "tensor"
    element: str = "float8_e4m3fn"
    gradient_element: str = "float8_e5m2"
    is_delayed: bool = False
    is_wgrad_wide: bool = False


E4M3, BY_ROW = "float8_e4m3fn", "row_power_of_two"
RECIPES = {
    "unscaled": Recipe("none", "none"),
    "delayed": Recipe("none", "none", is_delayed=True),
    "tensor": Recipe(),
    "row": Recipe(BY_ROW, BY_ROW, gradient_element=E4M3),
    "row_wide_wgrad": Recipe(BY_ROW, BY_ROW, gradient_element=E4M3, is_wgrad_wide=True),
    "block": Recipe("1x128", "128x128", gradient_element=E4M3),
    "mxfp8": Recipe("mx", "mx", gradient_element=E4M3),
    "int8": Recipe(element="int8", gradient_element="int8"),
    "head too": Recipe(),
}
"""torchao's are ``tensor``, ``row``, ``row_wide_wgrad``; Transformer Engine's ``delayed``, ``tensor``, ``block``,
``mxfp8``."""
HISTORY = 1024  # steps that a delayed factor looks back, Transformer Engine's default


class Products(torch.autograd.Function):
    """The three products of a layer; both operands of each are cast along the dimension that is summed."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, layer: "NarrowLinear") -> Tensor:
        matrix = x.reshape(-1, x.shape[-1]).detach()
        ctx.layer, ctx.x_shape = layer, x.shape
        ctx.save_for_backward(matrix, weight)
        y = layer.cast(matrix, "input") @ layer.cast(weight, "weight").t()
        return y.to(x.dtype).reshape(*x.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        layer, (x, weight) = ctx.layer, ctx.saved_tensors
        dy_matrix, is_wide = dy.reshape(-1, dy.shape[-1]), layer.recipe.is_wgrad_wide
        scaling = "tensor_power_of_two" if is_wide else None
        dx = layer.cast(dy_matrix, "gradient") @ layer.cast(weight.t(), "weight", scaling).t()
        if is_wide:
            dw = dy_matrix.t().float() @ x.float()
        else:
            dw = layer.cast(dy_matrix.t(), "gradient") @ layer.cast(x.t(), "input").t()
        for operand, matrix in (("input", x), ("weight", weight), ("gradient", dy_matrix)):
            layer.seen[operand].append(matrix.abs().max().item())
        return dx.to(dy.dtype).reshape(ctx.x_shape), dw.to(weight.dtype), None


class NarrowLinear(nn.Linear):
    """A linear layer under a recipe: its products are float32 products of what the casts have left."""

    recipe: Recipe
    seen: dict[str, deque]

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_autocast_enabled("cpu"):
            x = x.to(torch.get_autocast_dtype("cpu"))
        with torch.autocast("cpu", enabled=False):  # sums stay float32
            y = Products.apply(x, self.weight, self)
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def cast(self, matrix: Tensor, operand: str, scaling: str | None = None) -> Tensor:
        """The matrix as its format holds it, for a product that sums over its last dimension."""
        recipe, matrix = self.recipe, matrix.detach().float()
        element = recipe.gradient_element if operand == "gradient" else recipe.element
        scaling = scaling or (recipe.weight_scaling if operand == "weight" else recipe.scaling)
        factor = 1.0
        if recipe.is_delayed and (largest := max(self.seen[operand], default=0)):
            factor = torch.tensor(get_format(element).max) / torch.tensor(largest)
        return (
            torch.from_numpy(scale_to((matrix * factor).numpy(), element, scaling).dequantize())
            / factor
        )


def narrowed(model: nn.Module, recipe: Recipe, keep: tuple[str, ...]) -> None:
    """Make every ``nn.Linear`` but those of these names multiply under the recipe; its parameters stay."""
    for name, layer in model.named_modules():
        if type(layer) is nn.Linear and name not in keep:
            layer.__class__, layer.recipe = NarrowLinear, recipe
            layer.seen = {
                operand: deque(maxlen=HISTORY) for operand in ("input", "weight", "gradient")
            }


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
        narrowed(model, RECIPES[recipe], keep=() if name == "head too" else ("head",))
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
