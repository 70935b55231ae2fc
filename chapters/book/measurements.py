"""What is measured on a card for the chapters: each measurement is one function of the device.

It returns numbers and timelines, for ``make record`` to keep and for the tests of a GPU machine to check.
With ``device="cpu"`` the same code runs at tiny sizes, and says in words what a CPU does not have.
"""

import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from book import training_ranks
from book.bandwidth import measure_bandwidth, seconds_of
from book.card_formats import cast_overflows, product_errors, time_products
from book.driver import ask_driver, card_by_driver_name
from book.gpu_cap import usable_bytes
from book.ranks import MAX_RANKS, run_on_ranks
from memkit.fit import workspace_bytes
from memkit.formula.estimate import estimate_memory
from memkit.measure import give_back, measure_memory
from memkit.models import GPT2_SMALL, LLAMA_32_1B, TINY_GPT2, TINY_LLAMA
from memkit.program.transformer import training_build
from memkit.recipes import AUTOCAST_BF16, FP32, PURE_BF16, OptimizerConfig
from memkit.setup import TrainingSetup
from memkit.timeline import MemoryTimeline
from memkit.units import KIB, MIB
from stepscope.optimizers import OPTIMIZERS
from stepscope.program.job import job_build
from stepscope.setup import Job
from stepscope.sharding import estimate_sharded
from stepscope.tracing.trace import trace_script


@dataclass(frozen=True)
class Measured:
    """What one measurement found, as a recording keeps it."""

    numbers: Mapping[str, int | float | str] = field(default_factory=dict)
    timelines: Mapping[str, MemoryTimeline] = field(default_factory=dict)


def record_card(device: str) -> Measured:
    """The card's own account of itself, and what the table of cards says about its memory."""
    if device == "cpu":
        return Measured({"card": "none: a CPU has no memory of a card"})
    properties = torch.cuda.get_device_properties()
    gpu = ask_driver().gpus[0] if ask_driver().gpus else None
    card = card_by_driver_name(properties.name)
    numbers = {
        "total_memory_bytes": properties.total_memory,
        "nvidia_smi_total_bytes": gpu.total_bytes if gpu else None,
        "table_bytes": card.memory_bytes if card else None,
        "l2_bytes": properties.L2_cache_size,
        "shared_memory_per_sm_bytes": properties.shared_memory_per_multiprocessor,
        "num_sms": properties.multi_processor_count,
        "clock_khz": getattr(properties, "clock_rate", None),
        "memory_clock_khz": getattr(properties, "memory_clock_rate", None),
        "memory_bus_bits": getattr(properties, "memory_bus_width", None),
        "compute_capability": f"{properties.major}.{properties.minor}",
    }
    return Measured({name: value for name, value in numbers.items() if value is not None})


def record_bandwidth(device: str) -> Measured:
    """Bytes per second of each kind of copy, and the data sheet's figure beside."""
    measured = measure_bandwidth(MIB, 2) if device == "cpu" else measure_bandwidth()
    numbers = {"copied_bytes": measured.copies[0].num_bytes}
    for copy in measured.copies:
        slug = copy.name.replace(" ", "_")
        numbers[f"{slug}_bytes_per_s"] = copy.bytes_per_s
        if copy.peak_bytes_per_s:
            numbers[f"{slug}_data_sheet_bytes_per_s"] = copy.peak_bytes_per_s
    return Measured(numbers)


CONTEXT_STAGES = {
    "context": "torch.ones(1, device='cuda')",
    "first_kernels": "a = torch.ones(64, 64, device='cuda', requires_grad=True); (a @ a).exp().sum().backward()",
}
"""What a fresh process does on the card, stage by stage; after each its bytes outside the allocator are counted."""


def record_context(device: str) -> Measured:
    """Bytes a process takes outside PyTorch's allocator: the CUDA context, then the kernels it has loaded."""
    if device == "cpu":
        return Measured({"context": "none: a CPU needs no context"})
    torch.cuda.init()
    numbers = {}
    with _child() as run:
        free_before, smi_before = torch.cuda.mem_get_info()[0], _nvidia_smi_used()
        for stage, statement in CONTEXT_STAGES.items():
            reserved = run(statement)
            numbers[f"{stage}_bytes"] = free_before - torch.cuda.mem_get_info()[0] - reserved
            if smi_before is not None:
                numbers[f"{stage}_by_nvidia_smi_bytes"] = _nvidia_smi_used() - smi_before - reserved
    return Measured(numbers)


def record_cublas_workspace(device: str) -> Measured:
    """Bytes the allocator keeps after a first matrix product, and after a first one in a backward."""
    if device == "cpu":
        return Measured({"workspace": "none: a CPU's products keep no workspace"})
    torch._C._cuda_clearCublasWorkspaces()
    give_back()
    square = torch.ones(64, 64, device="cuda")
    held = torch.cuda.memory_allocated()
    square @ square
    after_forward = torch.cuda.memory_allocated() - held
    square.requires_grad_()
    (square @ square).sum().backward()
    square.grad = None
    after_backward = torch.cuda.memory_allocated() - held
    predicted = workspace_bytes(torch.cuda.get_device_capability())
    return Measured(
        {
            "after_forward_bytes": after_forward,
            "after_forward, predicted_bytes": predicted,
            "after_backward_bytes": after_backward,
            "after_backward, predicted_bytes": 2 * predicted,
        }
    )


def training_setups(device: str) -> dict[str, TrainingSetup]:
    """The training steps that chapter 01 compares, by name; tiny ones for a CPU."""
    if device == "cpu":
        tiny = TrainingSetup(model=TINY_GPT2, seq_len=32, attention="flash", device="cpu")
        return {
            "tiny GPT-2, fp32": tiny,
            "tiny Llama, autocast": replace(tiny, model=TINY_LLAMA, precision=AUTOCAST_BF16),
        }
    gpt2 = TrainingSetup(
        model=GPT2_SMALL, micro_batch_size=4, attention="efficient", precision=FP32
    )
    autocast = replace(gpt2, attention="flash", precision=AUTOCAST_BF16)
    llama = replace(
        autocast, model=LLAMA_32_1B, micro_batch_size=1, seq_len=2048, precision=PURE_BF16
    )
    return {
        "tiny Llama, fp32": replace(gpt2, model=TINY_LLAMA),
        "GPT-2 small, fp32": gpt2,
        "GPT-2 small, fp32, stored attention": replace(gpt2, attention="stored"),
        "GPT-2 small, autocast": autocast,
        "GPT-2 small, autocast, full recomputation": replace(autocast, recomputation="full"),
        "GPT-2 small, autocast, 2 micro-batches": replace(autocast, grad_accum_steps=2),
        "GPT-2 small, pure bf16": replace(autocast, precision=PURE_BF16),
        "Llama-3.2-1B, pure bf16": llama,
    }


def record_training_steps(device: str) -> Measured:
    """Formula, trace and measurement of two steps of each training setup that fits."""
    numbers, timelines = {}, {}
    # cuBLAS takes its workspaces before the first setup, so that none of them holds them
    if torch.cuda.is_available():
        x = torch.ones(16, 16, device=device, requires_grad=True)
        (x @ x).sum().backward()
        del x
    for name, setup in training_setups(device).items():
        traced = trace_script(training_build(setup), device=device)
        if device == "cuda" and traced.peak_bytes > 0.9 * usable_bytes():
            numbers[name] = "not measured: larger than what is free on this card"
            continue
        formula = estimate_memory(setup)
        measured = measure_memory(training_build(setup), device=device)
        for timeline in (formula, traced, measured):
            numbers[f"{name}, {timeline.source}_peak_bytes"] = timeline.peak_bytes
            timelines[f"{name}, {timeline.source}"] = timeline
        give_back()
    return Measured(numbers, timelines)


KERNELS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
"""The kernels that ``scaled_dot_product_attention`` chooses from; a CPU has the first two."""


def attention_build(kernel: str, device: str, seq_len: int) -> Callable[[], Callable[[], None]]:
    """Causal attention of one sequence by one kernel, forward and backward, in bfloat16.

    Shapes: query, key and value [1, 16, seq_len, 64]; the stored scores would be [16, seq_len, seq_len].
    """

    def build():
        ones = partial(torch.ones, 1, 16, seq_len, 64, device=device, dtype=torch.bfloat16)
        parameters = [nn.Parameter(ones()) for _ in range(3)]

        def step():
            with sdpa_kernel(KERNELS[kernel]):
                output = F.scaled_dot_product_attention(*parameters, is_causal=True)
            output.sum().backward()
            for parameter in parameters:
                parameter.grad = None

        return step

    return build


def record_attention_kernels(device: str) -> Measured:
    """Bytes that live between forward and backward, and the peak, of each attention kernel this device has."""
    numbers, timelines = {"seq_len": 64 if device == "cpu" else 4 * KIB}, {}
    for kernel in KERNELS:
        build = attention_build(kernel, device, numbers["seq_len"])
        try:
            measured = measure_memory(build, device=device)
        except RuntimeError as error:
            if "kernel" not in str(error).lower():
                raise
            numbers[kernel] = "no such kernel here"
            continue
        numbers[f"{kernel}, kept for the backward_bytes"] = (
            measured.at("forward").total_bytes - measured.at("init").total_bytes
        )
        numbers[f"{kernel}, peak_bytes"] = measured.peak_bytes
        timelines[kernel] = measured
        give_back()
    return Measured(numbers, timelines)


def record_card_formats(device: str) -> Measured:
    """Relative error of a product by the format of its inputs, and what casts do beyond a format's range."""
    errors = product_errors(device, **({"size": 32} if device == "cpu" else {}))
    numbers = {f"relative error of a product, {name}": error for name, error in errors.items()}
    numbers |= {
        f"a cast beyond the range of {name}": rule for name, rule in cast_overflows(device).items()
    }
    return Measured(numbers)


def autocast_build(device: str, hidden_size: int, trains: bool, caches_casts: bool) -> Callable:
    """Four linear layers with float32 weights under bfloat16 autocast: a training step, or a forward alone.

    ``caches_casts=False`` makes autocast drop the bfloat16 copy of a weight when nobody else keeps it. In training
    autograd keeps every copy for the backward, so that the cache costs nothing; in inference it costs them all.
    """

    def build():
        layers = nn.Sequential(
            *(nn.Linear(hidden_size, hidden_size, bias=False, device=device) for _ in range(4))
        )

        def step():
            x_BD = torch.ones(1, hidden_size, device=device)
            autocast = torch.autocast(device, torch.bfloat16, cache_enabled=caches_casts)
            with torch.set_grad_enabled(trains), autocast:
                loss = layers(x_BD).sum()
            if trains:
                loss.backward()
                layers.zero_grad()

        return step

    return build


def record_autocast(device: str) -> Measured:
    """Peak bytes of four layers under autocast: training, and inference with and without its cache of casts."""
    hidden_size, numbers, timelines = (64 if device == "cpu" else 4096), {}, {}
    kinds = (
        ("training", True, True),
        ("inference", False, True),
        ("inference without cache", False, False),
    )
    for words, trains, caches_casts in kinds:
        build = autocast_build(device, hidden_size, trains, caches_casts)
        measured = measure_memory(build, device=device)
        numbers["weights_bytes"] = measured.at("init").total_bytes
        numbers[f"{words}, peak of the forward_bytes"] = measured.at("forward peak").total_bytes
        timelines[words] = measured
        give_back()
    return Measured(numbers, timelines)


def record_matmul_rates(device: str) -> Measured:
    """Floating-point operations per second of a square matrix product by dtype; float32 with TF32 off and on."""
    size, num_runs = (64, 2) if device == "cpu" else (8192, 20)
    numbers, before = {"size": size}, torch.get_float32_matmul_precision()
    try:
        for name, dtype, precision in (
            ("float32", torch.float32, "highest"),
            ("tf32", torch.float32, "high"),
            ("bfloat16", torch.bfloat16, "highest"),
            ("float16", torch.float16, "highest"),
        ):
            torch.set_float32_matmul_precision(precision)
            x = torch.ones(size, size, device=device, dtype=dtype)
            seconds = min(seconds_of(lambda x=x: x @ x, num_runs, device))
            numbers[f"{name}_tflops"] = 2 * size**3 / seconds / 1e12
    finally:
        torch.set_float32_matmul_precision(before)
    return Measured(numbers)


def record_fp8_products(device: str) -> Measured:
    """Seconds of square products in bf16, in FP8, and in FP8 with the casts of both operands."""
    if device == "cpu" or torch.cuda.get_device_capability() < (8, 9):
        return Measured({"FP8 products": "none: they need a card of compute capability 8.9"})
    found = time_products((1024, 2048, 4096, 8192, 16384))
    names, numbers = {"bf16": "bf16", "fp8": "FP8", "cast": "FP8 with casts"}, {}
    for size, row in found.items():
        numbers |= {
            f"{size} squared, {names[kind]}_seconds": seconds for kind, seconds in row.items()
        }
    return Measured(numbers)


FROM_LIBRARIES = tuple(
    name
    for name, record in OPTIMIZERS.items()
    if record.made_by.startswith(("bitsandbytes", "torchao"))
)
"""Optimizers that need a library beside torch."""


def record_optimizer_steps(device: str) -> Measured:
    """Peak bytes and least seconds of a step under each optimizer; on a CPU of torch's own, at tiny sizes."""
    names = ("AdamW", "Lion") if device == "cpu" else ("AdamW", "Lion", "Muon", *FROM_LIBRARIES)
    model, seq_len = (TINY_LLAMA, 16) if device == "cpu" else (GPT2_SMALL, 512)
    job = Job(model=model, precision=PURE_BF16, seq_len=seq_len, device=device)
    numbers = {}
    for name in names:
        step = job_build(replace(job, optimizer=OptimizerConfig(record=OPTIMIZERS[name])))()
        slug = name.lower().replace(" ", "_").replace("-", "_")
        # these steps come after one that makes states
        numbers[f"{slug}_step_seconds"] = min(seconds_of(step, 3, device))
        if device == "cuda":
            numbers[f"{slug}_peak_bytes"] = torch.cuda.max_memory_allocated()
        del step
        give_back()
    return Measured(numbers)


def record_ranks(device: str) -> Measured:
    """One rank of each way to spread a run over this machine's cards, or two processes: peak, bytes sent, losses."""
    num_cards = torch.cuda.device_count() if device == "cuda" else 0
    if num_cards == 1:
        return Measured(
            {"ranks": "none: this machine has one card, and nccl wants one for each rank"}
        )
    num_ranks, names = (
        (2, ("DDP", "ZeRO-3")) if device == "cpu" else (min(num_cards, MAX_RANKS), ())
    )
    told = run_on_ranks(training_ranks.__name__, num_ranks, names)
    numbers = {"ranks": num_ranks, "device": told["device"]}
    for name, way in training_ranks.steps(num_ranks, told["device"]).items():
        if name in told["ways"]:
            numbers[f"{name}, formula_peak_bytes"] = (
                estimate_sharded(way.setup, way.layout).for_step(2).peak_bytes
            )
            numbers[f"{name}, measured_peak_bytes"] = told["ways"][name]["peak_bytes"]
    for name, row in told["ways"].items():
        worst = max(
            abs(loss / alone - 1) for loss, alone in zip(row["losses"], row["oracle"], strict=True)
        )
        numbers[f"{name}, losses off one process's by"] = worst
        numbers |= {f"{name}, {kind}_bytes": num_bytes for kind, num_bytes in row["sent"].items()}
    return Measured(numbers)


MEASUREMENTS: dict[tuple[str, str], Callable[[str], Measured]] = {
    ("01", "card"): record_card,
    ("01", "bandwidth"): record_bandwidth,
    ("01", "training_steps"): record_training_steps,
    ("01", "attention_kernels"): record_attention_kernels,
    ("02", "card_formats"): record_card_formats,
    ("03", "autocast"): record_autocast,
    ("03", "matmul_rates"): record_matmul_rates,
    ("06", "fp8_products"): record_fp8_products,
    ("07", "context"): record_context,
    ("07", "cublas_workspace"): record_cublas_workspace,
    ("09", "optimizer_steps"): record_optimizer_steps,
    ("11", "ranks"): record_ranks,
}


@contextmanager
def _child():
    """A fresh process that runs statements; the function returns the bytes its allocator then has reserved."""
    program = (
        "import sys, torch\nfor line in sys.stdin:\n exec(line)\n torch.cuda.synchronize()\n"
        + (" print(torch.cuda.memory_reserved(), flush=True)\n")
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def run(statement: str) -> int:
        process.stdin.write(f"{statement}\n")
        process.stdin.flush()
        return int(process.stdout.readline())

    try:
        yield run
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


def _nvidia_smi_used() -> int | None:
    gpus = ask_driver().gpus
    return gpus[0].used_bytes if gpus else None
