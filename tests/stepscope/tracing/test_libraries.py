"""What a trace says that it does not know: on the CPU all that is no transformer's, and what values decide."""

import warnings

import pytest
import torch
from torch import linalg, nn
from training_loop import training

from memkit.measure import measure_memory
from stepscope.tracing.trace import trace_script


def program(function, *shape, dtype=torch.float32):
    def build():
        w = nn.Parameter(torch.randn(shape).to(dtype))
        return training(
            nn.ParameterList([w]), lambda: function(w).float().abs().sum(), torch.optim.SGD
        )

    return build


OTHERS = {
    "aten.convolution, aten.convolution_backward": lambda w: nn.functional.conv2d(
        w, w[:1, :, :3, :3]
    ),
    "aten._linalg_svd": linalg.svdvals,
    "aten.linalg_inv_ex": linalg.inv,
    "aten.native_batch_norm": lambda w: nn.functional.batch_norm(w, None, None, training=True),
    "aten.mkldnn_rnn_layer": lambda w: nn.LSTM(8, 8)(w[0])[0],
    "aten.max_pool2d_with_indices": lambda w: nn.functional.max_pool2d(w, 2),
}


@pytest.mark.parametrize("names", OTHERS)
def test_what_is_no_transformers_is_told_once_by_name_on_the_cpu(names):
    with pytest.warns(UserWarning, match=f"measure it there: .*{names}") as caught:
        trace_script(program(OTHERS[names], 4, 8, 8, 8), device="cpu")
    assert sum("measure it" in str(warning.message) for warning in caught) == 1


@pytest.mark.parametrize("rows, is_told", [(64, True), (2, False)])
def test_a_product_in_16_bits_is_told_only_where_it_may_stand_at_the_peak(rows, is_told):
    """What oneDNN packs there depends on the processor; two rows are far below the update of 256 × 256 weights."""

    def build():
        layer = nn.Linear(256, 256, dtype=torch.bfloat16)
        x = torch.ones(64 * rows, 256, dtype=torch.bfloat16)
        return training(layer, lambda: layer(x).sum())

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        traced = trace_script(build, device="cpu")
    assert is_told == any("mm in 16 bits" in str(warning.message) for warning in caught)
    if not is_told:
        assert abs(traced.peak_bytes - measure_memory(build, device="cpu").peak_bytes) <= 64
