"""The records of ``memkit.formats.records`` against ml_dtypes, torch, numpy and the published specifications."""

from statistics import NormalDist

import ml_dtypes
import numpy as np
import pytest
import torch

from memkit.formats.records import DTYPE_BITS, FORMATS, FloatFormat, get_format

FLOATS = [name for name, fmt in FORMATS.items() if isinstance(fmt, FloatFormat)]
IN_ML_DTYPES = [name for name in FLOATS if hasattr(ml_dtypes, name)]
IN_TORCH = [name for name in FLOATS if hasattr(torch, name)]


@pytest.mark.parametrize("name", IN_ML_DTYPES)
def test_facts_equal_ml_dtypes_finfo(name: str) -> None:
    ours, theirs = FORMATS[name], ml_dtypes.finfo(getattr(ml_dtypes, name))
    for field in ("max", "min", "smallest_normal", "smallest_subnormal", "eps"):
        assert getattr(ours, field) == float(getattr(theirs, field)), field
    assert (ours.bits, ours.exponent_bits, ours.mantissa_bits) == (
        theirs.bits,
        theirs.iexp,
        theirs.nmant,
    )


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_facts_equal_numpy_finfo(name: str) -> None:
    ours, theirs = FORMATS[name], np.finfo(name)
    for field in ("max", "min", "smallest_normal", "smallest_subnormal", "eps", "bits"):
        assert getattr(ours, field) == float(getattr(theirs, field)), field


@pytest.mark.parametrize("name", IN_TORCH)
def test_facts_equal_torch_finfo_but_for_one_wrong_eps(name: str) -> None:
    """torch.finfo(float8_e5m2fnuz).eps is half the distance torch's own conversion shows."""
    ours, theirs = FORMATS[name], torch.finfo(getattr(torch, name))
    for field in ("max", "min", "smallest_normal"):
        assert getattr(ours, field) == getattr(theirs, field), field
    one_up = (
        torch.tensor(1 + ours.eps, dtype=torch.float64).to(getattr(torch, name)).double().item()
    )
    half_up = (
        torch.tensor(1 + ours.eps / 2, dtype=torch.float64).to(getattr(torch, name)).double().item()
    )
    assert one_up == 1 + ours.eps
    # a tie goes to even; one digit has no even
    assert half_up == (2.0 if name == "float8_e8m0fnu" else 1.0)
    assert theirs.eps == (0.125 if name == "float8_e5m2fnuz" else ours.eps)


def test_tf32_has_float32s_exponent_and_float16s_mantissa() -> None:
    """NVIDIA's A100 whitepaper; all other formats are those of ml_dtypes."""
    fmt, wide = FORMATS["tf32"], np.finfo(np.float32)
    assert fmt.max == float(wide.max) - (2**13 - 1) * 2.0**104
    assert (fmt.smallest_normal, fmt.smallest_subnormal) == (2.0**-126, 2.0**-136)


@pytest.mark.parametrize("name", [name for name in IN_ML_DTYPES + ["float16"]])
def test_counts_equal_a_count_of_every_code(name: str) -> None:
    fmt = FORMATS[name]
    storage = np.uint16 if fmt.bits == 16 else np.uint8
    dtype = np.float16 if name == "float16" else getattr(ml_dtypes, name)
    with np.errstate(invalid="ignore"):  # signalling NaNs are among the codes
        values = np.arange(2**fmt.bits, dtype=storage).view(dtype).astype(np.float64)
    assert fmt.num_values == np.unique(values[np.isfinite(values)]).size
    assert fmt.num_nans == np.isnan(values).sum()
    assert fmt.has_infinity == np.isinf(values).any()
    assert fmt.has_subnormals == (values == 0).any()
    assert (fmt.nan_code is None) == (fmt.num_nans == 0)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
def test_whole_numbers_up_to_the_largest_consecutive_one(name: str) -> None:
    limit = 2 ** (FORMATS[name].mantissa_bits + 1)
    numbers = torch.arange(max(0, limit - 4096), limit + 2, dtype=torch.float64)
    survives = numbers.to(getattr(torch, name)).double() == numbers
    assert survives[:-1].all() and not survives[-1]


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_decimal_digits_that_tell_every_value_apart(name: str) -> None:
    """``round_trip_digits`` tell all values apart, one less does not."""
    fmt, dtype = FORMATS[name], np.float16 if name == "float16" else ml_dtypes.bfloat16
    values = np.arange(1, fmt.largest_code, dtype=np.uint16).view(dtype).astype(np.float64)
    printed = {f"{value:.{fmt.round_trip_digits - 1}e}" for value in values}
    assert len(printed) == values.size
    assert len({f"{value:.{fmt.round_trip_digits - 2}e}" for value in values}) < values.size


def test_nf4_is_made_of_normal_quantiles() -> None:
    """Dettmers et al. 2023, appendix E: nine quantiles for the positive half, eight for the negative one."""
    offset = (1 - 1 / 32 + 1 - 1 / 30) / 2
    quantile = NormalDist().inv_cdf
    positive = [quantile(p) for p in np.linspace(offset, 0.5, 9)[:-1]]
    negative = [-quantile(p) for p in np.linspace(offset, 0.5, 8)[:-1]]
    values = np.sort(np.array([*positive, 0.0, *negative])) / positive[0]
    np.testing.assert_allclose(FORMATS["nf4"].table, values, atol=2e-7, rtol=0)


def test_nf4_is_torchaos_table_which_keeps_four_decimals() -> None:
    nf4_tensor = pytest.importorskip("torchao.quantization").NF4Tensor
    weight = torch.linspace(-1, 1, 4096)
    table = nf4_tensor.from_tensor(weight, 64, 16).nf4
    assert torch.tensor(FORMATS["nf4"].table).round(decimals=4).tolist() == table.tolist()
    # what float32 can hold
    assert np.float32(FORMATS["nf4"].table).tolist() == list(FORMATS["nf4"].table)


def test_integers_are_twos_complement() -> None:
    assert list(FORMATS["int8"].table) == np.arange(256, dtype=np.uint8).view(np.int8).tolist()
    assert list(FORMATS["int4"].table) == [
        int(v) for v in np.arange(16, dtype=np.uint8).view(ml_dtypes.int4)
    ]


def test_widths_in_memory_agree_with_memkit_dtypes() -> None:
    shared = DTYPE_BITS.keys() & FORMATS.keys()
    assert shared >= {"float32", "bfloat16", "float8_e4m3fn", "float4_e2m1fn", "int8"}
    assert all(FORMATS[name].storage_bits == DTYPE_BITS[name] for name in shared)
    assert (FORMATS["tf32"].bits, FORMATS["tf32"].storage_bits) == (19, 32)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(
        ValueError, match="format='float8_e4m4' is not one of float64, float32, tf32"
    ):
        get_format("float8_e4m4")
