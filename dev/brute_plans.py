"""Hold the plans for random jobs against brute force: everything that a setup and a layout can say.

    python dev/brute_plans.py [number of jobs [seed]]

The candidates are written down here, by none of the planner's lists. One is missed if it fits, is faster than every
unbeaten plan that gives up as little, and belongs to no kind that "not tried" names. ``named`` holds those kinds.
Candidates that the planner's bound rules out are not played, but for a sample of each job.
"""

import random
import secrets
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, product

from memkit.cards import CARDS
from memkit.fit import fit_on
from memkit.models import gpt2_config, llama_config
from memkit.recipes import OptimizerConfig, Precision
from memkit.strategies import CORE, NONE, Strategy
from memkit.units import GIB
from stepscope.experts import PUBLISHED_MODELS
from stepscope.optimizers import OPTIMIZERS, is_paged
from stepscope.planner.plan import TrainingPlan, passes_of, plan_of
from stepscope.planner.search import PlansFound, find_plans
from stepscope.planner.ways import PLACES
from stepscope.setup import BASES, AdapterConfig, Layout, Place, linear_layers

TRIED = [set(), {"attention"}, {"attention", "mm", "addmm"}]
OPS = "attention", "mm", "addmm", "gelu", "silu"
NUM_SAMPLED = 12


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What brute force found beside the plans of a job: names of what was missed, and how many were looked at."""

    missed: tuple[str, ...]
    wrongly_ruled_out: tuple[str, ...]
    num_candidates: int
    num_played: int


def job_of(chance: random.Random, is_published: bool = False) -> PlansFound:
    """A model of either family on cards, old or new, that hold some of its plans and not the others."""
    name = chance.choice(("T4", "T4", "RTX 4090", "H100 SXM", "V100 32 GB"))
    num_cards = chance.choice((1, 1, 1, 2, 4))
    if is_published:
        models = [model for name, model in PUBLISHED_MODELS.items() if model.num_layers <= 32]
        model, seq_len = chance.choice(models), chance.choice((512, 1024))
        tokens = seq_len * num_cards * chance.choice((2, 4, 8))
        return find_plans(
            model, CARDS[name], tokens_per_step=tokens, seq_len=seq_len, num_cards=num_cards
        )
    heads, seq_len = 4 * chance.randint(2, 6), 256 * chance.randint(1, 4)
    sizes = {"num_layers": chance.randint(2, 6), "num_heads": heads, "hidden_size": 64 * heads}
    if chance.random() < 0.5:
        model = replace(gpt2_config("random", **sizes), vocab_size=chance.choice((8192, 50257)))
    else:
        model = llama_config(
            "random",
            **sizes,
            num_kv_heads=heads // 4,
            intermediate_size=176 * heads,
            vocab_size=chance.choice((8192, 32000)),
            max_seq_len=2048,
        )
    tokens = seq_len * num_cards * chance.choice((1, 2, 4, 6))
    found = find_plans(
        model, CARDS[name], tokens_per_step=tokens, seq_len=seq_len, num_cards=num_cards
    )
    peaks = sorted(
        plan.peak_bytes for plan in chance.sample(found.plans, min(40, len(found.plans)))
    )
    size = int(peaks[chance.randint(0, len(peaks) // 2)] * 1.01) + GIB
    card = replace(CARDS[name], memory_report=f"{size} bytes")
    return replace(found, plans=tuple(replace(plan, card=card) for plan in found.plans))


def precisions(half: str) -> Iterator[Precision]:
    """Weights, gradients, copies and moments in 16 and 32 bits."""
    for weight, gradient, compute, master, main, state, rest in product(
        ("float32", half),
        ("float32", half),
        ("float32", half),
        *[(None, "float32")] * 2,
        (None, "float32", half),
        (None, half),
    ):
        is_narrow = weight == half
        if (
            (compute == half or not is_narrow)
            and (is_narrow or not (master or rest))
            and not (master and rest)
        ):
            name = " ".join(map(str, (weight, gradient, compute, master, main, state, rest)))
            yield Precision(
                name=name,
                weight_dtype=weight,
                gradient_dtype=gradient,
                compute_dtype=compute,
                master_dtype=master,
                main_gradient_dtype=main,
                state_dtype=state,
                remainder_dtype=rest,
            )


def strategies(num_layers: int) -> list[Strategy]:
    """Groups, periods and segments in every combination, and every policy over single blocks."""
    numbers = range(1, num_layers + 1)
    cuts = [{"group_size": size, "period": period} for size, period in product(numbers, numbers)]
    cuts += [
        {"num_segments": number, "period": period}
        for number, period in product(numbers[1:], (1, 2, 3))
    ]
    cuts += [
        {"saved_ops": ops, "saves_every_second": second}
        for size in range(1, 6)
        for ops in combinations(OPS, size)
        for second in (False, True)
    ]
    ways = [Strategy(name=str(cut), code="", **cut) for cut in cuts]
    return [
        NONE,
        CORE,
        *{
            (way.regions(num_layers), way.saved_ops, way.saves_every_second): way for way in ways
        }.values(),
    ]


def layouts(num_cards: int, half: str) -> Iterator[Layout | None]:
    """One card, or everything that DDP and ``fully_shard`` take."""
    if num_cards == 1:
        yield None
        return
    for stage, view in product((0, 1), (False, True)):
        yield Layout(stage=stage, dp_size=num_cards, gradient_as_bucket_view=view)
    for stage, inside, reduced, offloads in product(
        (2, 3), *[(None, half, "float32")] * 2, (False, True)
    ):
        yield Layout(
            stage=stage,
            dp_size=num_cards,
            param_dtype=inside,
            reduce_dtype=reduced,
            offloads=offloads,
        )


def is_named(plan: TrainingPlan) -> bool:
    """Whether "not tried" names the plan's kind."""
    setup = plan.setup
    precision = plan.setup.precision
    way = plan.setup.recomputation
    optimizer = plan.setup.optimizer
    has_copies = any(
        (precision.master_dtype, precision.remainder_dtype, precision.main_gradient_dtype)
    )
    is_after = setup.place == Place.AFTER_BACKWARD
    is_plain_adamw = optimizer.name == "AdamW" and is_after
    is_narrow_on_host = setup.place.is_on_host and (
        precision.moment_dtype != "float32" or optimizer.name != "AdamW"
    )
    has_own_master = (
        setup.place.is_on_host and precision.master_dtype and precision.gradient_dtype != "float32"
    )
    own = precision.master_dtype or precision.weight_dtype
    named = [
        optimizer.name not in PLACES,
        has_copies and not (is_plain_adamw or has_own_master),
        is_narrow_on_host,
        precision.main_gradient_dtype,
        precision.state_dtype not in (None, own),
        plan.scales_loss and setup.place == Place.IN_BACKWARD,
        precision.gradient_dtype != precision.weight_dtype and not precision.master_dtype,
        way.saved_ops and (way.period, way.group_size, way.num_segments) != (1, 1, 0),
        set(way.saved_ops) not in TRIED,
        is_paged(optimizer.record) and setup.place.is_on_host,
        setup.adapter and (has_copies or precision.weight_dtype == "float32" or not is_plain_adamw),
        plan.layout and (setup.adapter or has_copies or not is_plain_adamw),
    ]
    return any(named)


def candidates(found: PlansFound) -> Iterator[TrainingPlan]:
    """What is faster than every unbeaten plan that gives up as little."""
    first, stairs = found.plans[0], [(plan.factor, plan.seconds) for plan in found.front]
    setup = replace(first.setup, adapter=None, grad_accum_steps=1)
    layout = first.layout
    card = first.card
    half = "bfloat16" if "bfloat16" in card.dtypes else "float16"
    number, model = first.setup.micro_batch_size * first.setup.grad_accum_steps, setup.model
    cuts = [(size, number // size) for size in range(1, number + 1) if number % size == 0]
    steppers = [
        {
            "optimizer": OptimizerConfig(record=record, implementation=record.implementations[-1]),
            "place": place,
        }
        for record in OPTIMIZERS.values()
        if record.name in PLACES
        for place in Place
    ]
    layers = linear_layers(model)
    for adapter in (
        None,
        *(AdapterConfig(rank=16, targets=layers, base=base) for base in BASES if layers),
    ):
        bare = replace(setup, recomputation=NONE, adapter=adapter)
        ways = sorted(
            strategies(model.num_layers),
            key=lambda way: passes_of(replace(bare, recomputation=way)),
        )
        for precision, stepper, spread in product(
            precisions(half), steppers, layouts(layout.dp_size if layout else 1, half)
        ):
            any_way = plan_of(replace(bare, precision=precision, **stepper), card, spread)
            is_narrow = precision.gradient_dtype == "float16" and not stepper["place"].is_on_host
            unscalable = is_narrow and adapter is None  # a GradScaler refuses them
            if unscalable or is_named(any_way):
                continue
            for size, steps in [(number, 1)] if stepper["place"].frees_gradients else cuts:
                for way in ways:
                    cut = replace(
                        bare,
                        precision=precision,
                        **stepper,
                        micro_batch_size=size,
                        grad_accum_steps=steps,
                        recomputation=way,
                    )
                    plan = replace(
                        plan_of(cut, card, spread), host_room_bytes=first.host_room_bytes
                    )
                    least = min(
                        (seconds for gives, seconds in stairs if gives <= plan.factor),
                        default=float("inf"),
                    )
                    if plan.seconds >= least:
                        break  # those behind it run more again
                    if not is_named(plan):
                        yield plan


def outcome_of(found: PlansFound, chance: random.Random) -> Outcome:
    """Play the candidates of a job, the cheapest and fastest first; of those that the bound rules out a sample."""
    missed, ruled_out, played = [], [], 0
    at_worst = found.first is not None and found.first.fits_at_worst
    all_of_them = sorted(candidates(found), key=lambda plan: (plan.factor, plan.seconds))
    for plan in all_of_them:
        if any(other.factor <= plan.factor and other.seconds <= plan.seconds for other in missed):
            continue
        has_a_chance = plan.may_fit(at_worst)
        if not has_a_chance:
            ruled_out.append(plan)
        elif fits(plan, at_worst):
            missed.append(plan)
        played += has_a_chance
    sample = chance.sample(ruled_out, min(NUM_SAMPLED, len(ruled_out)))
    return Outcome(
        missed=tuple(f"{plan.name}: {plan.setup.precision.name}" for plan in missed),
        num_played=played + len(sample),
        wrongly_ruled_out=tuple(plan.name for plan in sample if fits(plan, at_worst)),
        num_candidates=len(all_of_them),
    )


def fits(plan: TrainingPlan, at_worst: bool) -> bool:
    """Whether it fits by its formula; what has none is named as not tried."""
    try:
        fit = fit_on(plan.card, plan.peak_bytes)
        return plan.has_host_room and (fit.least_bytes >= 0 if at_worst else fit.is_expected)
    except ValueError:
        return False


def main(num_jobs: int = 30, seed: int | None = None) -> None:
    seed = secrets.randbelow(10**9) if seed is None else seed
    for number in range(num_jobs):
        chance = random.Random(f"{seed} {number}")
        found = job_of(chance, is_published=number % 4 == 3)
        setup, outcome = found.plans[0].setup, outcome_of(found, chance)
        first = found.first.name if found.first else "nothing fits"
        print(
            seed,
            number,
            setup.model.name,
            found.plans[0].card.name,
            first,
            outcome,
            sep=", ",
            flush=True,
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
