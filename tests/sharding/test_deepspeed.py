"""The keys of a DeepSpeed configuration: what Hugging Face fills in for "auto", and what DeepSpeed's source makes."""

from types import SimpleNamespace

import pytest
from accelerate.utils.deepspeed import HfDeepSpeedConfig
from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

from memkit.formula.parameters import count_parameters
from memkit.program.transformer import Transformer
from memkit.setup.models import LLAMA_2_7B, LLAMA_3_70B, TINY_LLAMA
from memkit.setup.training import TrainingSetup
from memkit.sharding.deepspeed import auto_sizes, filled, key_bytes

AUTO = dict.fromkeys(auto_sizes(1), "auto")


def in_bf16(**zero):
    return {"bf16": {"enabled": True}, "zero_optimization": zero}


def by_transformers(hidden_size: int) -> dict:
    """The configuration as the trainer of transformers finishes it; DeepSpeed itself is not asked."""
    names = ("is_auto", "fill_match", "fill_only", "trainer_config_finalize")
    kind = type("Config", (HfDeepSpeedConfig,), {name: vars(HfTrainerDeepSpeedConfig)[name] for name in names})
    config = kind(in_bf16(stage=3, **AUTO))
    config.mismatches = []
    arguments = SimpleNamespace(warmup_steps=0, get_warmup_steps=lambda _: 0)
    config.trainer_config_finalize(arguments, SimpleNamespace(config=SimpleNamespace(hidden_size=hidden_size)), 10)
    return config.config["zero_optimization"]


@pytest.mark.parametrize("hidden_size", [768, 4096, 8192])
def test_auto_is_what_transformers_fills_in(hidden_size):
    theirs = by_transformers(hidden_size)
    assert {key: theirs[key] for key in AUTO} == auto_sizes(hidden_size)
    assert filled(in_bf16(stage=3, **AUTO), hidden_size).items() >= theirs.items()


def test_the_sizes_that_its_documentation_names():
    """5e8 values of 2 bytes; two buckets with ``overlap_comm``; the documentation's 9 GB are 4.5 of each kind."""
    one, two = (key_bytes(in_bf16(stage=2, overlap_comm=on), LLAMA_2_7B) for on in (False, True))
    assert one["reduce_bucket_size"] == 5e8 * 2 and two["reduce_bucket_size"] == 2 * 5e8 * 2
    assert 5e8 * 2 * 2 * 4.5 == 9e9 == 4.5 * two["reduce_bucket_size"]
    three = key_bytes(in_bf16(stage=3), LLAMA_3_70B)
    assert three["stage3_prefetch_bucket_size"] == 5e7 * 2 and three["stage3_max_live_parameters"] == 1e9 * 2
    assert key_bytes({"zero_optimization": {"stage": 2}}, TINY_LLAMA)["reduce_bucket_size"] == 5e8 * 4
    assert key_bytes(in_bf16(stage=2, contiguous_gradients=False), TINY_LLAMA)["reduce_bucket_size"] == 0


def test_small_tensors_stay_whole():
    """Counted on the real module."""
    threshold = 10 * TINY_LLAMA.hidden_size
    small = sum(p.nbytes for p in Transformer(TrainingSetup(model=TINY_LLAMA), device="meta").parameters()
                if p.numel() <= threshold)
    found = key_bytes({"zero_optimization": {"stage": 3, **AUTO}}, TINY_LLAMA)
    assert found["stage3_param_persistence_threshold"] == small > 0
    all_of_them = key_bytes(in_bf16(stage=3, stage3_param_persistence_threshold=10**12), TINY_LLAMA)
    assert all_of_them["stage3_param_persistence_threshold"] == 2 * count_parameters(TINY_LLAMA)
    assert all_of_them["stage3_max_live_parameters"] == 2 * count_parameters(TINY_LLAMA)


def test_what_is_offloaded_is_a_share():
    cpu = {"device": "cpu"}
    found = key_bytes(in_bf16(stage=3, offload_optimizer=cpu, offload_param=cpu), LLAMA_2_7B, 8)
    assert found["offload_optimizer"] == -12 * 6_738_415_616 // 8
    assert found["offload_param"] == -2 * 6_738_415_616 // 8
    assert "offload_param" not in key_bytes(in_bf16(stage=2, offload_param=cpu), LLAMA_2_7B)
    assert key_bytes(in_bf16(stage=0), LLAMA_2_7B) == key_bytes({}, LLAMA_2_7B) == {}


@pytest.mark.parametrize(
    "zero, words",
    [
        ({"stage": 4}, "stage=4"), ({"stage": 2, "allgather_bucket_size": "auto"}, "allgather_bucket_size='auto'"),
        ({"stage": 3, "stage3_max_live_parameters": "auto"}, "auto"),
        ({"stage": 1, "reduce_bucket_size": "5e8"}, "5e8"),
        ({"stage": 1, "reduce_bucket_size": 2.5}, "reduce_bucket_size=2.5"),
    ],
)
def test_a_configuration_that_is_none_is_refused(zero, words):
    with pytest.raises(ValueError, match=words):
        key_bytes(in_bf16(**zero), LLAMA_2_7B)
    with pytest.raises(ValueError, match="num_ranks"):
        key_bytes(in_bf16(stage=1), LLAMA_2_7B, 0)
