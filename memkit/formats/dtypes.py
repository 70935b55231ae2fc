"""Bits per value of a dtype, under torch's name (or ml_dtypes'): formula, trace and planner count bytes by it."""

from memkit.units import as_one_of, bytes_of

DTYPE_BITS = {
    "float64": 64, "float32": 32, "float16": 16, "bfloat16": 16,
    "float8_e4m3fn": 8, "float8_e5m2": 8, "float8_e8m0fnu": 8, "float4_e2m1fn": 4,
    "int64": 64, "int32": 32, "int16": 16, "int8": 8, "uint8": 8, "int4": 4, "bool": 8,
}
"""Bits per value. A bool takes a whole byte in torch."""


def dtype_bits(dtype: str, name: str = "dtype") -> int:
    """Bits per value of ``dtype``; ``name`` is what the caller calls it, for the error.

    Raises: ValueError: the name is not in ``DTYPE_BITS``.
    """
    return DTYPE_BITS[as_one_of(name, dtype, DTYPE_BITS)]


def tensor_bytes(num_values: int, dtype: str) -> int:
    """Bytes of a tensor of ``num_values`` values of ``dtype``, before any allocator rounds it.

    >>> tensor_bytes(1024, "bfloat16")
    2048
    """
    return bytes_of(num_values, dtype_bits(dtype))
