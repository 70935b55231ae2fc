"""The parameter ledger of a model with experts against ``numel()`` of the real model, tensor by tensor."""

from dataclasses import replace

import pytest
from tests_of_the_kit import kit_tests

from memkit.models import TINY_LLAMA
from stepscope.experts import QWEN_3_30B_A3B, experts_config
from stepscope.program import job  # noqa: F401 - a model's experts are made from here on

KIT = kit_tests("formula/test_parameters.py")
VARIANT = experts_config(
    replace(TINY_LLAMA, has_qk_norm=True),
    num_experts=4,
    experts_per_token=2,
    expert_size=8,
    dense_layers=(1, 9),
)


@pytest.mark.parametrize("config", [VARIANT, QWEN_3_30B_A3B], ids=lambda config: config.name)
def test_names_shapes_and_order_are_the_models_own(config):
    KIT.test_names_shapes_and_order_are_the_models_own(config)


def test_the_count_is_numel_for_a_published_model_with_experts():
    KIT.test_the_count_is_numel_for_every_published_model(QWEN_3_30B_A3B)
