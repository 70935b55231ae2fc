"""How many bits one value of a dtype takes, by the name torch (or ml_dtypes) gives it.

A table and one question. What those bits mean is the matter of chapter 02.
"""

from memkit.units import bytes_of

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
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise ValueError(f"{name}={dtype!r} is not one of {', '.join(DTYPE_BITS)}")
    return DTYPE_BITS[dtype]


def tensor_bytes(num_values: int, dtype: str) -> int:
    """Bytes of a tensor of ``num_values`` values of ``dtype``, before any allocator rounds it.

    >>> tensor_bytes(1024, "bfloat16")
    2048
    """
    return bytes_of(num_values, dtype_bits(dtype))
