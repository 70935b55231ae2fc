"""The drawings of what flows where: dtypes are torch's own under autocast, products are torch's own shapes."""

import runpy
import shutil
from pathlib import Path

import pytest
import torch
from drawn import labels_of, marks_of, overlap

FIGURES = Path(__file__).parents[3] / "figures"


@pytest.fixture(scope="module")
def figures(tmp_path_factory) -> dict:
    """What the scripts of these figures define; they write beside themselves, so copies run."""
    folder = tmp_path_factory.mktemp("figures")
    scripts = [shutil.copy(FIGURES / name, folder) for name in ("03_flows.py", "06_products.py")]
    return {name: value for script in scripts for name, value in runpy.run_path(script).items()}


def test_the_dtypes_of_a_block_are_those_of_a_real_one_under_autocast(figures):
    x, seen = torch.randn(2, 8, 64), []
    norm = torch.nn.LayerNorm(64)
    wide = torch.nn.Linear(64, 256)
    narrow = torch.nn.Linear(256, 64)
    output = torch.nn.Linear(64, 64)
    query_key_value = torch.nn.Linear(64, 192)

    def note(result):
        seen.append(str(result.dtype).removeprefix("torch."))
        return result

    with torch.autocast("cpu", torch.bfloat16):
        q, k, v = note(query_key_value(note(norm(x)))).chunk(3, dim=-1)
        attention = note(
            torch.nn.functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])
        )[:, 0]
        x = note(x + note(output(attention)))
        inner = note(torch.nn.functional.gelu(note(wide(note(norm(x))))))
        note(x + note(narrow(inner)))
    assert [dtype for _, dtype in figures["block_dtypes"]()] == seen
    assert [mark.data["dtype"] for mark in marks_of(figures["autocast"](), "dtype")] == seen


def test_the_products_have_the_shapes_of_a_linear_layer_s_and_sum_what_is_marked(figures):
    sizes = {"M": 5, "K": 3, "N": 2}
    x = torch.randn(sizes["M"], sizes["K"], requires_grad=True)
    w = torch.randn(sizes["N"], sizes["K"], requires_grad=True)
    y = x @ w.T
    dy = torch.randn_like(y)
    y.backward(dy)
    known = {"y": y, "x": x, "Wᵀ": w.T, "dx": x.grad, "dy": dy, "W": w, "dW": w.grad, "dyᵀ": dy.T}
    for _, result, rows, columns, left, right, summed in figures["PRODUCTS"]:
        assert known[result].shape == (sizes[rows], sizes[columns])
        assert known[left].shape[1] == known[right].shape[0] == sizes[summed]
        torch.testing.assert_close(known[left] @ known[right], known[result])
    marked = [mark.data["summed"] for mark in marks_of(figures["products"](), "summed")]
    assert marked == [summed for *_, summed in figures["PRODUCTS"] for _ in range(2)]


@pytest.mark.parametrize("name", ["autocast", "products", "master_weights"])
def test_no_words_touch_others_or_leave_the_picture(figures, name):
    chart = figures[name]()
    labels = labels_of(chart)
    for number, label in enumerate(labels):
        assert label.box[0] >= 0 and label.box[2] <= chart.width and label.box[3] <= chart.height, (
            label
        )
        assert not [other for other in labels[:number] if overlap(label, other)], label
