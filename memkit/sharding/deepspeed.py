"""What the keys of a DeepSpeed configuration cost a rank, in bytes: its sizes are counts of values, not bytes.

A bucket is made whole, however small the model. Stages 1 and 2 make one for each backward, two where ``overlap_comm``
is on; under stage 3, where it is on by itself, one stands from the start to the end. ``"auto"`` is a word of Hugging
Face's, which fills in three sizes from the hidden size before DeepSpeed reads the configuration.

Source: DeepSpeed 0.19.8, runtime/zero: config.py, stage_1_and_2.py, stage3.py, parameter_offload.py,
partitioned_param_coordinator.py; transformers 5.23, integrations/deepspeed.py.
"""

from collections.abc import Mapping

from memkit.formats.dtypes import tensor_bytes
from memkit.formula.parameters import count_parameters, parameter_ledger
from memkit.setup.layouts import STAGES
from memkit.setup.models import ModelConfig
from memkit.units import as_whole_number

DEFAULTS = {
    "reduce_bucket_size": 5 * 10**8, "allgather_bucket_size": 5 * 10**8, "stage3_prefetch_bucket_size": 5 * 10**7,
    "stage3_max_live_parameters": 10**9, "stage3_param_persistence_threshold": 10**5,
}
"""Counts of values where a configuration says nothing."""

STATES = 12
"""Bytes a parameter of the float32 copy and AdamW's two moments."""

HALVES = {"bf16": "bfloat16", "fp16": "float16"}
"""The switches of the configuration, and the dtype of weights and buckets under them."""


def auto_sizes(hidden_size: int) -> dict[str, int]:
    """What Hugging Face puts for ``"auto"``.

    >>> auto_sizes(4096)["reduce_bucket_size"]
    16777216
    """
    square = hidden_size * hidden_size
    return {
        "reduce_bucket_size": square, "stage3_prefetch_bucket_size": int(0.9 * square),
        "stage3_param_persistence_threshold": 10 * hidden_size,
    }


def filled(config: Mapping, hidden_size: int) -> dict:
    """``zero_optimization`` with every size a number and every switch set, as DeepSpeed gets it.

    Raises: ValueError: no stage 0 to 3, a size that is no count, ``"auto"`` where Hugging Face fills nothing in.
    """
    zero = dict(config.get("zero_optimization", {}))
    if as_whole_number("stage", zero.setdefault("stage", 0)) >= len(STAGES):
        raise ValueError(f"stage={zero['stage']} is not one of 0, 1, 2, 3")
    autos = auto_sizes(hidden_size)
    for key, default in DEFAULTS.items():
        value = zero.get(key, default)
        if value == "auto" and key not in autos:
            raise ValueError(f"{key}='auto' is filled in by nobody; allowed: a number of values, such as {default}")
        value = autos[key] if value == "auto" else value
        is_exact = isinstance(value, float) and value.is_integer()  # JSON's 5e8
        zero[key] = as_whole_number(key, int(value) if is_exact else value)
    zero.setdefault("overlap_comm", zero["stage"] == 3)
    zero.setdefault("contiguous_gradients", True)
    return zero


def key_bytes(config: Mapping, model: ModelConfig, num_ranks: int = 8) -> dict[str, int]:
    """Bytes on a rank's card by key of ``zero_optimization``, at most; below 0: what the key moves to the host.

    What live parameters take includes the block that computes and what is prefetched.

    Raises: ValueError: see ``filled``; no whole number of ranks.

    >>> from memkit import models
    >>> key_bytes({"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}, models.LLAMA_2_7B)
    {'reduce_bucket_size': 1000000000, 'allgather_bucket_size': 0}
    """
    zero = filled(config, model.hidden_size)
    num_ranks = as_whole_number("num_ranks", num_ranks, 1)
    dtype = next((name for key, name in HALVES.items() if config.get(key, {}).get("enabled")), "float32")
    if zero["stage"] == 0:
        return {}
    total, num_buckets = count_parameters(model), 2 if zero["overlap_comm"] and zero["stage"] < 3 else 1
    buckets = num_buckets * tensor_bytes(zero["reduce_bucket_size"], dtype)
    sizes = {"reduce_bucket_size": buckets if zero["contiguous_gradients"] else 0}
    if zero["stage"] < 3:
        sizes["allgather_bucket_size"] = 0  # weights are gathered into their own place
    else:
        small = [p.count for p in parameter_ledger(model) if p.count <= zero["stage3_param_persistence_threshold"]]
        sizes["stage3_prefetch_bucket_size"] = tensor_bytes(zero["stage3_prefetch_bucket_size"], dtype)
        sizes["stage3_param_persistence_threshold"] = sum(tensor_bytes(count, dtype) for count in small)
        sizes["stage3_max_live_parameters"] = tensor_bytes(min(zero["stage3_max_live_parameters"], total), dtype)
    moved = {"offload_optimizer": STATES * total, "offload_param": tensor_bytes(total, dtype)}
    if zero["stage"] < 3:
        del moved["offload_param"]  # DeepSpeed takes it under stage 3 alone
    places = {key: (zero.get(key) or {}).get("device", "none") for key in moved}
    return sizes | {key: -(moved[key] // num_ranks) for key in moved if places[key] != "none"}
