"""A plan as Accelerate's configuration: what ``accelerate launch --config_file`` reads, and what each key is worth.

One card needs only a precision. Stages 2 and 3 are FSDP2; DDP has no keys of its own; for ``ZeroRedundancyOptimizer``
(stage 1) Accelerate has no key, and the file says so. Each key that moves bytes carries a comment: the plan's peak
beside that of the same plan with the opposite value, both by formula.
"""

from dataclasses import replace

from memkit.fitting.plans import TrainingPlan, plan_of
from memkit.setup.layouts import Layout
from memkit.setup.recipes import AUTOCAST_BF16, FP32
from memkit.setup.strategies import FULL, NONE
from memkit.units import format_bytes


def accelerate_config(plan: TrainingPlan) -> dict:
    """Accelerate's keys for a plan, as ``ClusterConfig`` takes them; those of FSDP2 under ``fsdp_config``."""
    layout = plan.layout
    kinds = {True: "FSDP", False: "MULTI_GPU"}
    found = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": kinds[layout.is_fully_sharded] if layout else "NO",
        "mixed_precision": "bf16" if casts_to_bf16(plan) else "no", "num_machines": 1,
        "num_processes": layout.world_size if layout else 1,
    }  # fmt: skip
    if layout and layout.is_fully_sharded:
        found["fsdp_config"] = {
            "fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": layout.stage == 3, "fsdp_offload_params": layout.offloads,
            "fsdp_activation_checkpointing": plan.setup.recomputation == FULL,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }  # fmt: skip
    return found


def casts_to_bf16(plan: TrainingPlan) -> bool:
    """Whether float32 weights are computed with in bf16: by autocast, or by what FSDP2 gathers."""
    return plan.setup.precision.uses_autocast or bool(plan.layout and plan.layout.param_dtype)


def opposites(plan: TrainingPlan) -> dict[str, tuple[str, TrainingPlan]]:
    """By key that moves bytes: the opposite value, and the plan with it."""
    setup, layout = plan.setup, plan.layout
    found = {}
    if layout is None or not layout.is_fully_sharded:
        if casts_to_bf16(plan):
            found["mixed_precision"] = "no", (replace(setup, precision=FP32), layout)
    else:
        if casts_to_bf16(plan):
            found["mixed_precision"] = "no", (setup, replace(layout, param_dtype=None))
        reshards, offloads, again = layout.stage == 3, layout.offloads, setup.recomputation == FULL
        other = replace(layout, stage=2 if reshards else 3)
        found["fsdp_reshard_after_forward"] = as_yaml(not reshards), (setup, other)
        other = replace(layout, offloads=not offloads)
        found["fsdp_offload_params"] = as_yaml(not offloads), (setup, other)
        if setup.recomputation in (NONE, FULL):
            other = replace(setup, recomputation=NONE if again else FULL)
            found["fsdp_activation_checkpointing"] = as_yaml(not again), (other, layout)
    if layout:
        found["num_processes"] = "1", alone(setup, layout)
    return {key: (value, plan_of(way[0], plan.card, way[1])) for key, (value, way) in found.items()}


def alone(setup, layout: Layout) -> tuple:
    """The same micro-batch on one card."""
    return replace(setup, precision=AUTOCAST_BF16) if layout.param_dtype else setup, None


def accelerate_yaml(plan: TrainingPlan) -> str:
    """The file, each key that moves bytes with what its opposite would do to the peak."""
    worth = {key: in_words(plan, *other) for key, other in opposites(plan).items()}
    lines = [f"# {plan.name}: {format_bytes(plan.peak_bytes)}", *notes_on(plan)]
    for key, value in accelerate_config(plan).items():
        if isinstance(value, dict):
            lines += [f"{key}:", *(f"  {name}: {as_yaml(v)}{worth.get(name, '')}" for name, v in value.items())]
        else:
            lines.append(f"{key}: {as_yaml(value)}{worth.get(key, '')}")
    return "\n".join(lines)


def in_words(plan: TrainingPlan, value: str, other: TrainingPlan) -> str:
    """A comment."""
    more = other.peak_bytes - plan.peak_bytes
    words = f"{format_bytes(abs(more))} {'more' if more > 0 else 'less'}" if more else "the same peak"
    return f"  # {value}: {words}"


def notes_on(plan: TrainingPlan) -> list[str]:
    """What the file has no key for."""
    setup, notes = plan.setup, []
    if setup.grad_accum_steps > 1:
        notes.append(f"# in the script: Accelerator(gradient_accumulation_steps={setup.grad_accum_steps})")
    if setup.adapter is not None:
        notes.append("# adapters have no key: in the script, peft's get_peft_model")
    if setup.optimizer.name != "AdamW" or setup.optimizer.place != "after backward":
        notes.append(f"# {setup.optimizer.name} {setup.optimizer.place} has no key: in the script")
    if plan.layout and plan.layout.stage == 1:
        notes.append("# ZeRO-1 has no key: in the script the optimizer is a ZeroRedundancyOptimizer")
    has_key = plan.layout and plan.layout.is_fully_sharded and setup.recomputation == FULL
    if setup.recomputation != NONE and not has_key:
        notes.append(f"# {setup.recomputation.name} has no key: in the script, around each block")
    return notes


def as_yaml(value: bool | int | str) -> str:
    """A scalar as YAML writes it; ``no`` in quotes, or it would be a false."""
    if isinstance(value, bool):
        return str(value).lower()
    return "'no'" if value == "no" else str(value)
