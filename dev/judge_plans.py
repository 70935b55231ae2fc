"""Hold the plans for random jobs against traces: a model, a window, cards of a drawn size and number.

    python dev/judge_plans.py [number of jobs [seed]]

Without a seed a new one is drawn, and the file names it: chapters/recordings/plans_judged_cpu.json. What it holds of
the same seed is kept, so a run that was stopped goes on. Of each job the plans that say most are traced by their
printed code: the first choice, and of a sample the nearest to the edge of the card on either side and one of each side
drawn. A job is right if every plan said to fit fits by its trace alone, and none said not to fit does.
"""

import json
import platform
import random
import secrets
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from itertools import groupby
from pathlib import Path

import torch

from memkit.cards import CARDS, Card
from memkit.fit import fit_on
from memkit.models import gpt2_config, llama_config
from memkit.units import GIB, MIB
from stepscope.planner.plan import TrainingPlan
from stepscope.planner.run_code import traced
from stepscope.planner.search import PlansFound, find_plans

NUM_SAMPLED = 60
FILE = Path(__file__).parent.parent / "chapters" / "recordings" / "plans_judged_cpu.json"
CARD, NUM_NEAR = CARDS["A100 SXM 40 GB"], 1
CARDS_IN_A_JOB = (1, 1, 1, 2, 4)


def random_job(chance: random.Random) -> dict:
    """A model, a window and a number of cards; ``share`` is where the card lies between the least and the most."""
    return {
        "family": chance.choice(("GPT-2", "Llama")),
        "num_layers": chance.randint(1, 4),
        "num_heads": 4 * chance.randint(2, 8),
        "vocab_size": chance.choice((8192, 32000, 50257)),
        "seq_len": 128 * chance.randint(2, 8),
        "num_sequences": 2 ** chance.randint(0, 3),
        "num_cards": chance.choice(CARDS_IN_A_JOB),
        "share": round(chance.uniform(-0.05, 1.0), 4),
    }


def found_for(job: dict, chance: random.Random) -> tuple[PlansFound, list[TrainingPlan]]:
    """The plans of a job, on a card that holds between the least and the most that a sample of them takes; and that."""
    sizes = {
        "num_layers": job["num_layers"],
        "num_heads": job["num_heads"],
        "hidden_size": 64 * job["num_heads"],
    }
    if job["family"] == "GPT-2":
        model = replace(gpt2_config("random", **sizes), vocab_size=job["vocab_size"])
    else:
        model = llama_config(
            "random",
            **sizes,
            num_kv_heads=job["num_heads"] // 4,
            intermediate_size=176 * job["num_heads"],
            vocab_size=job["vocab_size"],
            max_seq_len=4096,
        )
    tokens = job["seq_len"] * job["num_sequences"] * job["num_cards"]
    plans = find_plans(
        model, CARD, tokens_per_step=tokens, seq_len=job["seq_len"], num_cards=job["num_cards"]
    ).plans
    places = chance.sample(range(len(plans)), min(NUM_SAMPLED, len(plans)))
    peaks = [plans[place].peak_bytes for place in places]
    wanted = min(peaks) + job["share"] * (max(peaks) - min(peaks))
    card = card_of(int(wanted * 1.01 + GIB // 2) // MIB * MIB)
    found = PlansFound(plans=tuple(replace(plan, card=card) for plan in plans))
    return found, [found.plans[place] for place in places]


def card_of(size: int) -> Card:
    """An A100 of so many bytes."""
    return replace(CARD, memory_report=f"{size} bytes")


def worth_tracing(
    found: PlansFound, sample: list[TrainingPlan], chance: random.Random
) -> dict[str, list[TrainingPlan]]:
    """By what is said of them: the first choice, the nearest to the edge, and one drawn of the others."""
    sides = {}
    for said in ("fits", "does not fit"):
        plans = [plan for plan in sample if plan.fits == (said == "fits")]
        first = [found.first] if said == "fits" and found.first else []
        edge = sorted(plans, key=lambda plan: abs(plan.fit.expected_bytes))[:NUM_NEAR]
        others = [plan for plan in plans if plan not in (*edge, *first)]
        drawn = [chance.choice(others)] if others else []
        sides[said] = list({plan.name: plan for plan in (*first, *edge, *drawn)}.values())
    return sides


def judged(job: dict, chance: random.Random) -> dict:
    """The job with each traced plan: its name, what was said, the bytes by formula and by trace."""
    found, sample = found_for(job, chance)
    rows = []
    for said, plans in worth_tracing(found, sample, chance).items():
        rows += [[plan.name, said, plan.peak_bytes, traced(plan).traced_bytes] for plan in plans]
    card_bytes = found.plans[0].card.memory_bytes
    counts = {
        "plans": len(found.plans),
        "first": found.first and found.first.name,
        "card_bytes": card_bytes,
    }
    return job | counts | {"traced": rows, "wrong": wrong_of(found.plans[0], rows)}


def wrong_of(plan: TrainingPlan, rows: Sequence) -> list[str]:
    """Names of the plans of which the trace says otherwise; one that is offloaded may be too large to trace."""
    wrong = []
    for name, said, _, size in rows:
        if size is not None and fit_on(plan.card, size).is_expected != (said == "fits"):
            wrong.append(name)
    return wrong


def recorded(seed: int) -> list[dict]:
    """The jobs of this seed that the file holds."""
    data = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {"about": {}}
    return data["jobs"] if data["about"].get("seed") == seed else []


def write(about: dict, jobs: list[dict]) -> None:
    """What the jobs come to, the jobs one a line, and where they were judged; whole or not at all."""
    about |= {
        "torch": torch.__version__,
        "machine": platform.machine(),
        "date": date.today().isoformat(),
    }
    lines = ",\n".join(json.dumps(item, ensure_ascii=False) for item in jobs)
    aside = FILE.with_suffix(".part")
    aside.write_text(
        f'{{"about": {json.dumps(about)},\n"jobs": [\n{lines}\n]}}\n', encoding="utf-8"
    )
    aside.replace(FILE)


def main(num_jobs: int = 500, seed: int | None = None) -> None:
    torch.set_num_threads(1)
    seed = secrets.randbelow(10**9) if seed is None else seed
    jobs = recorded(seed)[:num_jobs]
    for number in range(len(jobs), num_jobs):
        chance = random.Random(f"{seed} {number}")
        jobs.append(judged(random_job(chance), chance))
        print(number, "right" if not jobs[-1]["wrong"] else f"WRONG {jobs[-1]}", flush=True)
        if number % 5 == 4 or number == num_jobs - 1:
            write(about(jobs, seed), jobs)


def about(jobs: Sequence[dict], seed: int) -> dict:
    """What the jobs come to."""
    rows = [row for job in jobs for row in job["traced"]]
    ratios = [formula / by_trace for _, _, formula, by_trace in rows if by_trace]
    said = {words: len(list(found)) for words, found in groupby(sorted(row[1] for row in rows))}
    return {
        "what": "plans against traces",
        "seed": seed,
        "command": f"python dev/judge_plans.py {len(jobs)} {seed}",
        "jobs": len(jobs),
        "right": sum(not job["wrong"] for job in jobs),
        "traced": len(ratios),
        "said": said,
        "ratio_least": min(ratios),
        "ratio_most": max(ratios),
    }


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
