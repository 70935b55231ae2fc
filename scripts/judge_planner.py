"""Hold the planner's answers against traces: random cases, each replayed on a card of the case's size.

    python scripts/judge_planner.py [number of cases [seed ...]] [--record FILE]

Without seeds two new ones are drawn, and the file names its own: chapters/recordings/planner_judged_cpu.json, unless
another is named. What it holds of the same seeds is kept, so a run that was stopped goes on. A case is right if the
strategy that the planner names fits the card by the trace, and none of its list with fewer FLOPs fits both the card
and what it plans with (``planned_room``) of it.
"""

import argparse
import random
import secrets
from dataclasses import replace
from pathlib import Path

import torch
from judging import recorded, write

from memkit.allocator.config import AllocatorConfig
from memkit.allocator.trace_replay import replay_trace
from memkit.fitting.planner import (
    CANDIDATES,
    CONTEXT_BYTES,
    EXPANDABLE,
    plan_recomputation,
    traced_step,
)
from memkit.fitting.room import planned_room
from memkit.recomputation.costs import step_flops
from memkit.recomputation.peak import predict_peak
from memkit.setup.models import gpt2_config, llama_config
from memkit.setup.recipes import PRECISIONS, OptimizerConfig
from memkit.setup.strategies import FULL, NONE, Strategy
from memkit.setup.training import TrainingSetup
from memkit.units import GIB

FILE = Path(__file__).parent.parent / "chapters" / "recordings" / "planner_judged_cpu.json"
STEP_BYTES, NUM_SEEDS = GIB // 8, 2


def setup_of(case: dict) -> TrainingSetup:
    """The training setup that a case describes."""
    sizes = {key: case[key] for key in ("num_layers", "hidden_size", "num_heads")}
    if case["family"] == "GPT-2":
        model = replace(gpt2_config("random", **sizes), vocab_size=case["vocab_size"], max_seq_len=case["seq_len"])
    else:
        model = llama_config(
            "random", **sizes, num_kv_heads=case["num_heads"] // 4, intermediate_size=11 * case["hidden_size"] // 4,
            vocab_size=case["vocab_size"], max_seq_len=case["seq_len"],
        )  # fmt: skip
    return TrainingSetup(
        model=model, precision=PRECISIONS[case["precision"]], micro_batch_size=case["micro_batch_size"],
        optimizer=OptimizerConfig(implementation=case["optimizer"]), seq_len=case["seq_len"],
        attention=case["attention"], dropout=case["dropout"],
    )  # fmt: skip


def random_case(chance: random.Random) -> dict:
    """A model, a batch, a sequence and a card, whose size lies mostly between full recomputation and none."""
    case = {
        "family": chance.choice(("GPT-2", "Llama")), "num_layers": chance.randint(2, 6),
        "hidden_size": 128 * chance.randint(4, 16), "vocab_size": chance.choice((8192, 32000, 50257)),
        "seq_len": 128 * chance.randint(2, 16), "micro_batch_size": chance.randint(1, 16),
        "precision": chance.choice(("fp32", "autocast bf16", "pure bf16")),
        "optimizer": chance.choice(("foreach", "fused")), "attention": chance.choice(("flash", "stored")),
        "dropout": chance.choice((0.0, 0.0, 0.1)),
    }  # fmt: skip
    case["num_heads"] = case["hidden_size"] // 64 // 4 * 4
    case["hidden_size"] = case["num_heads"] * 64
    setup = setup_of(case)
    low, high = (predict_peak(setup, strategy, config=EXPANDABLE).reserved_bytes for strategy in (FULL, NONE))
    share = chance.uniform(-0.1, 1.1)
    wanted = CONTEXT_BYTES + low + share * max(high - low, GIB // 4)
    return case | {"card_bytes": max(1, round(wanted / STEP_BYTES)) * STEP_BYTES}


def fits_by_trace(setup: TrainingSetup, strategy: Strategy, card: int, *rooms: int, config=EXPANDABLE) -> list[bool]:
    """Whether the traced steps find a place in each room of the card, cuBLAS's workspaces beside them."""
    trace = traced_step(setup, strategy)
    how = {"capacity_bytes": card, "compute_capability": (8, 0)}
    return [replay_trace(trace, config, outside_bytes=card - room, **how).failure is None for room in rooms]


def judged(case: dict) -> dict:
    """The case with the planner's answer and the trace's; also what fits by luck, and by the default segments."""
    setup, card = setup_of(case), case["card_bytes"]
    chosen = plan_recomputation(setup, card).chosen
    limit = chosen.flops.total if chosen else float("inf")
    cheaper = [strategy for strategy in CANDIDATES if step_flops(setup, strategy).total < limit]
    rooms = planned_room(card), card - CONTEXT_BYTES
    fits = {strategy.name: fits_by_trace(setup, strategy, card, *rooms) for strategy in cheaper}
    answer = {"chosen": chosen.strategy.name if chosen else None, "fits": None, "fits_by_default": None}
    if chosen:
        answer["fits"] = fits_by_trace(setup, chosen.strategy, card, rooms[1])[0]
        answer["fits_by_default"] = fits_by_trace(setup, chosen.strategy, card, rooms[1], config=AllocatorConfig())[0]
    answer["cheaper_that_fit"] = [name for name, (planned, whole) in fits.items() if planned and whole]
    answer["cheaper_in_the_slack"] = [name for name, (planned, whole) in fits.items() if whole and not planned]
    return case | answer


def is_right(case: dict) -> bool:
    """What fits by the plan fits by the trace, and nothing cheaper does."""
    return case["fits"] is not False and not case["cheaper_that_fit"]


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("num_cases", type=int, nargs="?", default=200)
    parser.add_argument("seeds", type=int, nargs="*", help="two new ones are drawn without any")
    parser.add_argument("--record", type=Path, default=FILE, help="a file that is gone on with, and written")
    asked = parser.parse_args()
    seeds = asked.seeds or [secrets.randbelow(10**9) for _ in range(NUM_SEEDS)]
    chances, cases = [random.Random(seed) for seed in seeds], recorded(asked.record, "cases", seeds=seeds)
    for number in range(asked.num_cases):
        case = random_case(chances[number % len(seeds)])
        if number < len(cases):
            continue  # drawn for what is drawn after it
        cases.append(judged(case))
        print(number, cases[-1]["chosen"], "right" if is_right(cases[-1]) else f"WRONG {cases[-1]}", flush=True)
        if number % 5 == 4 or number == asked.num_cases - 1:
            write(asked.record, about(cases, seeds), cases=cases)


def about(cases: list[dict], seeds: list[int]) -> dict:
    """What the cases come to."""
    return {
        "what": "planner against trace", "seeds": seeds,
        "command": " ".join(map(str, ("python scripts/judge_planner.py", len(cases), *seeds))),
        "right": sum(map(is_right, cases)), "cases": len(cases),
        "fit_with_default_segments": sum(case["fits_by_default"] is True for case in cases),
        "plans": sum(case["chosen"] is not None for case in cases),
        "fit": sum(case["fits"] is True for case in cases),
        "cheaper_in_the_slack": sum(bool(case["cheaper_in_the_slack"]) for case in cases),
    }  # fmt: skip


if __name__ == "__main__":
    main()
