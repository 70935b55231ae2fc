"""Train the small GPT with every optimizer of chapter 09, three seeds each: do they still train?

    python dev/train_states.py [name ...]

Each optimizer first takes the best of its rates on seed 9, which is used for nothing else; AdamW's variants in few
bits take AdamW's. torchao's and
bitsandbytes' arithmetic runs as plain PyTorch operations on the CPU. Writes
chapters/recordings/states_training_cpu.json after every run; runs that are there already are left out.
"""

import json
import sys
from datetime import date
from pathlib import Path

import torch

from book.small_gpt import held_out_loss, make_small_gpt, text_batches, train
from memkit.program.transformer import make_optimizer
from memkit.recipes import OptimizerConfig
from stepscope.optimizers import OPTIMIZERS
from stepscope.program.job import Lion, Steps

FILE = Path(__file__).parents[1] / "chapters" / "recordings" / "states_training_cpu.json"
SEEDS, TRIAL_SEED, NUM_STEPS = (0, 1, 2), 9, 300
ADAM_RATES = (1e-3,)  # the best of AdamW's five
RATES = {
    "AdamW": (3e-4, 5e-4, 1e-3, 2e-3, 3e-3),
    "8-bit AdamW": ADAM_RATES,
    "torchao 8-bit AdamW": ADAM_RATES,
    "torchao 4-bit AdamW": ADAM_RATES,
    "torchao FP8 AdamW": ADAM_RATES,
    "Lion": (1e-4, 3e-4, 1e-3),
    "Muon": (0.01, 0.03),
    "Adafactor": (1e-2, 3e-2),
    "SGD momentum": (0.03, 0.1, 0.3),
}


def optimizer_of(name: str, model: torch.nn.Module, rate: float) -> torch.optim.Optimizer | Steps:
    """The optimizer at this rate; Muon's AdamW keeps AdamW's own."""
    if name == "Muon":
        named = dict(model.named_parameters())
        hidden = [p for n, p in named.items() if p.ndim == 2 and n.startswith("blocks.")]
        rest = [p for n, p in named.items() if p.ndim != 2 or not n.startswith("blocks.")]
        return Steps(torch.optim.Muon(hidden, lr=rate), torch.optim.AdamW(rest, lr=ADAM_RATES[0]))
    if name == "Lion":
        return Lion(model.parameters(), lr=rate, weight_decay=0.01)
    config = OptimizerConfig(record=OPTIMIZERS[name], implementation="for-loop")
    return make_optimizer(config, model.parameters(), lr=rate)


def one_run(name: str, seed: int, rate: float) -> dict:
    """Losses of the steps and the loss on held-out text, in nats a character."""
    model = make_small_gpt(seed)
    losses = train(model, optimizer_of(name, model, rate), text_batches(NUM_STEPS, seed=seed))
    return {
        "rate": rate,
        "losses": [round(x, 4) for x in losses],
        "held_out": round(held_out_loss(model), 5),
    }


def tried_rates(name: str) -> dict[str, float]:
    """What each rate learns on the trial seed."""
    return {f"{rate:g}": one_run(name, TRIAL_SEED, rate)["held_out"] for rate in RATES[name]}


def main(names: tuple[str, ...]) -> None:
    torch.set_num_threads(1)
    torch.compile = lambda function, **_: function
    about = {
        "what": "small GPT in float32, losses in nats a character: each step's, and on held-out text at the end",
        "setup": f"{NUM_STEPS} steps of 8 x 64 characters; each the best of a few rates on seed 9, AdamW's of "
        "five (tried), which its variants take over",
        "machine": "2-core x86-64 CPU",
        "torch": torch.__version__,
        "date": date.today().isoformat(),
        "command": "python dev/train_states.py",
    }
    about["tried"] = (
        json.loads(FILE.read_text(encoding="utf-8"))["about"].get("tried", {})
        if FILE.exists()
        else {}
    )
    for name in names or RATES:
        missing = [seed for seed in SEEDS if str(seed) not in stored().get(name, {})]
        if missing:
            about["tried"][name] = tried_rates(name)
        for seed in missing:
            rate = float(min(about["tried"][name], key=about["tried"][name].get))
            run = one_run(name, seed, rate)
            print(seed, name, rate, run["held_out"], flush=True)
            runs = stored()
            runs.setdefault(name, {})[str(seed)] = run
            text = json.dumps({"about": about, "runs": {n: runs[n] for n in RATES if n in runs}})
            FILE.write_text(text.replace("}, ", "},\n") + "\n", encoding="utf-8")


def stored() -> dict:
    """The runs that the file holds."""
    return json.loads(FILE.read_text(encoding="utf-8"))["runs"] if FILE.exists() else {}


if __name__ == "__main__":
    main(tuple(sys.argv[1:]))
