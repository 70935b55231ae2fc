"""The plain torch twins of Liger's benchmark, written again in our own words, for ``trace_script``.

Each of Liger's kernels is measured beside a plain module that does the same, by ``max_memory_allocated`` of ten
iterations; the median is published. A program here makes what the benchmark's ``bench_memory_...`` makes (often both
modules, although one of them runs), and returns what is done once: forward, backward, or both. Gradients stay, so from
the second iteration on a new gradient is added to one that is there.

Source: github.com/linkedin/Liger-Kernel at ead96b6, benchmark/scripts and test/utils.py in the version of each row.
Nothing is copied.
"""

import json
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from stepscope import replay_trace, trace_script

CARDS = {
    "NVIDIA A100-SXM4-80GB": (8, 0),
    "NVIDIA GeForce RTX 3090": (8, 6),
    "NVIDIA GeForce RTX 4090": (8, 9),
    "NVIDIA H100 80GB HBM3": (9, 0),
    "NVIDIA H100 PCIe": (9, 0),
    "NVIDIA B200": (10, 0),
}
STEPS = 3
"""The third iteration is like the tenth: gradients are there."""
REFUSED = {
    "embedding": "12 GB of an earlier benchmark of the same process are in its bytes",
    "fused_moe": "how many tokens an expert gets was drawn",
    "multi_token_attention": "cuDNN's workspaces are not modelled",
    "sparse_multi_token_attention": "cuDNN's workspaces are not modelled",
}
"""Kernels whose plain twin is not tried."""
SHORTER = "the tensors of the T=4096 that it names take more than was measured"


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor that a gradient is kept for."""
    return torch.empty(shape, dtype=dtype, device="cuda").requires_grad_()


def linear(inputs: int, outputs: int, dtype: torch.dtype, has_bias: bool = False) -> nn.Linear:
    """A product on the card."""
    return nn.Linear(inputs, outputs, bias=has_bias, dtype=dtype, device="cuda")


def ones(parameters: int) -> nn.Parameter:
    """A norm's weight."""
    return nn.Parameter(torch.empty(parameters, device="cuda"))


def step_of(forward: Callable, mode: str, gradient: Callable = torch.randn_like) -> Callable:
    """What is measured: ``forward``, ``backward`` of one forward, or both; ``gradient`` makes the gradient of y."""
    # measured after "full" in the same process: cuBLAS' workspace of a backward stands
    if mode == "forward":
        (leaf(8, 8) @ leaf(8, 8)).sum().backward()
        return forward
    if mode == "backward":
        y = forward()
        dy = gradient(y)
        return lambda: y.backward(dy, retain_graph=True)

    def full():
        y = forward()
        y.backward(gradient(y), retain_graph=True)

    return full


def scalar_step(forward: Callable) -> Callable:
    """A loss is made and sent back."""
    return lambda: forward().backward()


def kept(x: torch.Tensor) -> Callable:
    """A gradient of the form of ``x``, made once."""
    dy = torch.randn_like(x)
    return lambda y: dy


def mlp(c: dict, mode: str, dtype: torch.dtype, provider: str) -> Callable:
    """LlamaMLP, whole or in DeepSpeed's tiles."""
    hidden, inner = c["hidden_size"], c["intermediate_size"]
    x = leaf(c.get("bsz", c.get("B")), c["T"], hidden, dtype=dtype)
    gate, up, down = (
        linear(*size, dtype) for size in ((hidden, inner), (hidden, inner), (inner, hidden))
    )
    turned = F.silu if c["hidden_act"] == "silu" else lambda y: F.gelu(y, approximate="tanh")

    def run(part):
        return down(turned(gate(part)) * up(part))

    if provider == "deepspeed_tiled":
        return step_of(lambda: Tiled.apply(run, x, c["num_shards"]), mode)
    return step_of(lambda: run(x), mode)


class Tiled(torch.autograd.Function):
    """DeepSpeed's tiles: forward without a graph part by part; the backward runs each part again."""

    @staticmethod
    def forward(ctx, run, x, num_shards):
        ctx.run, ctx.num_shards = run, num_shards
        ctx.save_for_backward(x)
        parts = list(torch.chunk(x, num_shards, dim=-2))
        with torch.no_grad():
            outs = [run(part) for part in parts]
        return torch.cat(outs, dim=-2)

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        x, shape = x.detach().requires_grad_(), x.shape
        x, dy = x.view(-1, shape[-1]), dy.view(-1, shape[-1])
        dx, start = torch.zeros_like(x), 0
        for part in torch.chunk(x, ctx.num_shards, dim=0):
            part = part.detach().requires_grad_()
            part.grad = dx.narrow(0, start, len(part))
            with torch.enable_grad():
                y = ctx.run(part)
            torch.autograd.backward(y, dy.narrow(0, start, len(part)))
            start += len(part)
        return None, dx.view(shape), None


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Llama's, in float32 in between."""
    kind = x.dtype
    x = x.to(torch.float32)
    variance = x.pow(2).mean(-1, keepdim=True)
    x = x * torch.rsqrt(variance + 1e-6)
    return weight * x.to(kind)


def norm(c: dict, mode: str, dtype: torch.dtype, kernel: str) -> Callable:
    """RMSNorm, LayerNorm, GroupNorm: both modules are made, and the gradient of y once."""
    if kernel == "group_norm":
        x = leaf(c["M"], c["C"], c["H"], dtype=dtype)
        layer, other = (
            nn.GroupNorm(c["C"] // c["channels_per_group"], c["C"], device="cuda") for _ in range(2)
        )
    elif kernel == "layer_norm":
        x = leaf(c["M"], c["N"], dtype=dtype)
        layer, other = (nn.LayerNorm(c["N"], device="cuda") for _ in range(2))
    else:
        x, weight, other = leaf(c["M"], c["H"], dtype=dtype), ones(c["H"]), ones(c["H"])

        def layer(x):
            return rms_norm(x, weight)

    step = step_of(lambda: layer(x), "full", kept(x))
    step.other = other
    return step


def added_norm(c: dict, mode: str, dtype: torch.dtype, kernel: str) -> Callable:
    """A residual added in float32 before RMSNorm; of three modules, with four weights, one runs."""
    x, r = (leaf(c["M"], c["H"], dtype=dtype) for _ in range(2))
    dy, ds = torch.randn_like(x), torch.randn_like(r)
    weight, *others = (ones(c["H"]) for _ in range(4))

    def forward():
        h = x.to(torch.float32) + r.to(torch.float32)
        return rms_norm(h, weight), h

    def full():
        y, h = forward()
        torch.autograd.backward((y, h), (dy, ds))

    full.others = others
    return full


def half_turned(x: torch.Tensor) -> torch.Tensor:
    """The two halves changed, the first negated."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    return torch.cat((-second, first), dim=-1)


def rotary(c: dict, mode: str, dtype: torch.dtype, kernel: str) -> Callable:
    """Rotary positions of Llama (real) and of Llama 4 (complex)."""
    length, heads, kv_heads = c.get("seq_len") or c["T"], c["num_q_heads"], c["num_kv_heads"]
    width = (c.get("hidden_size") or c["H"]) // heads
    frequencies = torch.empty(width // 2, device="cuda")
    places = torch.arange(length, device="cuda")
    # cuBLAS takes its workspace
    torch.matmul(frequencies[None, :, None], places[None, None, :].float())
    q, k = (leaf(1, length, num, width, dtype=dtype) for num in (heads, kv_heads))
    if kernel == "rope":
        q, k = q.transpose(1, 2), k.transpose(1, 2)
        cos, sin = (torch.empty(1, length, width, dtype=dtype, device="cuda") for _ in range(2))

        def turned():
            a, b = cos.unsqueeze(1), sin.unsqueeze(1)
            q_out = (q * a) + (half_turned(q) * b)
            return q_out, (k * a) + (half_turned(k) * b)

    else:
        angles = torch.empty(1, length, width // 2, dtype=torch.complex64, device="cuda")

        def turned():
            wide_q, wide_k = (
                torch.view_as_complex(each.float().reshape(*each.shape[:-1], -1, 2))
                for each in (q, k)
            )
            q_out = torch.view_as_real(wide_q * angles[:, :, None, :]).flatten(3)
            k_out = torch.view_as_real(wide_k * angles[:, :, None, :]).flatten(3)
            return q_out.type_as(q), k_out.type_as(k)

    dq, dk = torch.randn_like(q), torch.randn_like(k)

    def full():
        torch.autograd.grad(turned(), (q, k), (dq, dk), allow_unused=True, retain_graph=True)

    full.kept = frequencies, places
    return full


def divergence(c: dict, mode: str, dtype: torch.dtype, kernel: str) -> Callable:
    """Kullback-Leibler, Jensen-Shannon and total variation of two distributions over the vocabulary."""
    rows, vocab = (c["B"] * c["T"], c["V"]) if "B" in c else (c["BT"], c["vocab_size"])
    is_log = kernel in ("kl_div", "jsd")
    x = leaf(rows, vocab)
    p = x.log_softmax(-1) if is_log else x.softmax(-1)
    q = torch.randn(rows, vocab, device="cuda")
    q = q.log_softmax(-1) if kernel == "jsd" else q.softmax(-1)

    def forward():
        if kernel == "kl_div":
            return F.kl_div(p, q, reduction="batchmean")
        if kernel == "tvd":
            distance = torch.abs(p - q) / 2.0
            return torch.sum(distance) / p.size(0)
        return jensen(q, p) if "BT" in c else jensen_at_once(p, q)

    return lambda: forward().backward(retain_graph=True)


def jensen_at_once(log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    """Jensen-Shannon as Liger 0.3.1 wrote it: both terms share the mean's logarithm."""
    mean = 0.5 * (torch.exp(log_p) + torch.exp(log_q))
    log_mean = torch.log(mean)
    first = F.kl_div(log_mean, log_p, reduction="batchmean", log_target=True)
    return 0.5 * (first + F.kl_div(log_mean, log_q, reduction="batchmean", log_target=True))


def jensen(log_p: torch.Tensor, log_q: torch.Tensor, reduction: str = "none") -> torch.Tensor:
    """Jensen-Shannon as Liger writes it since: the mean by ``lerp``, its logarithm twice."""
    mean = torch.lerp(torch.exp(log_q), torch.exp(log_p), 0.5)
    if reduction == "batchmean":
        first = 0.5 * F.kl_div(torch.log(mean), log_p, reduction=reduction, log_target=True)
        return first + 0.5 * F.kl_div(torch.log(mean), log_q, reduction=reduction, log_target=True)
    first = 0.5 * F.kl_div(torch.log(mean), log_p, reduction="none", log_target=True).sum(dim=-1)
    loss = first + 0.5 * F.kl_div(torch.log(mean), log_q, reduction="none", log_target=True).sum(
        dim=-1
    )
    return (loss / log_q.shape[0]).sum()


def cross_entropy(c: dict, mode: str, dtype: torch.dtype, kernel: str) -> Callable:
    """Of logits that are given, or behind a head; then there are two heads, and one runs."""
    if kernel == "cross_entropy":
        x = leaf(c["B"] * c["T"], c["V"])
        targets = torch.empty(c["B"] * c["T"], dtype=torch.long, device="cuda")
        return scalar_step(lambda: F.cross_entropy(x, targets))
    head, other = (linear(c["H"], c["V"], dtype) for _ in range(2))
    x = leaf(c["BT"], c["H"], dtype=dtype)
    targets = torch.zeros(c["BT"], dtype=torch.long, device="cuda")
    step = scalar_step(lambda: F.cross_entropy(head(x), targets))
    step.other = other
    return step


def linear_divergence(c: dict, mode: str, dtype: torch.dtype, kernel: str) -> Callable:
    """A student's and a teacher's head, and Jensen-Shannon of both."""
    student, teacher = (linear(c["H"], c["V"], dtype) for _ in range(2))
    x = leaf(c["BT"], c["H"], dtype=dtype)
    given = torch.empty(c["BT"], c["H"], dtype=dtype, device="cuda")

    def forward():
        first, second = student(x), teacher(given)
        p, q = torch.log_softmax(first / 1.0, dim=-1), torch.log_softmax(second / 1.0, dim=-1)
        q, p = q.to(torch.float), p.to(torch.float)
        return jensen(p, q, "batchmean").to(dtype)

    return scalar_step(forward)


def preferred(c: dict, mode: str, dtype: torch.dtype, kernel: str) -> Callable:
    """ORPO, CPO and SimPO: a head, and the log-probabilities of the chosen and the rejected answers."""
    head, other = (linear(c["H"], c["V"], dtype) for _ in range(2))
    x = leaf(c["B"], c["T"], c["H"], dtype=dtype)
    targets = torch.zeros(c["B"], c["T"], dtype=torch.long, device="cuda")
    chosen = c["B"] // 2

    def forward():
        outs = x @ head.weight.t()
        logits = outs.float()
        loss = F.cross_entropy(
            logits[:chosen].view(-1, logits.shape[-1]), targets[:chosen].view(-1)
        )
        mask = targets != -100
        labels = torch.where(targets == -100, 0, targets)
        picked = torch.gather(logits.log_softmax(-1), dim=2, index=labels.unsqueeze(2)).squeeze(2)
        odds = (picked * mask).sum(-1) / mask.sum(-1)
        return loss - F.logsigmoid(0.1 * (odds[:chosen] - odds[chosen:])).mean()

    step = scalar_step(forward)
    step.other = other
    return step


def pointwise(c: dict, mode: str, dtype: torch.dtype, kernel: str) -> Callable:
    """Softmax and squared ReLU of one row (the shape is the number of columns alone); Megatron's SwiGLU."""
    if kernel == "megatron_swiglu":
        x = leaf(c["S"], c["B"], 2 * c["ffn_local"], dtype=torch.bfloat16)

        def full():
            x.grad = None
            y = chunked_swiglu(x)
            y.sum().backward()

        return full
    x = leaf(c["N"], dtype=dtype)
    forward = (
        (lambda: torch.softmax(x, -1)) if kernel == "softmax" else lambda: torch.square(F.relu(x))
    )
    return step_of(forward, "full", torch.ones_like)


def chunked_swiglu(y: torch.Tensor) -> torch.Tensor:
    """SwiGLU of one tensor that has both halves."""
    first, second = torch.chunk(y, 2, -1)
    return F.silu(first) * second


def megatron_norm(c: dict, mode: str, dtype: torch.dtype, kernel: str) -> Callable:
    """torch's own RMSNorm; Megatron's wrapper returns the same class."""
    layer = nn.RMSNorm(c["H"], eps=1e-6, device="cuda", dtype=torch.bfloat16)
    x = leaf(c["S"], c["B"], c["H"], dtype=torch.bfloat16)

    def full():
        y = layer(x)
        y.sum().backward()

    return full


def sparsemax(c: dict, mode: str, dtype: torch.dtype, kernel: str) -> Callable:
    """Sorts, sums up and cuts off."""
    x = leaf(c["B"] * c["T"], c["V"], dtype=dtype)

    def forward():
        ordered, _ = torch.sort(x, dim=-1, descending=True)
        sums = torch.cumsum(ordered, dim=-1)
        places = torch.arange(1, x.shape[-1] + 1, device="cuda", dtype=dtype).view(1, -1)
        bound = 1 + places * ordered
        support = bound > sums
        k = support.sum(dim=-1, keepdim=True).clamp(min=1)
        total = (ordered * support).sum(dim=-1, keepdim=True)
        threshold = (total - 1) / k
        return torch.clamp(x - threshold, min=0)

    return step_of(forward, "full", kept(x))


def neighborhood(c: dict, mode: str, dtype: torch.dtype, kernel: str) -> Callable:
    """Attention to neighbours by a mask of the whole square; two modules are made, and one runs."""
    width, heads, length, batch = c["hidden_size"], c["num_heads"], c["seq_len"], c["batch_size"]
    q, k, v, out, *other = (linear(width, width, dtype, True) for _ in range(8))
    x = leaf(batch, length, width, dtype=dtype)

    def split(y):
        return y.view(batch, length, heads, width // heads).transpose(1, 2)

    def forward():
        query, key, value = q(x), k(x), v(x)
        query, key, value = split(query), split(key), split(value)
        scores = torch.matmul(query, key.transpose(-2, -1)) * 0.125
        mask = torch.zeros(length, length, device="cuda", dtype=torch.bool)
        scores = scores.masked_fill(~mask, float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        y = torch.matmul(weights, value)
        y = y.transpose(1, 2).contiguous().view(batch, length, width)
        return out(y)

    step = step_of(forward, "full", kept(x))
    step.other = other
    return step


PROGRAMS = {
    "swiglu": mlp,
    "geglu": mlp,
    "tiled_swiglu": mlp,
    "tiled_geglu": mlp,
    "rms_norm": norm,
    "layer_norm": norm,
    "group_norm": norm,
    "fused_add_rms_norm": added_norm,
    "rope": rotary,
    "llama4_rope": rotary,
    "kl_div": divergence,
    "jsd": divergence,
    "tvd": divergence,
    "cross_entropy": cross_entropy,
    "fused_linear_cross_entropy": cross_entropy,
    "fused_linear_jsd": linear_divergence,
    "fused_linear_orpo_loss": preferred,
    "fused_linear_cpo_loss": preferred,
    "fused_linear_simpo_loss": preferred,
    "softmax": pointwise,
    "relu_squared": pointwise,
    "megatron_swiglu": pointwise,
    "megatron_rms_norm": megatron_norm,
    "sparsemax": sparsemax,
    "fused_neighborhood_attention": neighborhood,
}


def peak_bytes(row: dict[str, str]) -> int:
    """``max_memory_allocated`` of a row's program."""
    config, kernel = json.loads(row["extra_benchmark_config_str"]), row["kernel_name"]
    config[row["x_name"]] = int(float(row["x_value"]))
    dtype = getattr(torch, config.get("dtype", "torch.float32").removeprefix("torch."))
    which = row["kernel_provider"] if "tiled" in kernel else kernel

    def build():
        return PROGRAMS[kernel](config, row["kernel_operation_mode"], dtype, which)

    replay = replay_trace(
        trace_script(build, steps=STEPS), compute_capability=CARDS[row["gpu_name"]]
    )
    return replay.timeline.for_step(STEPS).peak_bytes
