"""The width of every dtype, against torch and ml_dtypes."""

import ml_dtypes
import pytest
import torch

from memkit.formats.records import DTYPE_BITS, dtype_bits, tensor_bytes

IN_TORCH = [
    name for name in DTYPE_BITS if hasattr(torch, name) and name not in ("int4", "float4_e2m1fn")
]


@pytest.mark.parametrize("name", IN_TORCH)
def test_bits_are_those_of_a_torch_tensor(name):
    tensor = torch.empty(3, dtype=getattr(torch, name))
    assert dtype_bits(name) == 8 * tensor.element_size()
    assert tensor_bytes(3, name) == tensor.untyped_storage().nbytes()


def test_only_the_4_bit_types_are_left_to_ml_dtypes():
    assert set(DTYPE_BITS) - set(IN_TORCH) == {"int4", "float4_e2m1fn"}
    assert dtype_bits("int4") == ml_dtypes.iinfo(ml_dtypes.int4).bits
    assert dtype_bits("float4_e2m1fn") == ml_dtypes.finfo(ml_dtypes.float4_e2m1fn).bits


def test_half_bytes_round_up_once_for_the_tensor():
    assert [tensor_bytes(count, "int4") for count in (0, 1, 2, 3)] == [0, 1, 1, 2]


@pytest.mark.parametrize("dtype", ["float31", "bf16", ""])
def test_an_unknown_dtype_is_refused_and_the_known_ones_are_listed(dtype):
    with pytest.raises(ValueError, match="is not one of float64, float32") as caught:
        tensor_bytes(1, dtype)
    assert repr(dtype) in str(caught.value)
