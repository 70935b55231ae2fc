"""The sheet for the wall: what each technique does to the peak of two jobs, what it costs, and when it is of no use.

Most published sheets give one saving per technique. There is none: what falls is a part, and how much of the peak
it was depends on the job. So every technique is applied to two of them, one with few tokens, whose states are
most of the peak, and one with many, whose activations are.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

from memkit.models import LLAMA_2_7B, LLAMA_32_1B
from memkit.pictures.colours import OKABE_ITO
from memkit.pictures.svg import GREY, NARROW, PAPER, WIDE, Chart, broken, redrawn, text_width
from memkit.recipes import AUTOCAST_BF16, FP32, FUSED_ADAMW, PURE_BF16, OptimizerConfig
from memkit.recomputation import step_flops
from memkit.setup import TrainingSetup
from memkit.strategies import FULL
from stepscope.optimizers import OPTIMIZERS
from stepscope.planner.plan import peak_of
from stepscope.planner.ways import PIECES
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
SHARDED = Layout(stage=3, dp_size=8, param_dtype="bfloat16", reduce_dtype="float32")
OUTSIDE_THE_STEP = (
    'Outside the step. Load, resume: torch.load(path, map_location="cpu", mmap=True) (08)',
    "Evaluate: preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1) (08)",
    "Several cards: torchrun train.py, never bare python (11)",
    "Answers: the engine's share is vllm_gpu_memory_utilization (13)",
    "Before you change anything: print(next(model.parameters()).dtype); stepscope report train.py",
    "After step 3: torch.cuda.max_memory_allocated(). A technique helps only at the highest moment, so look again.",
)
"""What a job needs that no bar shows, each with its lesson."""


@dataclass(frozen=True, kw_only=True)
class Technique:
    """One line of the sheet.

    ``change`` makes the job with the technique; ``layout`` spreads it over ranks. ``flag`` is what a reader writes,
    ``price`` what it costs beside the FLOPs, ``not_when`` where it is of no use or not possible.
    """

    name: str
    change: Callable[[Job], Job]
    flag: str
    price: str
    not_when: str
    lesson: str
    layout: Layout | None = None


def fields(**changed) -> Callable[[Job], Job]:
    """A change that sets fields of a job."""
    return lambda job: replace(job, **changed)


def with_lora(job: Job, *, base: str = "as loaded", **changed) -> Job:
    """The job with only adapters of rank 16 trained, in bfloat16, at every layer of the attention."""
    mlp = ("gate", "up", "down")
    attention = tuple(name for name in linear_layers(job.model) if name not in mlp)
    adapter = AdapterConfig(targets=attention, dtype="bfloat16", base=base)
    return replace(job, precision=PURE_BF16, adapter=adapter, **changed)


def one_at_a_time(job: Job) -> Job:
    """The job with its sequences in passes of one."""
    return replace(job, micro_batch_size=1, grad_accum_steps=job.micro_batch_size)


TECHNIQUES = (
    Technique(
        name="fused step",
        change=fields(optimizer=FUSED_ADAMW),
        flag="AdamW(…, fused=True)",
        price="none",
        not_when="–",
        lesson="09",
    ),
    Technique(
        name=f"loss in {PIECES} pieces",
        change=fields(loss_pieces=PIECES),
        flag="use_liger_kernel=True",
        price="the head runs again",
        not_when="you need the logits",
        lesson="09",
    ),
    Technique(
        name="without flash attention",
        change=fields(attention="stored"),
        flag='attn_implementation="eager"',
        price="more traffic",
        not_when="only if you return the scores",
        lesson="01",
    ),
    Technique(
        name="one sequence a pass",
        change=one_at_a_time,
        flag="gradient_accumulation_steps=8",
        price="smaller products",
        not_when="batch norm; a step in the backward",
        lesson="05",
    ),
    Technique(
        name="every block recomputed",
        change=fields(recomputation=FULL),
        flag="activation_checkpointing=True",
        price="one more forward",
        not_when="the peak is in the step",
        lesson="04",
    ),
    Technique(
        name="recomputed, loss in pieces",
        change=fields(recomputation=FULL, loss_pieces=PIECES),
        flag="both",
        price="both",
        not_when="the peak is in the step",
        lesson="09",
    ),
    Technique(
        name="8-bit states",
        change=fields(optimizer=OptimizerConfig(record=OPTIMIZERS["8-bit AdamW"])),
        flag='optim="adamw_bnb_8bit"',
        price="states in 8 bits, some speed",
        not_when="adapters: their states are tiny",
        lesson="09",
    ),
    Technique(
        name="step in the backward",
        change=fields(place=Place.IN_BACKWARD),
        flag="p.register_post_accumulate_grad_hook(…)",
        price="none",
        not_when="you accumulate, clip, scale the loss",
        lesson="09",
    ),
    Technique(
        name="states on the host",
        change=fields(place=Place.ON_HOST),
        flag="torchao.optim.CPUOffloadOptimizer",
        price="a step over PCIe",
        not_when="the host lacks the memory",
        lesson="09",
    ),
    Technique(
        name="and gradients; bf16, recomputed",
        change=fields(place=Place.ON_HOST_WITH_GRADIENTS, precision=PURE_BF16, recomputation=FULL),
        flag="the same with offload_gradients=True",
        price="the same, small updates lost",
        not_when="you accumulate or clip",
        lesson="09",
    ),
    Technique(
        name="everything in bf16",
        change=fields(precision=PURE_BF16),
        flag="dtype=torch.bfloat16",
        price="small updates are lost",
        not_when="long training of all weights",
        lesson="03",
    ),
    Technique(
        name="LoRA of rank 16, bf16 base",
        change=with_lora,
        flag="LoraConfig(r=16), autocast_adapter_dtype=False",
        price="few weights learn",
        not_when="much is new to the model",
        lesson="10",
    ),
    Technique(
        name="LoRA, recomputed",
        change=partial(with_lora, recomputation=FULL),
        flag="and activation_checkpointing=True",
        price="few learn, one more forward",
        not_when="much is new to the model",
        lesson="10",
    ),
    Technique(
        name="QLoRA, recomputed",
        change=partial(with_lora, base="nf4", recomputation=FULL),
        flag="BitsAndBytesConfig(load_in_4bit=True)",
        price="each product decodes 4 bits",
        not_when="experts: they may stay in 16 bits",
        lesson="10",
    ),
    Technique(
        name="8 cards, a card of them",
        change=fields(precision=FP32),
        flag="fully_shard(block), fully_shard(model)",
        price="weights and gradients are sent",
        not_when="activations are the peak",
        lesson="11",
        layout=SHARDED,
    ),
    Technique(
        name="8 cards, recomputed",
        change=fields(precision=FP32, recomputation=FULL),
        flag="both",
        price="both",
        not_when="–",
        lesson="11",
        layout=SHARDED,
    ),
    Technique(
        name="half of the tokens",
        change=lambda job: replace(job, seq_len=job.seq_len // 2),
        flag="max_length=1024, or packing=True",
        price="other data",
        not_when="the peak is in the step",
        lesson="13",
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

    @property
    def words(self) -> tuple[str, str, str, str, str]:
        """What stands beside the bars: FLOPs, price, when not, what one writes, lesson."""
        shown = self.technique
        return f"{self.flops:.2f}×", shown.price, shown.not_when, shown.flag, shown.lesson


COLUMNS = ("FLOPs", "price", "not when", "what one writes", "lesson")


def apply_techniques(jobs: Mapping[str, TrainingSetup] = JOBS) -> tuple[Line, ...]:
    """Every technique applied to every job, by formula.

    Raises: ValueError: no jobs.

    >>> fused = next(line for line in apply_techniques() if line.technique.name == "fused step")
    >>> sorted(round(share, 1) for share in fused.shares.values())
    [0.8, 1.0]
    """
    if not jobs:
        raise ValueError("jobs={} is empty: name at least one TrainingSetup")
    jobs = {name: as_job(job) for name, job in jobs.items()}
    plain = {name: peak_of(job).total_bytes for name, job in jobs.items()}
    lines = []
    for technique in TECHNIQUES:
        applied = {name: technique.change(job) for name, job in jobs.items()}
        peaks = {name: peak_of(job, technique.layout).total_bytes for name, job in applied.items()}
        flops = max(flops_per_token(applied[n]) / flops_per_token(job) for n, job in jobs.items())
        shares = {name: peaks[name] / plain[name] for name in jobs}
        lines.append(Line(technique=technique, peaks=peaks, shares=shares, flops=flops))
    return tuple(lines)


def flops_per_token(job: Job) -> float:
    """Operations of a step divided by its tokens."""
    return step_flops(job).total / (job.micro_batch_size * job.seq_len)


@redrawn
def sheet_figure(
    lines: Sequence[Line], title: str, below: Sequence[str] = (), width: float = WIDE
) -> Chart:
    """A row for each line: a bar for each job, as long as what is left of its peak, and the words; ``below`` them text.

    As wide as its words; on a phone a line's name, its bars and its words stand below one another.
    Raises: ValueError: no lines, or more jobs than looks.
    """
    if not lines:
        raise ValueError("no lines to draw")
    jobs = list(lines[0].shares)
    if len(jobs) > len(JOB_LOOKS):
        raise ValueError(f"{len(jobs)} jobs; {len(JOB_LOOKS)} at most can be told apart")
    entries = [(JOB_LOOKS[number], job) for number, job in enumerate(jobs)]
    if width == NARROW:
        chart = Chart(width, 0, title)
        top = chart.legend(entries, 10, 48 + chart.lower, width - 20)
        chart.height = _sheet_of_a_phone(chart, lines, below, top)
    else:
        chart = _sheet_of_columns(lines, title, below, entries)
    shown = (
        f"{line.technique.name} {', '.join(f'{share:.0%}' for share in line.shares.values())}"
        for line in lines
    )
    chart.alt = f"{title}, for {' and '.join(jobs)}: {'; '.join(shown)}."
    return chart


def _sheet_of_columns(lines, title: str, below: Sequence[str], entries) -> Chart:
    """The sheet as a table: names, bars, a column for each of ``COLUMNS``."""
    row_height, top = 42, 90
    names = [line.technique.name for line in lines]
    left, width, tall = 24 + max(text_width(name, 12) for name in names), 200, 32 / len(entries)
    columns = list(zip(COLUMNS, *(line.words for line in lines), strict=True))
    wide = [18 + max(text_width(text, 12) for text in column) for column in columns]
    *starts, right = accumulate(wide, initial=left + width + 50)
    bottom = top + row_height * len(lines)
    chart = Chart(right, bottom + 10 + 22 * len(below), title)
    chart.legend(entries, 10, 48, chart.width)
    plain = left + width / LONGEST
    chart.line([(plain, top - 6), (plain, bottom)], shade=GREY, stroke_dasharray="1 3")
    for start, (head, *texts) in zip(starts, columns, strict=True):
        chart.words(start, top - 12, head, 12, shade=GREY)
        for row, text in enumerate(texts):
            chart.words(start, top + row_height * (row + 0.5), text, 12)
    for row, line in enumerate(lines):
        chart.words(10, top + row_height * (row + 0.5), names[row], 12)
        _bars(chart, line, left, width, top + row_height * row + 4, tall)
    for number, text in enumerate(below):
        chart.words(10, bottom + 16 + 22 * number, text, 12)
    return chart


def _sheet_of_a_phone(chart: Chart, lines, below: Sequence[str], y: float) -> float:
    """Draws the lines below one another from ``y`` on; returns where they end."""
    room, wide = chart.width - 20, chart.width - 56
    for line in lines:
        chart.words(10, y, line.technique.name, 12, bold=True, at="top")
        plain, bottom = 10 + wide / LONGEST, y + 20 + 14 * len(line.shares)
        chart.line([(plain, y + 16), (plain, bottom)], shade=GREY)
        _bars(chart, line, 10, wide, y + 18, 14)
        y = bottom
        told = (f"{name}: {words}" for name, words in zip(COLUMNS, line.words, strict=True))
        text = broken("; ".join(told), room, 11)
        chart.words(10, y + 2, text, 11, at="top", shade=GREY)
        y += 14 + 13.5 * len(text.splitlines())
    for text in (broken(each, room, 11) for each in below):
        chart.words(10, y, text, 11, at="top")
        y += 6 + 13.5 * len(text.splitlines())
    return y + 4


def _bars(chart: Chart, line: Line, left: float, width: float, top: float, tall: float) -> None:
    """A bar for each job, ``LONGEST`` of its peak at most, and the share behind it."""
    for number, (job, share) in enumerate(line.shares.items()):
        end, y = left + width * min(share, LONGEST) / LONGEST, top + (number + 0.5) * tall
        tip = f"{line.technique.name}, {job}: {share:.1%}"
        data = {"job": job, "share": f"{share:.6g}"}
        chart.bar(left, end, y, tall, JOB_LOOKS[number], tip=tip, data=data)
        if share > LONGEST:
            corners = ((20, 0.5), (14, -0.5), (9, -0.5), (15, 0.5))
            chart.area([[(end - a, y + b * tall) for a, b in corners]], (PAPER, ""))
        chart.words(end + 6, y, f"{share:.0%}", 11, boxed=chart.is_narrow)
