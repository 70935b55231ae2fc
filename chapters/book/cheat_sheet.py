"""The cheat sheet: what each technique does to the peak of two jobs, what it costs, and what one writes for it.

Most published sheets give one saving per technique. There is none: what falls is a part, and how much of the peak
it was depends on the job. So every technique is applied to two of them, one with few tokens, whose states are
most of the peak, and one with many, whose activations are.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from memkit.models import LLAMA_2_7B, LLAMA_32_1B
from memkit.pictures.colours import OKABE_ITO
from memkit.pictures.svg import GREY, PAPER, Chart, text_width
from memkit.recipes import AUTOCAST_BF16, FP32, FUSED_ADAMW, PURE_BF16, OptimizerConfig
from memkit.recomputation import step_flops
from memkit.setup import TrainingSetup
from memkit.strategies import FULL, every
from stepscope.optimizers import OPTIMIZERS
from stepscope.planner.plan import peak_of
from stepscope.setup import AdapterConfig, Job, Layout, Place, as_job, linear_layers

JOBS = {
    "7B, 1,024 tokens": Job(model=LLAMA_2_7B, precision=AUTOCAST_BF16),
    "1B, 16,384 tokens": Job(
        model=LLAMA_32_1B, precision=AUTOCAST_BF16, micro_batch_size=8, seq_len=2048
    ),
}
"""Where a technique is applied: Llama-2-7B on one sequence, Llama-3.2-1B on eight of twice the length; both under
autocast, with AdamW's foreach and flash attention."""
JOB_LOOKS = ((OKABE_ITO[0], ""), (OKABE_ITO[2], "///"), (OKABE_ITO[3], "..."))
LONGEST = 1.3
"""A bar longer than this share of the plain job's peak is cut, with a break in it; its number says how long it is."""


@dataclass(frozen=True, kw_only=True)
class Technique:
    """One line of the sheet: ``applied`` gives a job with the technique, ``layout`` spreads its step over ranks.

    ``price`` is in words, ``flag`` what a reader writes for it; ``chapter`` is its number.
    """

    name: str
    applied: Callable[[Job], Job] = replace
    layout: Layout | None = None
    price: str
    flag: str
    chapter: str


def with_lora(setup: Job, **choices: str) -> Job:
    """The job with only adapters of rank 16 trained, at every layer of the attention."""
    attention = tuple(
        name for name in linear_layers(setup.model) if name not in ("gate", "up", "down")
    )
    return replace(setup, precision=PURE_BF16, adapter=AdapterConfig(targets=attention, **choices))


def one_at_a_time(setup: Job) -> Job:
    """The job with its sequences in passes of one."""
    return replace(setup, micro_batch_size=1, grad_accum_steps=setup.micro_batch_size)


TECHNIQUES = (
    Technique(
        name="FP32 in place of autocast",
        applied=partial(replace, precision=FP32),
        price="slower products",
        flag="no torch.autocast",
        chapter="03",
    ),
    Technique(
        name="pure BF16",
        applied=partial(replace, precision=PURE_BF16),
        price="updates rounded away",
        flag="model.to(torch.bfloat16)",
        chapter="03",
    ),
    Technique(
        name="stored attention scores",
        applied=partial(replace, attention="stored"),
        price="more traffic",
        flag='attn_implementation="eager"',
        chapter="01",
    ),
    Technique(
        name="AdamW, fused",
        applied=partial(replace, optimizer=FUSED_ADAMW),
        price="none",
        flag="AdamW(…, fused=True)",
        chapter="01",
    ),
    Technique(
        name="8-bit AdamW",
        applied=partial(replace, optimizer=OptimizerConfig(record=OPTIMIZERS["8-bit AdamW"])),
        price="states rounded to 8 bits",
        flag="bitsandbytes' AdamW8bit",
        chapter="08",
    ),
    Technique(
        name="step in the backward",
        applied=partial(replace, place=Place.IN_BACKWARD),
        flag="optimizer_in_bwd=True",
        price="no accumulation, no clipping",
        chapter="08",
    ),
    Technique(
        name="AdamW's states on the host",
        applied=partial(replace, place=Place.ON_HOST),
        price="a step over PCIe",
        flag="torchao's CPUOffloadOptimizer",
        chapter="08",
    ),
    Technique(
        name="every block checkpointed",
        applied=partial(replace, recomputation=FULL),
        price="a second forward",
        flag="gradient_checkpointing=True",
        chapter="04",
    ),
    Technique(
        name="every second block",
        applied=partial(replace, recomputation=every(2)),
        price="half a second forward",
        flag="checkpoint(block, x)",
        chapter="04",
    ),
    Technique(
        name="accumulation, one sequence a pass",
        applied=one_at_a_time,
        price="smaller products",
        flag="gradient_accumulation_steps=8",
        chapter="05",
    ),
    Technique(
        name="LoRA of rank 16, BF16 base",
        applied=with_lora,
        price="few weights train",
        flag="peft.LoraConfig(r=16)",
        chapter="08",
    ),
    Technique(
        name="QLoRA of rank 16",
        applied=partial(with_lora, base="nf4"),
        price="few train, base in 4 bits",
        flag="load_in_4bit=True",
        chapter="08",
    ),
    Technique(
        name="fully_shard on 8 cards, a rank",
        applied=partial(replace, precision=FP32),
        layout=Layout(stage=3, dp_size=8, param_dtype="bfloat16", reduce_dtype="float32"),
        price="3× the weights sent",
        flag="fully_shard(block)",
        chapter="09",
    ),
    Technique(
        name="half the sequence",
        applied=lambda setup: replace(setup, seq_len=setup.seq_len // 2),
        price="shorter context",
        flag="max_length=1024",
        chapter="01",
    ),
    Technique(
        name="checkpoints and fused AdamW",
        applied=partial(replace, recomputation=FULL, optimizer=FUSED_ADAMW),
        price="a second forward",
        flag="both",
        chapter="04",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Line:
    """What a technique does: job → peak in bytes and as a share of the plain job's, FLOPs per token beside the plain
    step's."""

    technique: Technique
    peaks: Mapping[str, int]
    shares: Mapping[str, float]
    flops: float


def apply_techniques(jobs: Mapping[str, TrainingSetup] = JOBS) -> tuple[Line, ...]:
    """Every technique applied to every job, by formula.

    Raises: ValueError: no jobs.

    >>> fused = next(line for line in apply_techniques() if line.technique.name == "AdamW, fused")
    >>> sorted(round(share, 1) for share in fused.shares.values())
    [0.8, 1.0]
    """
    if not jobs:
        raise ValueError("jobs={} is empty: name at least one TrainingSetup")
    jobs = {name: as_job(job) for name, job in jobs.items()}
    plain = {name: peak_of(job).total_bytes for name, job in jobs.items()}
    lines = []
    for technique in TECHNIQUES:
        applied = {name: technique.applied(job) for name, job in jobs.items()}
        peaks = {name: peak_of(job, technique.layout).total_bytes for name, job in applied.items()}
        flops = max(
            flops_per_token(applied[name]) / flops_per_token(job) for name, job in jobs.items()
        )
        shares = {name: peaks[name] / plain[name] for name in jobs}
        lines.append(Line(technique=technique, peaks=peaks, shares=shares, flops=flops))
    return tuple(lines)


def flops_per_token(setup: Job) -> float:
    """Operations of a step divided by its tokens."""
    return step_flops(setup).total / (setup.micro_batch_size * setup.seq_len)


def words_of(line: Line) -> tuple[str, str, str, str]:
    """FLOPs per token, price, flag and chapter of a line, as text."""
    return f"{line.flops:.2f}×", line.technique.price, line.technique.flag, line.technique.chapter


def sheet_figure(
    rows: Sequence[tuple[str, Mapping[str, float], Sequence[str]]],
    columns: Sequence[str],
    title: str,
) -> Chart:
    """Rows of (name, job → share of its plain peak, words); ``columns`` head the words.

    Raises: ValueError: no rows, or more jobs than looks.
    """
    if not rows:
        raise ValueError("no rows to draw")
    jobs = list(rows[0][1])
    if len(jobs) > len(JOB_LOOKS):
        raise ValueError(f"{len(jobs)} jobs; {len(JOB_LOOKS)} at most can be told apart")
    left, width, tall = 24 + max(text_width(name, 12) for name, *_ in rows), 250, 34 / len(jobs)
    texts = [[head, *(row[2][number] for row in rows)] for number, head in enumerate(columns)]
    wide = [18 + max(text_width(text, 12) for text in column) for column in texts]
    start = left + width + 60
    chart = Chart(start + sum(wide), 108 + 44 * len(rows), title)
    chart.legend([(JOB_LOOKS[number], job) for number, job in enumerate(jobs)], 10, 48, chart.width)
    plain = left + width / LONGEST
    chart.line([(plain, 86), (plain, chart.height - 8)], shade=GREY, stroke_dasharray="1 3")
    for number, column in enumerate(texts):
        place = start + sum(wide[:number])
        chart.words(place, 80, column[0], 12, shade=GREY)
        for row, text in enumerate(column[1:]):
            chart.words(place, 112 + 44 * row, text, 12)
    for row, (name, shares, _) in enumerate(rows):
        chart.words(10, 112 + 44 * row, name, 12)
        for number, (job, share) in enumerate((job, shares[job]) for job in jobs):
            end = left + width * min(share, LONGEST) / LONGEST
            y = 95 + 44 * row + (number + 0.5) * tall
            tells = {
                "tip": f"{name}, {job}: {share:.1%}",
                "data": {"job": job, "share": f"{share:.6g}"},
            }
            chart.bar(left, end, y, tall, JOB_LOOKS[number], **tells)
            if share > LONGEST:
                gap = [
                    (end - a, y + b * tall)
                    for a, b in ((20, 0.5), (14, -0.5), (9, -0.5), (15, 0.5))
                ]
                chart.area([gap], (PAPER, ""))
            chart.words(end + 6, y, f"{share:.0%}", 11)
    lines = (
        f"{name} {', '.join(f'{share:.0%}' for share in shares.values())}"
        for name, shares, _ in rows
    )
    chart.alt = f"{title}, for {' and '.join(jobs)}: {'; '.join(lines)}."
    return chart
