"""The cheat sheet: what each technique does to the peak of two jobs, what it costs, and what one writes for it.

Most published sheets give one saving per technique. There is none: what falls is a part, and how much of the peak
it was depends on the job. So every technique is applied to two of them, one with few tokens, whose states are
most of the peak, and one with many, whose activations are.
"""

from collections.abc import Mapping, Sequence
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


@dataclass(frozen=True)
class Technique:
    """One line of the sheet: what a reader writes for it (``flag``), its price in words, and its chapter's number."""

    name: str
    price: str
    flag: str
    chapter: str

    @property
    def layout(self) -> Layout | None:
        """How its step is spread over ranks."""
        return LAYOUT if "8 cards" in self.name else None

    def applied(self, job: Job) -> Job:
        """The job with the technique."""
        change = CHANGES[self.name]
        return change(job) if callable(change) else replace(job, **change)


LAYOUT = Layout(stage=3, dp_size=8, param_dtype="bfloat16", reduce_dtype="float32")


def with_lora(setup: Job, **choices: str) -> Job:
    """The job with only adapters of rank 16 trained, at every layer of the attention."""
    mlp = ("gate", "up", "down")
    attention = tuple(name for name in linear_layers(setup.model) if name not in mlp)
    return replace(setup, precision=PURE_BF16, adapter=AdapterConfig(targets=attention, **choices))


def one_at_a_time(setup: Job) -> Job:
    """The job with its sequences in passes of one."""
    return replace(setup, micro_batch_size=1, grad_accum_steps=setup.micro_batch_size)


CHANGES = {
    "FP32 in place of autocast": {"precision": FP32},
    "pure BF16": {"precision": PURE_BF16},
    "stored attention scores": {"attention": "stored"},
    "AdamW, fused": {"optimizer": FUSED_ADAMW},
    "8-bit AdamW": {"optimizer": OptimizerConfig(record=OPTIMIZERS["8-bit AdamW"])},
    "step in the backward": {"place": Place.IN_BACKWARD},
    "AdamW's states on the host": {"place": Place.ON_HOST},
    "every block checkpointed": {"recomputation": FULL},
    "every second block": {"recomputation": every(2)},
    "accumulation, one sequence a pass": one_at_a_time,
    "LoRA of rank 16, BF16 base": with_lora,
    "QLoRA of rank 16": partial(with_lora, base="nf4"),
    "fully_shard on 8 cards, a rank": {"precision": FP32},
    "half the sequence": lambda setup: replace(setup, seq_len=setup.seq_len // 2),
    "checkpoints and fused AdamW": {"recomputation": FULL, "optimizer": FUSED_ADAMW},
}
"""Fields of a job that a technique changes, or a function of the job."""
SHEET = """
    FP32 in place of autocast | slower products | no torch.autocast | 03
    pure BF16 | updates rounded away | model.to(torch.bfloat16) | 03
    stored attention scores | more traffic | attn_implementation="eager" | 01
    AdamW, fused | none | AdamW(…, fused=True) | 01
    8-bit AdamW | states rounded to 8 bits | bitsandbytes' AdamW8bit | 09
    step in the backward | no accumulation, no clipping | optimizer_in_bwd=True | 09
    AdamW's states on the host | a step over PCIe | torchao's CPUOffloadOptimizer | 09
    every block checkpointed | a second forward | gradient_checkpointing=True | 04
    every second block | half a second forward | checkpoint(block, x) | 04
    accumulation, one sequence a pass | smaller products | gradient_accumulation_steps=8 | 05
    LoRA of rank 16, BF16 base | few weights train | peft.LoraConfig(r=16) | 10
    QLoRA of rank 16 | few train, base in 4 bits | load_in_4bit=True | 10
    fully_shard on 8 cards, a rank | 3× the weights sent | fully_shard(block) | 11
    half the sequence | shorter context | max_length=1024 | 01
    checkpoints and fused AdamW | a second forward | both | 04
"""
TECHNIQUES = tuple(
    Technique(*map(str.strip, line.split("|"))) for line in SHEET.strip().splitlines()
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
        ratios = (flops_per_token(applied[n]) / flops_per_token(job) for n, job in jobs.items())
        flops = max(ratios)
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
            end, y = (
                left + width * min(share, LONGEST) / LONGEST,
                95 + 44 * row + (number + 0.5) * tall,
            )
            tip, data = f"{name}, {job}: {share:.1%}", {"job": job, "share": f"{share:.6g}"}
            chart.bar(left, end, y, tall, JOB_LOOKS[number], tip=tip, data=data)
            if share > LONGEST:
                corners = ((20, 0.5), (14, -0.5), (9, -0.5), (15, 0.5))
                chart.area([[(end - a, y + b * tall) for a, b in corners]], (PAPER, ""))
            chart.words(end + 6, y, f"{share:.0%}", 11)
    shown = (
        (name, ", ".join(f"{share:.0%}" for share in shares.values())) for name, shares, _ in rows
    )
    lines = "; ".join(f"{name} {percents}" for name, percents in shown)
    chart.alt = f"{title}, for {' and '.join(jobs)}: {lines}."
    return chart
