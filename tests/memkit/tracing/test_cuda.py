"""CUDA's rules on meta tensors, against torch's own tables and against figures published by others."""

import functools
import re
import warnings
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from training_loop import training

from memkit.tracing import cuda as cuda_rules
from memkit.tracing.cuda import pretend_cuda
from memkit.tracing.trace import trace_memory

HEADER = Path(torch.__file__).parent / "include/ATen/autocast_mode.h"
HALF = torch.bfloat16


def listed(macro: str) -> set[str]:
    """Operations that a list of ATen/autocast_mode.h names, without overloads."""
    body = re.search(rf"#define {macro}\(_\)(.*?)\n\n", HEADER.read_text(), re.DOTALL).group(1)
    return set(re.findall(r"_\((\w+)", body)) - {"ADD_NS"} | set(
        re.findall(r"ADD_NS\((\w+)\)", body)
    )


@pytest.mark.parametrize(
    "ours, macros",
    [
        ("LOWER_PRECISION", ["AT_FORALL_LOWER_PRECISION_FP"]),
        ("FLOAT32", ["AT_FORALL_FP32"]),
        (
            "FLOAT32_OUTPUT",
            ["AT_FORALL_FP32_SET_OPT_DTYPE", "AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE"],
        ),
        ("PROMOTE", ["AT_FORALL_PROMOTE"]),
    ],
)
def test_the_lists_are_torchs_own(ours, macros):
    names = getattr(cuda_rules, ours).split()
    assert len(names) == len(set(names))
    assert set(names) == set().union(*(listed(macro) for macro in macros))


x, w = (4, 8), (8, 8)
AUTOCAST_CASES = {
    "linear": (lambda a, b: F.linear(a, b), HALF),
    "@": (lambda a, b: a @ b, HALF),
    "Tensor.mm": (lambda a, b: a.mm(b), HALF),
    "einsum": (lambda a, b: torch.einsum("ij,jk->ik", a, b), HALF),
    "baddbmm": (lambda a, b: torch.baddbmm(a[None], a[None], b[None]), HALF),
    "conv": (lambda a, b: F.conv1d(a[None], b[:, :4, None]), HALF),
    "softmax": (lambda a, b: F.softmax(a.to(HALF), -1), torch.float32),
    "Tensor.softmax": (lambda a, b: a.to(HALF).softmax(-1), torch.float32),
    "softmax with dtype": (lambda a, b: F.softmax(a.to(HALF), -1, dtype=HALF), HALF),
    "softmax with dtype by place": (lambda a, b: torch.softmax(a.to(HALF), -1, HALF), HALF),
    "log_softmax": (lambda a, b: torch.log_softmax(a.to(HALF), -1), torch.float32),
    "layer_norm": (lambda a, b: F.layer_norm(a.to(HALF), (8,)), torch.float32),
    "rms_norm": (lambda a, b: F.rms_norm(a.to(HALF), (8,)), torch.float32),
    "group_norm": (lambda a, b: F.group_norm(a.to(HALF), 2), torch.float32),
    "sum": (lambda a, b: a.to(HALF).sum(), torch.float32),
    "**": (lambda a, b: a.to(HALF) ** 2, torch.float32),
    "Tensor.exp": (lambda a, b: a.to(HALF).exp(), torch.float32),
    "norm": (lambda a, b: a.to(HALF).norm(), torch.float32),
    "cross_entropy": (
        lambda a, b: F.cross_entropy(a.to(HALF), torch.zeros(4, dtype=torch.long)),
        torch.float32,
    ),
    "mse_loss": (lambda a, b: F.mse_loss(a.to(HALF), a.to(HALF)), torch.float32),
    "gelu": (lambda a, b: F.gelu(a.to(HALF)), HALF),
    "mean": (lambda a, b: a.to(HALF).mean(), HALF),
    "add": (lambda a, b: a + a.to(HALF), torch.float32),
    "addcmul": (lambda a, b: torch.addcmul(a.to(HALF), a, a), torch.float32),
    "cat": (lambda a, b: torch.cat([a.to(HALF), a.to(HALF)]), HALF),
    "float64": (lambda a, b: a.double() @ b.double(), torch.float64),
}


@pytest.mark.parametrize("name", AUTOCAST_CASES)
def test_autocast_gives_the_dtype_that_cuda_gives(name):
    call, dtype = AUTOCAST_CASES[name]
    with pretend_cuda(), torch.autocast("cuda", HALF):
        assert call(torch.randn(x, device="cuda"), torch.randn(w, device="cuda")).dtype is dtype
    with pretend_cuda():
        assert call(torch.randn(x), torch.randn(w)).dtype is not None  # nothing is cast outside


def saved_bytes(call, *inputs) -> int:
    """Bytes of the storages that autograd keeps, the inputs left out."""
    storages = {}
    own = {tensor.untyped_storage()._cdata for tensor in inputs}

    def pack(tensor):
        storages[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        call(*inputs)
    return sum(size for key, size in storages.items() if key not in own)


def on_card(*shape, dtype=HALF):
    return torch.empty(*shape, dtype=dtype, device="cuda", requires_grad=True)


def test_what_each_operation_saves_on_cuda():
    with pretend_cuda():
        rows = on_card(4, 8)
        assert saved_bytes(lambda t: F.dropout(t, 0.1), rows) == 32  # one byte a value
        # twice 4 bytes a row: mean and 1/std, float32
        assert saved_bytes(lambda t: F.layer_norm(t, (8,)), rows) == 2 * 4 * 4
        assert saved_bytes(lambda t: F.rms_norm(t, (8,)), rows) == 4 * 4  # 1/rms, float32
        # the weight is saved too
        assert saved_bytes(lambda t: F.rms_norm(t, (8,), on_card(8)), rows) == 4 * 4 + 2 * 8
        assert saved_bytes(lambda t: F.gelu(t), rows) == 0
        q = on_card(2, 4, 64, 32)
        flash = 2 * 4 * 64 * 32 * 2 + 2 * 4 * 64 * 4  # the output, and the log-sum-exp in float32
        # 16 + 8: the random state
        assert saved_bytes(lambda t: F.scaled_dot_product_attention(t, t, t), q) == flash + 16 + 8


@pytest.mark.parametrize("function", [F.softmax, F.log_softmax])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_softmax_that_widens_float16_is_one_kernel(function, dtype):
    """ATen/native/SoftMax.cpp: half in and float out is fused on CUDA; any other dtype is cast first."""
    with pretend_cuda():
        x = on_card(4, 8, dtype=dtype)
        out = function(x, -1, dtype=torch.float32)
        assert out.dtype is torch.float32
        behind = out.grad_fn.next_functions[0][0].name()
        assert (behind == "ToCopyBackward0") == (dtype is not torch.float16)


def attention_name(
    dtype=HALF, head_dim=64, backends=None, length=64, kv_heads=4, has_mask=False, **choices
) -> str:
    with pretend_cuda(), sdpa_kernel(backends) if backends else nullcontext():
        q = on_card(2, 4, 64, head_dim, dtype=dtype)
        k = on_card(2, kv_heads, length, head_dim, dtype=dtype)
        mask = torch.ones(64, 64, dtype=torch.bool, device="cuda").tril() if has_mask else None
        names, waiting = set(), [F.scaled_dot_product_attention(q, k, k, mask, **choices).grad_fn]
        while waiting:
            node = waiting.pop()
            names.add(node.name())
            waiting.extend(n for n, _ in node.next_functions if n is not None)
    return next(n for n in (FLASH, EFFICIENT, MATH) if any(n in name for name in names))


FLASH, EFFICIENT, MATH = "FlashAttention", "EfficientAttention", "Softmax"
NO_FLASH, SINGLE = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH], torch.float32


@pytest.mark.parametrize(
    "kernel, choices",
    [
        (FLASH, {}),
        (FLASH, {"is_causal": True}),
        (FLASH, {"head_dim": 36}),  # padded to 40
        (FLASH, {"head_dim": 256}),
        (EFFICIENT, {"head_dim": 264}),
        (EFFICIENT, {"is_causal": True, "length": 32}),
        (EFFICIENT, {"has_mask": True}),
        (EFFICIENT, {"backends": [SDPBackend.EFFICIENT_ATTENTION]}),
        (EFFICIENT, {"head_dim": 40, "backends": NO_FLASH}),
        (MATH, {"head_dim": 36, "backends": NO_FLASH}),
        (MATH, {"backends": [SDPBackend.MATH]}),
        (EFFICIENT, {"dtype": SINGLE}),
        (EFFICIENT, {"dtype": SINGLE, "head_dim": 36}),
        (MATH, {"dtype": SINGLE, "head_dim": 38}),
        (MATH, {"dtype": SINGLE, "head_dim": 6}),
        (MATH, {"dtype": torch.float64}),
        (FLASH, {"kv_heads": 2, "enable_gqa": True}),
        (MATH, {"dtype": SINGLE, "kv_heads": 2, "enable_gqa": True}),
    ],
)
def test_attention_is_run_by_the_kernel_that_cuda_would_choose(kernel, choices):
    """Bounds with a case on each side: heads of 256 at most (``check_head_dim_size_flash``), and 16 bytes at a time,
    which are 8 halves or 4 floats (``check_head_dim_size_mem_efficient``, ``minimum_gemm_alignment`` from sm80 on).

    Source: ATen/native/transformers/cuda/sdp_utils.cpp of torch 2.13.
    """
    assert attention_name(**choices) == kernel


def test_flash_attention_alone_does_not_take_float32():
    with pytest.raises(RuntimeError, match="No available kernel"):
        attention_name(dtype=SINGLE, backends=[SDPBackend.FLASH_ATTENTION])


def test_a_weight_is_cast_once_and_the_cast_goes_with_the_region():
    def build():
        layers = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(8)))

        def step():
            for rows in (2, 3, 4):  # of one shape, a trace may follow the first alone
                with torch.autocast("cuda", HALF), torch.no_grad():
                    layers(layers(torch.randn(rows, 512)))

        return step

    events = trace_memory(build, steps=1).events
    assert sum(event.num_bytes == 2 * 512 * 512 for event in events) == 3 * 8
    assert sum(event.num_bytes == -2 * 512 * 512 for event in events) == 3 * 8


def stack_of_linears(
    uses_autocast: bool, keeps_gradients: bool = False, implementation: str = "fused"
):
    def build():
        model = nn.Sequential(*(nn.Linear(512, 512, bias=False, device="cuda") for _ in range(8)))
        optimizer = torch.optim.AdamW(model.parameters(), **{implementation: True})

        def step():
            with torch.autocast("cuda", HALF, enabled=uses_autocast):
                loss = model(torch.randn(2, 512, device="cuda")).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=not keeps_gradients)

        return step

    return build


@pytest.mark.parametrize(
    "uses_autocast, keeps_gradients, end_of_forward, peak",
    [(False, False, 12.02, 16.00), (True, False, 13.76, 16.25), (True, True, 17.76, 18.26)],
    ids=["fp32", "autocast", "autocast, gradients kept"],
)
def test_bytes_per_parameter_as_published(uses_autocast, keeps_gradients, end_of_forward, peak):
    """8 linear layers of 512 × 512, a batch of 2: figures measured by others with live-storage tracking."""
    timeline = trace_memory(stack_of_linears(uses_autocast, keeps_gradients), steps=2)
    count = 8 * 512 * 512
    assert round(timeline.at("forward", step=2).total_bytes / count, 2) == pytest.approx(
        end_of_forward, abs=0.011
    )
    highest = max(
        timeline.at(f"{phase} peak", step=2).total_bytes for phase in ("forward", "backward")
    )
    assert round(highest / count, 2) == pytest.approx(peak, abs=0.011)
    step_counts = 8 * 512  # a fused optimizer keeps them on the card, one block each
    assert timeline.at("optimizer peak").optimizer_states == 8 * count + step_counts
    assert timeline.at("optimizer peak").temporary == 0  # fused


def test_foreach_is_the_default_on_cuda_and_not_on_the_cpu():
    def build(device):
        table = nn.Embedding(512, 512, device=device)
        return training(table, lambda: table.weight.sum())

    for device, expected in (("cuda", True), ("cpu", False)):
        events = trace_memory(lambda device=device: build(device), device=device).events
        assert any("foreach" in event.op for event in events) is expected


def test_a_scaled_step_updates_the_weights():
    def build():
        model = nn.Linear(64, 64, device="cuda")
        optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cuda")

        def step():
            with torch.autocast("cuda", torch.float16):
                loss = model(torch.randn(4, 64, device="cuda")).sum()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()

        return step

    timeline = trace_memory(build)
    # biases rounded up to 512
    assert timeline.at("zero_grad").optimizer_states == 2 * 4 * (64 * 64 + 2 * 64)
    # clipping works on lists on CUDA
    assert any("_foreach_norm" in event.op for event in timeline.events)


@pytest.mark.parametrize(
    "make, states",
    [
        (functools.partial(torch.optim.SGD, lr=0.1), 0),
        (functools.partial(torch.optim.SGD, momentum=0.9), 1),
        (torch.optim.Adagrad, 1),
    ],
)
def test_fused_steps_run_and_allocate_only_their_states(make, states):
    def build():
        table = nn.Embedding(32, 32, device="cuda")
        return training(
            table, lambda: (table.weight * 2).sum(), functools.partial(make, fused=True)
        )

    second = trace_memory(build).at("optimizer peak", 2)
    assert second.temporary == 0 and second.weights == 4096
    assert states * 4096 <= second.optimizer_states <= states * 4096 + 512  # and a step count


def test_a_cuda_build_without_a_driver_traces_as_a_cpu_build_does(monkeypatch):
    # What PyPI's PyTorch 2.13.0 for Linux does on a machine without an NVIDIA driver, at each optimizer's step.
    def refused():
        raise RuntimeError(
            "CUDA error: CUDA driver version is insufficient for CUDA runtime version"
        )

    def build():
        model = torch.nn.Linear(64, 64, device="cuda")
        return training(model, lambda: model(torch.ones(4, 64, device="cuda")).sum())

    peak = trace_memory(build).peak
    monkeypatch.setattr(torch._C, "_accelerator_getAccelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch._C, "_accelerator_getDeviceIndex", refused)
    assert trace_memory(build).peak == peak


def test_what_would_ask_the_driver_is_traced_in_every_build():
    """``device_of`` sets a number in the driver, and an LSTM's weights are laid side by side by cuDNN."""

    def of_its_card():
        x = torch.ones(256, device="cuda")
        with torch.cuda.device_of(x):
            return x + 1

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "PyTorch was compiled without cuDNN"
        peak = trace_memory(lambda: of_its_card).peak_bytes
        lstm = trace_memory(
            lambda: functools.partial(len, nn.LSTM(8, 8, device="cuda")._flat_weights)
        )
    assert peak == 2 * 1024
    assert lstm.peak_bytes == 2 * 4 * 32 * 8 + 2 * 512  # two matrices of 32 x 8, two vectors of 32


def test_a_weight_made_of_data_is_a_leaf_and_counted():
    def build():
        weight = torch.tensor([[0.5] * 512] * 512, device="cuda", requires_grad=True)
        other = torch.as_tensor([1.0] * 512, device="cuda")
        optimizer = torch.optim.SGD([weight], lr=0.1)

        def step():
            (weight @ other).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    assert trace_memory(build).at("backward").gradients == 4 * 512 * 512


def test_attention_takes_its_arguments_by_name():
    def build(by_name):
        q, k, v = (
            torch.randn(2, 4, 64, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            for _ in "qkv"
        )

        def step():
            names = {"query": q, "key": k, "value": v, "is_causal": True}
            attend = F.scaled_dot_product_attention
            (attend(**names) if by_name else attend(q, k, v, is_causal=True)).sum().backward()

        return step

    assert (
        trace_memory(lambda: build(True)).peak_bytes
        == trace_memory(lambda: build(False)).peak_bytes
    )
