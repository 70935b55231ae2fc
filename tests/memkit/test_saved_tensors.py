"""Saved storages against what the derivatives of single operations need."""

import pytest
import torch

from memkit.measure import saved_bytes, saved_tensors


def test_a_product_keeps_both_factors_and_an_addition_nothing():
    x, y = (torch.randn(8, 4, requires_grad=True) for _ in range(2))
    assert saved_bytes(lambda: x * y) == 2 * 8 * 4 * 4
    assert saved_tensors(lambda: x + y) == []


def test_a_storage_saved_twice_is_listed_once():
    x = torch.randn(8, 4, requires_grad=True)
    (saved,) = saved_tensors(lambda: x * x)
    assert (saved.nbytes, saved.shape) == (8 * 4 * 4, (8, 4))


def test_views_of_one_storage_are_one():
    x = torch.randn(8, 4, requires_grad=True)
    left, right = x[:, :2], x[:, 2:]
    assert saved_bytes(lambda: left * right) == 8 * 4 * 4


def test_parameters_are_counted_elsewhere():
    linear = torch.nn.Linear(4, 3)
    x = torch.randn(8, 4, requires_grad=True)
    assert [s.shape for s in saved_tensors(lambda: linear(x), linear.parameters())] == [(8, 4)]
    assert {s.shape for s in saved_tensors(lambda: linear(x))} == {(8, 4), (4, 3)}
    assert saved_bytes(lambda: linear(x), linear.parameters()) == x.nbytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_softmax_keeps_its_output_only(dtype):
    x = torch.randn(8, 4, dtype=dtype, requires_grad=True)
    (saved,) = saved_tensors(lambda: torch.softmax(x, -1))
    assert saved.nbytes == x.nbytes


def test_a_custom_function_is_seen():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return 2 * x

    x = torch.randn(3, requires_grad=True)
    assert saved_bytes(lambda: Twice.apply(x)) == 12
