"""What LAPACK takes on the CPU, asked by small matrices, and sums inside a backward: against measurements."""

import warnings

import pytest
import torch
from torch import linalg

from memkit.measuring.measure import measure_memory
from memkit.tracing import libraries
from memkit.tracing.trace import trace_memory

NUMBERS = 64
"""Bytes of Python's numbers, which only a measurement sees."""


def spd(w):
    return w @ w.mT + len(w) * torch.eye(w.shape[-1])


PROGRAMS = {
    "eig": lambda w: linalg.eig(w)[1].abs(),
    "eigvals": linalg.eigvals,
    "eigh": lambda w: linalg.eigh(w + w.mT)[1],
    "svd": lambda w: linalg.svd(w, full_matrices=False)[0],
    "svdvals": linalg.svdvals,
    "nuclear norm": lambda w: linalg.matrix_norm(w, "nuc"),
    "qr": lambda w: linalg.qr(w)[0],
    "cholesky": lambda w: linalg.cholesky(spd(w)),
    "solve": lambda w: linalg.solve(w, w[..., :5]),
    "inv": linalg.inv,
    "pinv": linalg.pinv,
    "lstsq": lambda w: linalg.lstsq(w, w[..., :5]).solution,
    "lstsq, gelsd": lambda w: linalg.lstsq(w[..., :50], w[..., :5], driver="gelsd").residuals,
    "det": linalg.det,
    "slogdet": lambda w: linalg.slogdet(w)[1],
    "lu": lambda w: linalg.lu(w)[1],
    "matrix_exp": lambda w: linalg.matrix_exp(w),
    "atan2, whose formula adds": lambda w: torch.atan2(w, 2 * w),
}


def program(function, *shape, learns=True):
    def build():
        w = torch.nn.Parameter(torch.randn(shape))

        def step():
            with torch.set_grad_enabled(learns):
                out = function(w)
            if learns and out.requires_grad:
                (out.abs() if out.is_complex() else out).sum().backward()
                w.grad = None

        return step

    return build


def peaks(build) -> tuple[int, int]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return trace_memory(build, device="cpu").peak_bytes, measure_memory(build, device="cpu").peak_bytes


@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize("shape", [(96, 96), (3, 70, 70)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_linear_algebra_takes_what_torchs_cpu_takes(name, shape, learns):
    traced, measured = peaks(program(PROGRAMS[name], *shape, learns=learns))
    assert abs(traced - measured) <= NUMBERS


@pytest.mark.parametrize("name", ["eig", "svd", "eigh", "qr", "pinv", "matrix_exp"])
@pytest.mark.parametrize("shape", [(290, 290), (5, 170, 160), (700, 3, 3)])
def test_matrices_too_large_or_too_many_are_asked_by_smaller_and_fewer(monkeypatch, name, shape):
    monkeypatch.setattr(libraries, "MAX_FLOPS", 10**5)
    monkeypatch.setattr(libraries, "PART_SIZES", (128, 192))
    monkeypatch.setattr(libraries, "CALLS", {})
    shape = (*shape[:-1], shape[-2]) if name in ("eig", "eigh", "matrix_exp") else shape
    if name == "matrix_exp" and shape[0] == 700:
        pytest.skip("the norm of 3 × 3 random numbers decides")
    traced, measured = peaks(program(PROGRAMS[name], *shape))
    assert abs(traced - measured) <= 0.001 * measured


@pytest.mark.parametrize("function", [linalg.matrix_exp, torch.cumprod])
def test_what_values_decide_is_told_with_the_line(function):
    arguments = () if function is linalg.matrix_exp else (0,)
    with pytest.warns(UserWarning, match=f"{function.__name__}.* is traced as for") as caught:
        trace_memory(program(lambda w: function(w, *arguments), 8, 8), device="cpu")
    assert caught[0].filename == __file__
