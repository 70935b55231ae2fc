"""The optimizers that the kit lacks: records beside the kit's own, whose table stays as it is."""

import pytest

from memkit import recipes as kit
from memkit.program.transformer import class_of
from memkit.recipes import IMPLEMENTATIONS, OptimizerConfig
from stepscope.optimizers import OPTIMIZERS

OF_TORCH = {
    name: record for name, record in OPTIMIZERS.items() if record.made_by.startswith("torch.")
}


def test_the_kits_records_are_the_first_and_its_table_has_no_others():
    assert dict(list(OPTIMIZERS.items())[: len(kit.OPTIMIZERS)]) == kit.OPTIMIZERS
    assert list(kit.OPTIMIZERS) == ["SGD", "SGD momentum", "AdamW"]


@pytest.mark.parametrize("name", OF_TORCH)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_an_implementation_is_refused_exactly_where_torch_lacks_it(name, implementation):
    record = OPTIMIZERS[name]
    torch_has_it = implementation != "fused" or "fused" in class_of(record).__init__.__annotations__
    if torch_has_it:
        assert (
            OptimizerConfig(record=record, implementation=implementation).implementation
            == implementation
        )
    else:
        with pytest.raises(ValueError, match="not offered by"):
            OptimizerConfig(record=record, implementation=implementation)
