"""Hold the plans for random jobs against traces: a model, a batch and a card of a drawn size.

    python scripts/judge_plans.py [number of jobs [seed]]

Without a seed a new one is drawn, and the file names it: chapters/recordings/plans_judged_cpu.json. A job is right
if the plan that is named fits by its trace, and none of those that are preferred to it and that were refused does:
of these the nearest few that plain torch runs are traced.
"""

import json
import platform
import random
import secrets
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path

import torch

from memkit.fitting.plans import PlansFound, TrainingPlan, find_plans, traced
from memkit.hardware.cards import CARDS
from memkit.setup.models import gpt2_config, llama_config
from memkit.units import GIB, MIB

FILE = Path(__file__).parent.parent / "chapters" / "recordings" / "plans_judged_cpu.json"
CARD, NUM_REFUSED = CARDS["A100 SXM 40 GB"], 2


def random_job(chance: random.Random) -> dict:
    """A model, a window and a card, which holds between the least and the most that a plan takes."""
    job = {
        "family": chance.choice(("GPT-2", "Llama")), "num_layers": chance.randint(2, 6),
        "num_heads": 4 * chance.randint(2, 8), "vocab_size": chance.choice((8192, 32000, 50257)),
        "seq_len": 128 * chance.randint(2, 8), "num_sequences": 2 ** chance.randint(0, 3),
    }  # fmt: skip
    plans = found_for(job | {"card_bytes": CARD.memory_bytes}).plans
    peaks = sorted(plan.peak_bytes for plan in plans)
    wanted = peaks[0] + chance.uniform(-0.05, 1.0) * (peaks[-1] - peaks[0])
    return job | {"card_bytes": int(wanted * 1.01 + GIB // 2) // MIB * MIB}


def found_for(job: dict) -> PlansFound:
    """The plans of a job."""
    sizes = {"num_layers": job["num_layers"], "num_heads": job["num_heads"], "hidden_size": 64 * job["num_heads"]}
    if job["family"] == "GPT-2":
        model = replace(gpt2_config("random", **sizes), vocab_size=job["vocab_size"])
    else:
        model = llama_config(
            "random", **sizes, num_kv_heads=job["num_heads"] // 4, intermediate_size=176 * job["num_heads"],
            vocab_size=job["vocab_size"], max_seq_len=4096,
        )  # fmt: skip
    card = replace(CARD, memory_report=f"{job['card_bytes']} bytes")
    return find_plans(model, card, tokens_per_step=job["seq_len"] * job["num_sequences"], seq_len=job["seq_len"])


def judged(job: dict) -> dict:
    """The job with the plan named, its peaks, and the refused plans that would have fitted by their trace."""
    found = found_for(job)
    chosen = found.chosen
    order = lambda plan: (plan.sacrifice, plan.seconds, plan.peak_bytes)
    preferred = [plan for plan in found.missed if chosen is None or order(plan) < order(chosen)]
    refused = [plan for plan in preferred if not plan.setup.optimizer.is_on_host][:NUM_REFUSED]
    return job | {
        "chosen": chosen and chosen.name, "formula_bytes": chosen and chosen.peak_bytes,
        "traced_bytes": chosen and chosen.traced_bytes, "fits": chosen is None or chosen.fits,
        "wrongly_refused": [plan.name for plan in map(traced, refused) if fits_by_trace(plan)],
    }  # fmt: skip


def fits_by_trace(plan: TrainingPlan) -> bool:
    """Whether it fits by the trace alone."""
    return replace(plan, peak_bytes=plan.traced_bytes).fits


def is_right(job: dict) -> bool:
    """What is named fits, and nothing better was refused."""
    return job["fits"] and not job["wrongly_refused"]


def main(num_jobs: int = 500, seed: int | None = None) -> None:
    torch.set_num_threads(1)
    seed = secrets.randbelow(10**9) if seed is None else seed
    chance, jobs = random.Random(seed), []
    for number in range(num_jobs):
        jobs.append(judged(random_job(chance)))
        print(number, jobs[-1]["chosen"], "right" if is_right(jobs[-1]) else f"WRONG {jobs[-1]}", flush=True)
        if number % 20 == 19 or number == num_jobs - 1:
            write(jobs, seed)


def write(jobs: list[dict], seed: int) -> None:
    """The recording of the jobs so far."""
    ratios = [job["formula_bytes"] / job["traced_bytes"] for job in jobs if job["traced_bytes"]]
    about = {
        "what": "plans against traces", "seed": seed, "command": f"python scripts/judge_plans.py {len(jobs)} {seed}",
        "torch": torch.__version__, "machine": platform.machine(), "date": date.today().isoformat(),
        "right": sum(map(is_right, jobs)), "jobs": len(jobs), "traced": len(ratios),
        "ratio_least": min(ratios), "ratio_most": max(ratios),
    }  # fmt: skip
    lines = ",\n".join(json.dumps(job) for job in jobs)
    FILE.write_text(f'{{"about": {json.dumps(about)},\n"jobs": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
