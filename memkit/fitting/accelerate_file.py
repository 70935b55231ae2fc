"""A plan as Accelerate's file, for ``accelerate launch``: stages 2 and 3 are FSDP2; DDP has no keys of its own.

Each key that moves bytes carries a comment: the plan's peak beside that of the same plan with the opposite value, both
by formula.
"""

from dataclasses import replace

from memkit.fitting.plan import TrainingPlan, plan_of
from memkit.setup.recipes import AUTOCAST_BF16, AUTOCAST_FP16, FP32
from memkit.setup.strategies import FULL, NONE
from memkit.units import format_bytes


def accelerate_config(plan: TrainingPlan) -> dict:
    """Accelerate's keys for a plan, as ``ClusterConfig`` takes them; those of FSDP2 under ``fsdp_config``."""
    layout = plan.layout
    kinds = {True: "FSDP", False: "MULTI_GPU"}
    keys = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": kinds[layout.is_fully_sharded] if layout else "NO",
        "mixed_precision": half_of(plan) if casts_down(plan) or plan.scales_loss else "no", "num_machines": 1,
        "num_processes": layout.world_size if layout else 1,
    }
    if layout and layout.is_fully_sharded:
        keys["fsdp_config"] = {
            "fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": layout.stage == 3, "fsdp_offload_params": layout.offloads,
            "fsdp_activation_checkpointing": plan.setup.recomputation == FULL,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
    return keys


def half_of(plan: TrainingPlan) -> str:
    """The 16-bit dtype that is computed in, as the libraries spell it."""
    return "fp16" if plan.scales_loss else "bf16"


def casts_down(plan: TrainingPlan) -> bool:
    """Whether float32 weights are computed with in 16 bits: by autocast, or by what FSDP2 gathers."""
    return plan.setup.precision.uses_autocast or bool(plan.layout and plan.layout.param_dtype)


def opposites(plan: TrainingPlan) -> dict[str, tuple[str, TrainingPlan]]:
    """By key that moves bytes: the opposite value, and the plan with it."""
    setup, layout = plan.setup, plan.layout
    ways = {}
    if layout is None or not layout.is_fully_sharded:
        if casts_down(plan):
            ways["mixed_precision"] = "no", (replace(setup, precision=FP32), layout)
    else:
        if casts_down(plan):
            ways["mixed_precision"] = "no", (setup, replace(layout, param_dtype=None))
        reshards, offloads, again = layout.stage == 3, layout.offloads, setup.recomputation == FULL
        other = replace(layout, stage=2 if reshards else 3)
        ways["fsdp_reshard_after_forward"] = as_yaml(not reshards), (setup, other)
        other = replace(layout, offloads=not offloads)
        ways["fsdp_offload_params"] = as_yaml(not offloads), (setup, other)
        if setup.recomputation in (NONE, FULL):
            other = replace(setup, recomputation=NONE if again else FULL)
            ways["fsdp_activation_checkpointing"] = as_yaml(not again), (other, layout)
    if layout:
        halves = AUTOCAST_FP16 if plan.scales_loss else AUTOCAST_BF16
        alone = replace(setup, precision=halves) if layout.param_dtype else setup
        ways["num_processes"] = "1", (alone, None)
    return {key: (value, plan_of(way[0], plan.card, way[1])) for key, (value, way) in ways.items()}


def accelerate_yaml(plan: TrainingPlan) -> str:
    """The file, each key that moves bytes with what its opposite would do to the peak."""
    worth = {key: worth_of(plan, *other) for key, other in opposites(plan).items()}
    lines = [f"# {plan.name}: {format_bytes(plan.peak_bytes)}"]
    if plan.setup.grad_accum_steps > 1:
        lines.append(f"# in the script: Accelerator(gradient_accumulation_steps={plan.setup.grad_accum_steps})")
    for key, value in accelerate_config(plan).items():
        if isinstance(value, dict):
            lines += [f"{key}:", *(f"  {name}: {as_yaml(v)}{worth.get(name, '')}" for name, v in value.items())]
        else:
            lines.append(f"{key}: {as_yaml(value)}{worth.get(key, '')}")
    return "\n".join(lines)


def worth_of(plan: TrainingPlan, value: str, other: TrainingPlan) -> str:
    """A comment that says what a key's other value would do to the peak."""
    more = other.peak_bytes - plan.peak_bytes
    words = f"{format_bytes(abs(more))} {'more' if more > 0 else 'less'}" if more else "the same peak"
    return f"  # {value}: {words}"


def as_yaml(value: bool | int | str) -> str:
    """A scalar as YAML writes it; ``no`` in quotes, or it would be a false."""
    if isinstance(value, bool):
        return str(value).lower()
    return "'no'" if value == "no" else str(value)
