"""Predictions from programs alone, held against GPU runs that others measured; see ``book.public_runs``.

The stored predictions are judged by set, on the runs that no constant was fitted to.
``python -m dev.bench.public_predict`` makes them anew.
"""

import statistics

from book.many_cards import OTHERS, cards_words, load_many_cards
from book.public_runs import load_public_runs, note, words
from dev.bench import Row
from dev.bench.gb200 import judged

MOST_TOO_LOW = 0.05


def run() -> list[Row]:
    """Median errors of the held half against what is promised, and the runs that are too low without a warning."""
    runs = load_public_runs()
    cards = load_many_cards()
    print(
        f"{note()}\n\n{words(runs)}\n\nfms-acceleration on A100s, PEFT on an L40S, layers of Liger's benchmark:\n"
    )
    print(f"{cards_words(cards)}\n")
    held = [run for run in runs if run.half == "held" and run.outcome == "ok"]

    def median(of_set: str) -> float:
        return statistics.median(abs(run.error) for run in held if run.set == of_set)

    texts = [run for run in held if run.set == "xMem transformers"]
    xmem = statistics.median(abs(run.estimates["xmem"] / run.measured_bytes - 1) for run in texts)
    silent = [
        run for run in runs if run.outcome == "ok" and run.error < -MOST_TOO_LOW and not run.warning
    ]
    failed = [run for run in runs if run.outcome == "oom"]
    missed = [
        run
        for run in failed
        if not run.prediction.is_failure and run.range_bytes[1] < run.measured_bytes
    ]
    told = [run for run in cards if not run.refused]
    experts = max(abs(run.peak_error) for run in told if "Mixtral" in run.model)
    alone = max(
        abs(run.peak_error)
        for run in told
        if run.num_cards == 1 and run.measured_rest and "Mixtral" not in run.model
    )
    methods, images, layers = (
        statistics.median(abs(run.peak_error) for run in told if run.kind == kind)
        for kind in OTHERS
    )
    many = statistics.median(abs(run.peak_error) for run in told if run.num_cards > 1)
    verdicts = judged()
    wrong = [
        verdict
        for *_, trained, verdict in verdicts
        if verdict == ("does not fit" if trained else "fits")
    ]
    none = [verdict for *_, verdict in verdicts if verdict not in ("fits", "does not fit")]
    print("GB200s, a batch that trained and the next that did not:")
    print(
        "\n".join(
            f"{precision} {trainer}, batch {batch}: {said}"
            for precision, trainer, batch, _, said in verdicts
        )
    )
    attempted = len(runs) + len(cards) + len(verdicts)
    return [
        Row(
            name="public runs attempted / 500",
            ratio=attempted / 500,
            at_least=1,
            detail=f"{attempted}",
        ),
        Row(
            name="GB200: wrong verdicts",
            ratio=float(len(wrong)),
            at_most=0,
            detail=f"of {len(verdicts)}; {len(none)} without a verdict",
        ),
        Row(
            name="one A100: worst error / 0.1 %",
            ratio=alone / 0.001,
            at_most=1,
            detail="full, LoRA, QLoRA, GPTQ",
        ),
        Row(
            name="Mixtral: worst error / 0.5 %",
            ratio=experts / 0.005,
            at_most=1,
            detail="every expert is given the same number of tokens",
        ),
        Row(
            name="two to four A100s: median error / 0.05 %",
            ratio=many / 0.0005,
            at_most=1,
            detail="FSDP1",
        ),
        Row(
            name="PEFT's methods: median error / 0.5 %",
            ratio=methods / 0.005,
            at_most=1,
            detail="an L40S; BOFT is 8.5 % too high, not explained",
        ),
        Row(
            name="PEFT's methods on FLUX.2: median error / 2 %",
            ratio=images / 0.02,
            at_most=1,
            detail="an L40S",
        ),
        Row(
            name="Liger's plain twins: median error / 0.001 %",
            ratio=layers / 0.00001,
            at_most=1,
            detail="six cards",
        ),
        Row(
            name="transformers: median error / 1 %",
            ratio=median("xMem transformers") / 0.01,
            at_most=1,
            detail=f"{len(texts)} runs held out",
        ),
        Row(
            name="transformers: xMem's median error / ours",
            ratio=xmem / median("xMem transformers"),
            at_least=3,
            detail=f"{xmem:.2%} against {median('xMem transformers'):.2%} on the same runs",
        ),
        Row(
            name="convolutions: median error / 10 %",
            ratio=median("xMem CNNs") / 0.10,
            at_most=1,
            detail="cuDNN's workspaces are not modelled",
        ),
        Row(
            name="MLPs: median error / 0.5 %",
            ratio=median("GPUMemNet MLPs") / 0.005,
            at_most=1,
            detail="an A100",
        ),
        Row(
            name="encoders: median error / 0.5 %",
            ratio=median("GPUMemNet transformers") / 0.005,
            at_most=1,
            detail="an A100; the constant is that of the MLPs",
        ),
        Row(
            name="runs more than 5 % too low without a warning",
            ratio=float(len(silent)),
            at_most=0,
            detail=", ".join(run.run for run in silent),
        ),
        Row(
            name="runs out of memory that were called fitting",
            ratio=float(len(missed)),
            at_most=0,
            detail=f"of {len(failed)}",
        ),
    ]
