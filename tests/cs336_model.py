"""The model whose real runs the end-to-end test predicts: a course's transformer, in plain tensor operations.

Nothing here is fused: attention is a softmax over explicit scores; RMSNorm, softmax, cross-entropy and AdamW
are written out. It was written from the description of the recorded runs, and from the order and the sizes of
what they allocated. Letters at the end of a name are its shape: B batch, S sequence, D hidden size, A heads,
H head size, V vocabulary.
"""

import math
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a model, and of the batches that it is run on."""

    num_layers: int = 24
    hidden_size: int = 1024
    num_heads: int = 16
    ff_size: int = 4096
    vocab_size: int = 10_000
    batch_size: int = 4
    seq_len: int = 128


MEDIUM = Shape()


class Linear(nn.Module):
    def __init__(self, in_size: int, out_size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_size, in_size))
        nn.init.normal_(self.weight, std=(2 / (in_size + out_size)) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("...i,oi->...o", x, self.weight)


class Embedding(nn.Module):
    def __init__(self, vocab_size: int, hidden_size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size))
        nn.init.normal_(self.weight)

    def forward(self, ids_BS: Tensor) -> Tensor:
        return self.weight[ids_BS]


class RMSNorm(nn.Module):
    def __init__(self, hidden_size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))

    def forward(self, x: Tensor) -> Tensor:
        dtype, x = x.dtype, x.to(torch.float32)
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        return (self.weight * (x * scale)).to(dtype)


class Rotary(nn.Module):
    def __init__(self, seq_len: int, head_size: int):
        super().__init__()
        frequencies = 10_000.0 ** -(torch.arange(0, head_size, 2) / head_size)
        angles = torch.outer(torch.arange(seq_len), frequencies)
        self.register_buffer("cos_sin", torch.stack((angles.cos(), angles.sin())), persistent=False)

    def forward(self, x_BASH: Tensor) -> Tensor:
        """Turn each pair of neighbours by an angle that grows with the position."""
        first, second = x_BASH.unflatten(-1, (-1, 2)).movedim(-1, 0)
        cos, sin = self.cos_sin[:, : x_BASH.shape[-2]]
        turned_first = cos * first - sin * second
        turned_second = sin * first + cos * second
        return torch.stack((turned_first, turned_second), dim=-1).flatten(-2)


def softmax(x: Tensor) -> Tensor:
    shifted = x - x.max(dim=-1, keepdim=True)[0]
    exponentials = torch.exp(shifted)
    return exponentials / exponentials.sum(dim=-1, keepdim=True)


def attend(q_BASH: Tensor, k_BASH: Tensor, v_BASH: Tensor, mask: Tensor) -> Tensor:
    scores = torch.einsum("...qh,...kh->...qk", q_BASH, k_BASH) / math.sqrt(q_BASH.shape[-1])
    scores = torch.where(mask, scores, float("-inf"))
    weights = softmax(scores)
    return torch.einsum("...qk,...kh->...qh", weights, v_BASH)


class Attention(nn.Module):
    def __init__(self, shape: Shape, rotary: Rotary):
        super().__init__()
        size = shape.hidden_size
        self.query, self.key, self.value, self.output = (Linear(size, size) for _ in range(4))
        self.num_heads, self.rotary = shape.num_heads, rotary

    def forward(self, x_BSD: Tensor) -> Tensor:
        q, k, v = (layer(x_BSD) for layer in (self.query, self.key, self.value))
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in (q, k, v))
        q = self.rotary(q)
        k = self.rotary(k)
        position = torch.arange(x_BSD.shape[1], device=x_BSD.device)
        mask = position[:, None] >= position[None, :]
        y_BSD = attend(q, k, v, mask).transpose(1, 2).flatten(2).contiguous()
        return self.output(y_BSD)


def silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


class FeedForward(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.gate = Linear(shape.hidden_size, shape.ff_size)
        self.down = Linear(shape.ff_size, shape.hidden_size)
        self.up = Linear(shape.hidden_size, shape.ff_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, shape: Shape, rotary: Rotary):
        super().__init__()
        self.attention, self.feed_forward = Attention(shape, rotary), FeedForward(shape)
        self.norm_1, self.norm_2 = RMSNorm(shape.hidden_size), RMSNorm(shape.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        attended = self.attention(self.norm_1(x))
        x = x + attended
        fed = self.feed_forward(self.norm_2(x))
        return x + fed


class LanguageModel(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        rotary = Rotary(shape.seq_len, shape.hidden_size // shape.num_heads)
        self.embedding = Embedding(shape.vocab_size, shape.hidden_size)
        self.blocks = nn.ModuleList(Block(shape, rotary) for _ in range(shape.num_layers))
        self.norm = RMSNorm(shape.hidden_size)
        self.head = Linear(shape.hidden_size, shape.vocab_size)

    def forward(self, ids_BS: Tensor) -> Tensor:
        x = embedded = self.embedding(ids_BS)  # noqa: F841  the embedding stands until the end
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.head(x)


def log_softmax(x: Tensor) -> Tensor:
    largest = x.max(dim=-1, keepdim=True)[0]
    x = x - largest
    return x - torch.log(torch.exp(x).sum(dim=-1, keepdim=True))


def cross_entropy(logits_BSV: Tensor, targets_BS: Tensor) -> Tensor:
    negative_logs = -log_softmax(logits_BSV)
    return torch.mean(negative_logs.gather(-1, targets_BS.unsqueeze(-1)))


class AdamW(torch.optim.Optimizer):
    """AdamW as a formula: every product and sum a tensor of its own, new moments in place of the old ones."""

    def __init__(self, parameters, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        super().__init__(
            parameters, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )

    def step(self) -> None:
        for group in self.param_groups:
            lr, (beta_1, beta_2) = group["lr"], group["betas"]
            for weight in group["params"]:
                grad, state = weight.grad.data, self.state[weight]
                weight.data -= lr * group["weight_decay"] * weight.data
                old_m = state.get("m", torch.zeros_like(grad))
                old_v = state.get("v", torch.zeros_like(grad))
                t = state.get("t", 0) + 1
                m = beta_1 * old_m + (1 - beta_1) * grad
                v = beta_2 * old_v + (1 - beta_2) * torch.square(grad)
                rate = lr * math.sqrt(1 - beta_2**t) / (1 - beta_1**t)
                weight.data -= rate * m / (torch.sqrt(v) + group["eps"])
                state["m"], state["v"], state["t"] = m, v, t


def autocast(is_on: bool):
    return torch.autocast("cuda", dtype=torch.bfloat16) if is_on else nullcontext()


@dataclass(frozen=True, kw_only=True)
class Batches:
    """Random tokens on the card: those of five steps to warm up, and those of the step that is recorded."""

    warm_up: Tensor
    recorded: Tensor

    @classmethod
    def of(cls, shape: Shape) -> "Batches":
        size = (shape.batch_size, shape.seq_len)
        warm_up, recorded = (
            torch.randint(0, shape.vocab_size, s, device="cuda") for s in ((5, *size), size)
        )
        return cls(warm_up=warm_up, recorded=recorded)


def training(shape: Shape, is_autocast: bool):
    """The training program for ``trace_memory``; logits and loss stand until the next step."""

    def build():
        model = LanguageModel(shape).to("cuda")
        optimizer = AdamW(model.parameters())
        inputs, targets = Batches.of(shape), Batches.of(shape)
        kept: list[Tensor] = []

        def step():
            kept.clear()
            optimizer.zero_grad(set_to_none=True)
            with autocast(is_autocast):
                logits = model(inputs.recorded)
                loss = cross_entropy(logits, targets.recorded)
            kept.extend((logits, loss))
            loss.backward()
            optimizer.step()

        return step

    return build


def inference(shape: Shape, is_autocast: bool):
    """The forward alone, in inference mode, for ``trace_memory``."""

    def build():
        model = LanguageModel(shape).to("cuda")
        inputs = Batches.of(shape)

        def step():
            with torch.inference_mode(), autocast(is_autocast):
                model(inputs.recorded)

        return step

    return build
