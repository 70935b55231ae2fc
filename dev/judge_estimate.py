"""Judge the formula: random setups estimated and traced on CUDA's rules, every instant compared to the byte.

    python dev/judge_estimate.py [--seed N] [--cases 300] [--experts] [--record FILE]

Without ``--seed`` a new one is drawn; it is printed, so that a finding can be found again. With ``--record`` the
judging goes on where the file ends. Every fourth setup makes two steps, the others one.
"""

import argparse
import json
import random
import secrets
from dataclasses import replace
from pathlib import Path

import torch
from random_setups import random_setup

from memkit.formula.estimate import estimate_memory
from memkit.strategies import all_strategies
from memkit.tracing.trace import trace_memory
from stepscope.experts import experts_config, num_experts_of
from stepscope.optimizers import OPTIMIZERS
from stepscope.program.job import job_build
from stepscope.setup import Job, as_job
from stepscope.tracing.trace import trace_script


def random_job(r: random.Random) -> Job:
    """A ``random_setup`` as a job, with any of the optimizers that are drawn."""
    return as_job(random_setup(r, OPTIMIZERS))


def with_experts(r: random.Random, setup: Job) -> Job:
    """The same with experts in some blocks or in all, maybe norms on queries and keys, and any recomputation."""
    num_layers, num_experts = r.choice((1, 2, 3, 5)), r.randint(1, 40)
    has_qk_norm = setup.model.norm == "rmsnorm" and not setup.model.fuses_qkv
    model = experts_config(
        replace(setup.model, num_layers=num_layers, has_qk_norm=has_qk_norm),
        num_experts=num_experts,
        experts_per_token=r.randint(1, min(num_experts, 8)),
        expert_size=8 * r.randint(1, 60),
        dense_layers=r.choice(((), (0,), tuple(range(0, num_layers, 2)))),
    )
    strategies = [
        one for one in all_strategies(num_layers) if one.scope != "host" and not one.is_reentrant
    ]
    return replace(setup, model=model, recomputation=r.choice(strategies))


def judged(setup: Job, steps: int = 2) -> dict:
    """How many instants there are and are equal, both peaks and, where they differ, the widest difference."""
    # experts are more than the kit traces
    trace = trace_script if num_experts_of(setup.model) else trace_memory
    estimated, traced = estimate_memory(setup, steps), trace(job_build(setup), steps=steps)
    pairs = [(e, traced.at(e.name, e.step, e.micro_batch)) for e in estimated.instants]
    wrong = [(e, t) for e, t in pairs if e != t]
    peaks = [max(instant.total_bytes for instant in column) for column in zip(*pairs, strict=True)]
    found = {"instants": len(pairs), "wrong": len(wrong), "peak": peaks}
    if wrong:
        e, t = max(wrong, key=lambda pair: abs(pair[0].total_bytes - pair[1].total_bytes))
        parts = {
            part: [e.parts[part], t.parts[part]]
            for part in e.parts
            if e.parts[part] != t.parts[part]
        }
        found |= {"at": f"{e.name}, step {e.step}", "parts": parts, "setup": str(setup)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--seed", type=int, help="a new one is drawn without it, or taken from the record"
    )
    parser.add_argument("--cases", type=int, default=300, help="how many more")
    parser.add_argument("--experts", action="store_true", help="setups with a mixture of experts")
    parser.add_argument("--record", type=Path, help="a file that is gone on with, and written")
    asked = parser.parse_args()
    record = {
        "seed": asked.seed or secrets.randbelow(10**9),
        "torch": torch.__version__,
        "drawn": 0,
        "setups": 0,
    }
    record |= {"equal_peaks": 0, "instants": 0, "equal_instants": 0, "differ": {}}
    if asked.record and asked.record.exists():
        record = json.loads(asked.record.read_text(encoding="utf-8"))
    for number in range(record["drawn"], record["drawn"] + asked.cases):
        record["drawn"] = number + 1
        r = random.Random(f"{record['seed']} {number}")
        try:
            setup = with_experts(r, random_job(r)) if asked.experts else random_job(r)
        except ValueError:
            continue
        found = judged(setup, steps=1 + (number % 4 == 0))
        record["setups"] += 1
        record["equal_peaks"] += found["peak"][0] == found["peak"][1]
        record["instants"] += found["instants"]
        record["equal_instants"] += found["instants"] - found["wrong"]
        if found["wrong"]:
            record["differ"][str(number)] = found
            print(number, found, flush=True)
    if asked.record:
        asked.record.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print({name: value for name, value in record.items() if name != "differ"})


if __name__ == "__main__":
    main()
