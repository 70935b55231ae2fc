"""Numbers of lesson 09's prose that are differences and ratios of what its cells print."""

import re
from dataclasses import replace

from cells import texts_of

from memkit.cards import CARDS
from memkit.formula.estimate import estimate_memory
from memkit.models import LLAMA_2_7B, LLAMA_32_1B
from memkit.recipes import AUTOCAST_BF16, FUSED_ADAMW, PURE_BF16
from memkit.units import GIB
from stepscope.planner.plan import plan_of
from stepscope.planner.search import find_plans
from stepscope.setup import Job

TEXTS = texts_of("09")
CARD = CARDS["RTX 4090"]


def gib(job: Job) -> float:
    """The peak of the second step by formula, in GiB."""
    return estimate_memory(job).for_step(2).peak_bytes / GIB


def test_what_each_part_of_the_recipe_takes_off():
    told = TEXTS["stair-explain"]
    start = Job(model=LLAMA_2_7B, seq_len=2048, micro_batch_size=4)
    cast = replace(start, precision=AUTOCAST_BF16)
    single = replace(cast, micro_batch_size=1, grad_accum_steps=4)
    again = replace(single, recomputation="full")
    fused = replace(again, optimizer=FUSED_ADAMW)
    assert "takes a tenth off" in told and round(1 - gib(cast) / gib(start), 1) == 0.1
    assert "takes nothing off" in told and gib(again) == gib(single)
    more = plan_of(again, CARD).seconds / plan_of(single, CARD).seconds
    assert "a quarter more time" in told and 1.2 < more < 1.3
    assert "falls by 11 GiB only" in told and round(gib(single) - gib(fused)) == 11


def test_what_the_published_speeds_are_in_percent():
    rows = re.findall(
        r"^\| (?:fused|8-bit of \w+) \| [\d.]+ \| ([\d,]+) ", TEXTS["eight-bit-rules"], re.MULTILINE
    )
    fused, *eight_bit = (int(row.replace(",", "")) for row in rows)
    lost = sorted(round(100 * (1 - speed / fused)) for speed in eight_bit)
    assert f"{lost[0]} to {lost[1]} % of the tokens" in TEXTS["eight-bit-rules"]
    assert f"{lost[0]} to {lost[1]} % of the speed" in TEXTS["second-moment-read"]


def test_what_the_loss_in_pieces_saves():
    whole = Job(
        model=LLAMA_32_1B,
        precision=PURE_BF16,
        seq_len=2048,
        micro_batch_size=4,
        recomputation="full",
        optimizer=FUSED_ADAMW,
    )
    pieces = replace(whole, loss_pieces=8)
    hoped = 7 / 8 * 3 * whole.tokens_per_micro_batch * LLAMA_32_1B.vocab_size * 2 / GIB
    told = TEXTS["loss-read"]
    assert f"falls by {gib(whole) - gib(pieces):.1f} GiB and not by {hoped:.1f}" in told
    assert f"Of its {gib(pieces):.2f} GiB" in told
    assert "a quarter of the peak" in told and 0.23 < 1 - gib(pieces) / gib(whole) < 0.27
    foreach = replace(pieces, optimizer=Job(model=LLAMA_32_1B).optimizer)
    lost = (gib(foreach) - gib(pieces)) / (gib(whole) - gib(pieces))
    assert "nearly half of the saving" in told and 0.4 < lost < 0.5


def test_what_the_planner_s_plans_take():
    found = find_plans(LLAMA_32_1B, CARD, tokens_per_step=16_384, seq_len=2048)
    least = min(plan.seconds for plan in found.front)
    first, on_host, lora = found.front
    told = TEXTS["planner-read"]
    assert f"takes {first.seconds / least:.2f} times the least time" in told
    assert (
        f"fits, at {on_host.seconds / least:.2f} times the least time" in told
        and lora.seconds == least
    )
    assert "a third of a GiB" in told and 0.3 < -found.missed[0].fit.least_bytes / GIB < 0.4
