"""Rows of fms-acceleration, PEFT and Liger: which program each is, what it takes by a trace, and why a row is refused.

A row is predicted from its own columns; nothing is fitted but the longest batch of PEFT's texts, on one row. ``python
-m dev.bench public --rows FILE`` predicts and judges a file (csv or csv.gz) in the form of those repositories' tables;
``python -m dev.bench.public_predict --rows FILE`` stores it.

Source: github.com/foundation-model-stack/fms-acceleration at 876e2ed, scripts/benchmarks/refs; github.com/huggingface/
peft at 5d602fd, method_comparison/MetaMathQA/results and image-gen/results; github.com/linkedin/Liger-Kernel at
ead96b6, benchmark/data/all_benchmark_data.csv.
"""

import csv
import gzip
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

from book.many_cards import ManyCardRun
from dev.bench import flux_programs, liger_programs
from dev.bench.fms_programs import SEQ_LEN, TARGETS, Program, build, build_on_ranks
from dev.bench.peft_programs import FITTED_ON, reserved_bytes
from memkit import count_parameters
from memkit.fit import training_workspace_bytes
from memkit.models import LLAMA_2_70B, LLAMA_3_8B, MISTRAL_7B, llama_config
from stepscope import replay_trace, trace_script
from stepscope.experts import experts_config, num_experts_of

A100 = {"compute_capability": (8, 0), "torch_version": "2.4.1"}
TRAINED_BYTES_OF_BATCH = 3 * 8
"""Ids, mask and labels of a token, int64, alive at rest."""
POWERLM_3B = llama_config(
    "PowerLM-3b",
    40,
    2304,
    36,
    36,
    9216,
    49152,
    4096,
    ties_embeddings=True,
    has_qkv_bias=True,
    has_output_bias=True,
    has_mlp_bias=True,
)
MIXTRAL_8X7B = experts_config(
    MISTRAL_7B,
    name="Mixtral-8x7B",
    num_experts=8,
    experts_per_token=2,
    expert_size=MISTRAL_7B.intermediate_size,
)
MODELS = {
    "mistralai/Mixtral-8x7B-Instruct-v0.1": MIXTRAL_8X7B,
    "TheBloke/Mixtral-8x7B-Instruct-v0.1-GPTQ": MIXTRAL_8X7B,
    "mistralai/Mistral-7B-v0.1": MISTRAL_7B,
    "meta-llama/Meta-Llama-3-8B": LLAMA_3_8B,
    "NousResearch/Llama-2-70b-hf": LLAMA_2_70B,
    "ibm/PowerLM-3b": POWERLM_3B,
}
MODELS |= {
    "TheBloke/Mistral-7B-v0.1-GPTQ": MISTRAL_7B,
    "TechxGenus/Meta-Llama-3-8B-GPTQ": LLAMA_3_8B,
    "TheBloke/Llama-2-70B-GPTQ": LLAMA_2_70B,
}
WITHOUT_GROUPS = {"TheBloke/Llama-2-70B-GPTQ", "TheBloke/Mixtral-8x7B-Instruct-v0.1-GPTQ"}
"""GPTQ files whose ``quantize_config.json`` says ``group_size: -1`` (its model page: "Group Size: None")."""
VERSIONS = {"a100_80gb": "4.48.1", "a100_80gb_granite": "4.45.2", "a100_80gb_liger": "4.45.2"}
"""Of transformers, by table: ``requirements*.txt`` beside them."""
CONFIGS = {
    "none",
    "foak-fast-kernels",
    "foak-fast-kernels-liger",
    "baseline-peft-bnb",
    "accelerated-peft-bnb",
    "accelerated-peft-bnb-foak",
    "accelerated-peft-bnb-foak-liger",
    "accelerated-peft-autogptq",
    "accelerated-peft-autogptq-foak",
    "accelerated-peft-autogptq-foak-liger",
}


class Refusal(Exception):
    """Why a row has no prediction, in words."""


def read_rows(file: Path) -> list[dict[str, str]]:
    """The rows of a table, plain or gzipped; of Liger's the bytes of the plain twins.

    Its speeds are none of ours, and its own kernels are Triton's: what they allocate no trace of torch sees.
    """
    opened = gzip.open if file.suffix == ".gz" else open
    with opened(file, "rt", newline="", encoding="utf-8") as text:
        rows = [{"line": line} | row for line, row in enumerate(csv.DictReader(text), start=2)]
    return [
        row
        for row in rows
        if "kernel_provider" not in row
        or (row["metric_name"] == "memory" and "liger" not in row["kernel_provider"])
    ]


def program_of(row: dict[str, str]) -> Program:
    """Which program a row ran.

    Raises: Refusal: it has something that is not rebuilt.
    """
    config, name, table = row["framework_config"], row["model_name_or_path"], Path(row["file"]).stem
    if "orca" in row["file"] or "padding-free" in config:
        raise Refusal("lengths of its batches are not recorded (orca: not packed)")
    if "moe" in name.lower() or "moe" in config:
        raise Refusal("ScatterMoE's kernels for experts are not rebuilt")
    if name not in MODELS:
        raise Refusal(f"{name or 'a model without a name'} is not rebuilt")
    if config not in CONFIGS:
        raise Refusal(f"framework_config {config} is not rebuilt")
    if table not in VERSIONS:
        raise Refusal(f"versions of the libraries of {table}.csv are not known")
    is_gptq, is_half = "gptq" in config, row["torch_dtype"] == "float16"
    if (
        is_gptq != ("GPTQ" in name)
        or is_half != is_gptq
        or not (is_half or row["torch_dtype"] == "bfloat16")
    ):
        raise Refusal(f"{row['torch_dtype']} with {name} and {config} is not rebuilt")
    if row["peft_method"] not in ("", "lora"):
        raise Refusal(f"peft_method {row['peft_method']} is not rebuilt")
    if (is_gptq or "bnb" in config) and not row["peft_method"]:
        raise Refusal("4-bit weights without adapters are not rebuilt")
    if not measured(row, "mem_peak_torch_mem_alloc_in_bytes"):
        raise Refusal("torch's bytes were not recorded")
    if float(row.get("gradient_accumulation_steps") or 1) != 1:
        raise Refusal("accumulation is not rebuilt")
    asked = {word.removesuffix("_proj") for word in re.findall(r"\w+", row["target_modules"])} - {
        "c_attn"
    }
    if row["peft_method"] and asked != set(TARGETS):
        raise Refusal(f"target_modules {row['target_modules']} are not rebuilt")
    is_fused, is_liger, num_ranks = "foak" in config, "liger" in config, int(float(row["num_gpus"]))
    return Program(
        model=MODELS[name],
        batch=int(float(row["per_device_train_batch_size"])),
        num_ranks=num_ranks,
        has_adapters=bool(row["peft_method"]),
        rank=int(float(row["r"] or 16)),
        base="gptq" if is_gptq else "nf4" if "bnb" in config else "bfloat16",
        is_autocast=is_true(row["bf16"]) or is_true(row["fp16"]),
        has_groups=name not in WITHOUT_GROUPS,
        has_float_norms=config.startswith("baseline") and num_ranks == 1,
        fuses_norm=is_fused,
        fuses_rotary=is_fused,
        fuses_adapters=is_fused and ("bnb" in config or is_gptq),
        loss="liger" if is_liger else "fused" if is_fused else "plain",
        rebinds_logits=VERSIONS[table] < "4.46",
        scales_hidden=name.startswith("ibm/"),
        repeats_keys="Mistral" in name and VERSIONS[table] < "4.46",
    )


def is_true(word: str) -> bool:
    """Whether a table says yes: it writes TRUE and True."""
    return word.lower() == "true"


def predict(program: Program) -> tuple[int, int]:
    """Allocated bytes at the peak and at rest, of the fullest card."""
    if program.num_ranks == 1:
        replay = replay_trace(trace_script(build(program), steps=2), **A100)
        return replay.peak_allocated_bytes, replay.timeline.instants[-1].total_bytes
    standing, rest, updating = shares(program)
    replay = replay_trace(trace_script(build_on_ranks(program, standing), steps=2), **A100)
    always = training_workspace_bytes(A100["compute_capability"])
    always += TRAINED_BYTES_OF_BATCH * program.batch * SEQ_LEN
    return max(replay.peak_allocated_bytes, updating + always), rest + always


def shares(program: Program) -> tuple[int, int, int]:
    """Bytes of one of FSDP1's ranks: during forward and backward, at rest, while the optimizer updates.

    At rest FSDP1 keeps the share of the gradients. AdamW of torch makes one temporary of the size of the weights.
    """
    model, ranks = program.model, program.num_ranks
    total, value = count_parameters(model), program.shard_dtype.itemsize
    if not program.has_adapters:
        weights, gradients, moments, temporary = value, value, 2 * value, value
        standing, rest = weights + moments, weights + gradients + moments
        return tuple(each * total // ranks for each in (standing, rest, rest + temporary))
    h = model.hidden_size
    query = model.query_size
    kv = model.kv_size
    inner = model.intermediate_size
    # the router is one product more, which GPTQ leaves in 16 bits
    experts = max(1, num_experts_of(model))
    routers = h * num_experts_of(model) if program.base == "nf4" else 0
    products = model.num_layers * (2 * h * query + 2 * h * kv + 3 * h * inner * experts + routers)
    adapters = model.num_layers * program.rank * (2 * (h + query) + 2 * (h + kv))
    base = 2 * total // ranks
    if program.base == "nf4":
        # the codes are parameters and shared out; their scales are not, so each rank has all of them
        scales = products // 64
        base = (products // 2 + 2 * (total - products)) // ranks + scales + 4 * (scales // 256)
    if program.base == "gptq":
        # codes and zero points are shared out, scales and the group of each input are not
        inputs = model.num_layers * (3 * h + query + experts * (2 * h + inner))
        outputs = model.num_layers * (h + query + 2 * kv + experts * (h + 2 * inner))
        groups = products // 128 if program.has_groups else outputs
        base = (
            (products // 2 + groups // 2 + 2 * (total - products)) // ranks
            + 2 * groups
            + 4 * inputs
        )
    if program.fuses_adapters:
        # whole on each rank; that it is eight bytes a number was read off the bytes at rest
        return base + 8 * adapters, base + 8 * adapters, 0
    weights, gradients, moments = value, value, 2 * value
    standing, rest = weights + moments, weights + gradients + moments
    return base + standing * adapters // ranks, base + rest * adapters // ranks, 0


def run_of(row: dict[str, str]) -> ManyCardRun:
    """A row of either repository with its prediction, or with the reason why it has none."""
    if "peft_config" in row:
        return peft_run_of(row)
    if "kernel_provider" in row:
        return liger_run_of(row)
    peak, rest, reason, started = 0, 0, "", time.perf_counter()
    try:
        peak, rest = predict(program_of(row))
    except Refusal as refusal:
        reason = str(refusal)
    config = row["framework_config"]
    of_base = "GPTQ-LoRA" if "gptq" in config else "QLoRA" if "bnb" in config else "LoRA"
    kind = of_base if row["peft_method"] else "full"
    return ManyCardRun(
        file=row["file"],
        line=int(row["line"]),
        kind=kind,
        model=row["model_name_or_path"],
        num_cards=measured(row, "num_gpus"),
        batch=measured(row, "per_device_train_batch_size"),
        config=config,
        is_autocast=is_true(row["bf16"]),
        measured_peak=measured(row, "mem_peak_torch_mem_alloc_in_bytes"),
        measured_rest=measured(row, "mem_torch_mem_alloc_in_bytes"),
        peak=peak,
        rest=rest,
        refused=reason,
        seconds=round(time.perf_counter() - started, 1),
    )


def peft_run_of(row: dict[str, str]) -> ManyCardRun:
    """A row of PEFT's method comparison: the greatest reserved bytes; nothing was recorded at rest."""
    train, adapter = json.loads(row["train_config"]), json.loads(row["peft_config"] or "{}")
    peak, reason, started = 0, peft_refusal(row, train), time.perf_counter()
    is_image = train["model_id"] == flux_programs.MODEL
    if not reason:
        try:
            peak = (flux_programs.reserved_bytes if is_image else reserved_bytes)(row)
        except ImportError as error:
            reason = f"needs PEFT's libraries ({error}): pip install transformers peft diffusers"
        except Exception as error:  # noqa: BLE001 - what a stranger's method does that a trace cannot follow
            reason = f"{adapter.get('peft_type')} is not traced: {str(error).splitlines()[0][:100]}"
    return ManyCardRun(
        file=row["file"],
        line=0,
        kind="PEFT on FLUX.2" if is_image else "PEFT's methods",
        model=train["model_id"],
        num_cards=1,
        batch=train["batch_size"],
        config=row["experiment"],
        is_autocast=train["use_amp"],
        measured_peak=measured(row, "accelerator_memory_max"),
        measured_rest=0,
        peak=peak,
        rest=0,
        refused=reason,
        seconds=round(time.perf_counter() - started, 1),
    )


def peft_refusal(row: dict[str, str], train: dict) -> str:
    """Why a row of PEFT's is not tried, or nothing."""
    if row["experiment"] == FITTED_ON:
        return "the longest batch was fitted on it, so it does not count"
    if train["model_id"] not in ("meta-llama/Llama-3.2-3B", flux_programs.MODEL):
        return f"{train['model_id']} is not rebuilt"
    recomputes = train["model_id"] == flux_programs.MODEL
    if (
        train["dtype"] != "bfloat16"
        or train["use_amp"]
        or train["use_gc"] != recomputes
        or train["compile"]
    ):
        return "PEFT's runs in another dtype, with autocast, other recomputation or compiled are not rebuilt"
    if (
        '"peft_type": "ADALORA"' in row["peft_config"]
        or '"peft_type": "ADAMSS"' in row["peft_config"]
    ):
        return "what AdaLoRA and AdaMSS do after each step (update_and_allocate) is not rebuilt"
    if not measured(row, "accelerator_memory_max"):
        return "its bytes were not recorded"
    if train.get("init_kv_cache_prefix"):
        return "a prefix that starts from a text is not rebuilt"
    return "" if row["status"] == "success" else f"the run ended as {row['status']}"


def liger_run_of(row: dict[str, str]) -> ManyCardRun:
    """A row of Liger's benchmark: the greatest allocated bytes of a plain module, forward and backward."""
    kernel, provider, started = row["kernel_name"], row["kernel_provider"], time.perf_counter()
    reason = liger_programs.REFUSED.get(kernel, "")
    if not reason and (kernel not in liger_programs.PROGRAMS or "compile" in provider):
        reason = f"{kernel} is not rebuilt"
    if not reason and provider == "megatron" and kernel != "megatron_rms_norm":
        reason = "Megatron's own kernels are compiled"
    if '"T": 4096' in row["extra_benchmark_config_str"] and kernel == "fused_linear_orpo_loss":
        reason = liger_programs.SHORTER
    if not reason and row["gpu_name"] not in liger_programs.CARDS:
        reason = f"{row['gpu_name']} is not among the cards"
    x = f"{row['x_name']}={row['x_value']}"
    return ManyCardRun(
        file="all_benchmark_data.csv",
        line=row["line"],
        kind="Liger's twins",
        model=row["gpu_name"],
        num_cards=1,
        batch=1,
        config=f"{kernel} {provider} {row['kernel_operation_mode']} {x}",
        is_autocast=False,
        measured_peak=round(float(row["y_value_50"]) * 2**20),
        measured_rest=0,
        peak=0 if reason else liger_programs.peak_bytes(row),
        rest=0,
        refused=reason,
        seconds=round(time.perf_counter() - started, 1),
    )


def measured(row: dict[str, str], name: str) -> int:
    """A figure of the table; some are written as floats, some are missing."""
    return int(float(row[name] or 0))


def predicted_rows(file: Path) -> Iterator[ManyCardRun]:
    """Each row of a file, told while it is made: a trace takes seconds."""
    for row in read_rows(file):
        run = run_of(row)
        told = f"refused: {run.refused}" if run.refused else f"peak {run.peak_error:+.3%}"
        told += f", at rest {run.rest_error:+.3%}" if run.rest else ""
        print(f"{run.file}:{run.line} {run.kind} on {run.num_cards}: {told}", flush=True)
        yield run
