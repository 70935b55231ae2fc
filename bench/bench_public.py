"""Predictions from programs alone, held against GPU runs that others measured; see ``book.public_runs``.

The stored predictions are judged by set, on the runs that no constant was fitted to. ``python -m bench.public_predict``
makes them anew.
"""

import statistics

from bench import Row
from book.many_cards import cards_words, load_many_cards
from book.public_runs import load_public_runs, note, words

MOST_TOO_LOW = 0.05


def run() -> list[Row]:
    """Median errors of the held half against what is promised, and the runs that are too low without a warning."""
    runs = load_public_runs()
    cards = load_many_cards()
    print(f"{note()}\n\n{words(runs)}\n\nfms-acceleration on A100s, PEFT on an L40S:\n\n{cards_words(cards)}\n")
    held = [run for run in runs if run.half == "held" and run.outcome == "ok"]

    def median(of_set: str) -> float:
        return statistics.median(abs(run.error) for run in held if run.set == of_set)

    texts = [run for run in held if run.set == "xMem transformers"]
    xmem = statistics.median(abs(run.estimates["xmem"] / run.measured_bytes - 1) for run in texts)
    silent = [run for run in runs if run.outcome == "ok" and run.error < -MOST_TOO_LOW and not run.warning]
    failed = [run for run in runs if run.outcome == "oom"]
    missed = [run for run in failed if not run.prediction.is_failure and run.range_bytes[1] < run.measured_bytes]
    told = [run for run in cards if not run.refused]
    alone = max(abs(run.peak_error) for run in told if run.num_cards == 1 and run.measured_rest)
    methods = statistics.median(abs(run.peak_error) for run in told if not run.measured_rest)
    many = statistics.median(abs(run.peak_error) for run in told if run.num_cards > 1)
    return [
        Row(name="one A100: worst error / 0.1 %", ratio=alone / 0.001, at_most=1, detail="full, LoRA, QLoRA"),
        Row(name="two to four A100s: median error / 0.05 %", ratio=many / 0.0005, at_most=1, detail="FSDP1"),
        Row(name="PEFT's methods: median error / 0.5 %", ratio=methods / 0.005, at_most=1,
            detail="an L40S; BOFT is 8.5 % too high, not explained"),
        Row(name="transformers: median error / 1 %", ratio=median("xMem transformers") / 0.01, at_most=1,
            detail=f"{len(texts)} runs held out"),
        Row(name="transformers: xMem's median error / ours", ratio=xmem / median("xMem transformers"), at_least=3,
            detail=f"{xmem:.2%} against {median('xMem transformers'):.2%} on the same runs"),
        Row(name="convolutions: median error / 10 %", ratio=median("xMem CNNs") / 0.10, at_most=1,
            detail="cuDNN's workspaces are not modelled"),
        Row(name="MLPs: median error / 0.5 %", ratio=median("GPUMemNet MLPs") / 0.005, at_most=1, detail="an A100"),
        Row(name="encoders: median error / 0.5 %", ratio=median("GPUMemNet transformers") / 0.005, at_most=1,
            detail="an A100; the constant is that of the MLPs"),
        Row(name="runs more than 5 % too low without a warning", ratio=float(len(silent)), at_most=0,
            detail=", ".join(run.run for run in silent)),
        Row(name="runs out of memory that were called fitting", ratio=float(len(missed)), at_most=0,
            detail=f"of {len(failed)}"),
    ]
