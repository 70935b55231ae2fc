"""A job refuses what cannot be trained, in one sentence with the value and what was allowed."""

import pytest

from memkit.models import TINY_GPT2, TINY_LLAMA
from memkit.recipes import OptimizerConfig
from stepscope.experts import experts_config
from stepscope.optimizers import OPTIMIZERS
from stepscope.setup import AdapterConfig, Job, Place

EXPERTS = {"num_experts": 4, "experts_per_token": 2, "expert_size": 8}
BAD = (
    (
        lambda: OptimizerConfig(record=OPTIMIZERS["Adafactor"], implementation="fused"),
        "'fused'.*Adafactor.*'foreach'",
    ),
    (
        lambda: Job(model=TINY_GPT2, adapter=AdapterConfig(targets=("gate",))),
        "'gate'.*tiny GPT-2.*'qkv'",
    ),
    (lambda: Job(model=TINY_LLAMA, place="on the moon"), "on the moon"),
    (
        lambda: Job(model=TINY_LLAMA, place=Place.IN_BACKWARD, grad_accum_steps=2),
        "in backward.*grad_accum_steps=2",
    ),
    (
        lambda: Job(model=TINY_LLAMA, place=Place.IN_BACKWARD, sets_grads_to_none=False),
        "sets_grads_to_none=False",
    ),
    (lambda: Job(model=TINY_LLAMA, micro_batch_size=0), "micro_batch_size=0"),
    (
        lambda: experts_config(TINY_LLAMA, **EXPERTS | {"num_experts": 1}),
        "num_experts, at most as many for a token",
    ),
    (lambda: experts_config(TINY_LLAMA, **EXPERTS | {"expert_size": 9}), "multiples of 8"),
    (lambda: experts_config(TINY_LLAMA, **EXPERTS | {"num_experts": 0}), "num_experts=0"),
)


@pytest.mark.parametrize("make, words", BAD, ids=[words for _, words in BAD])
def test_a_bad_value_gives_one_clear_error(make, words):
    with pytest.raises(ValueError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_a_place_is_held_as_one():
    assert Job(model=TINY_LLAMA, place="on the host").place is Place.ON_HOST
