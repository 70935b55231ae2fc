"""Another student's model of the same course, 3.4 B parameters, for a check that nothing was fitted to the first.

It multiplies from the left (so every layer's output lies column by column), takes RMSNorm's root from a norm,
turns pairs in place, masks with ``masked_fill`` and picks the targets by two indices. It was written from the
order and the sizes of a recorded step. Shapes as in ``cs336_model.py``.
"""

import math

import torch
from cs336_model import Shape
from torch import Tensor, nn

LARGE = Shape(num_layers=32, hidden_size=2560, num_heads=32, ff_size=10_240)


class Linear(nn.Module):
    def __init__(self, in_size: int, out_size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_size, in_size))

    def forward(self, x_BSI: Tensor) -> Tensor:
        columns = x_BSI.flatten(0, -2).T.unsqueeze(0)
        return torch.bmm(self.weight.unsqueeze(0), columns).squeeze(0).T.unflatten(0, x_BSI.shape[:-1])


class RMSNorm(nn.Module):
    def __init__(self, hidden_size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden_size))

    def forward(self, x: Tensor) -> Tensor:
        root = torch.sqrt(x.norm(dim=-1, keepdim=True) ** 2 / x.shape[-1] + 1e-5)
        return torch.einsum("...d,d->...d", x / root, self.weight)


class Rotary(nn.Module):
    def __init__(self, seq_len: int, head_size: int):
        super().__init__()
        self.register_buffer("cos_sin", torch.empty(seq_len, head_size // 2, 2), persistent=False)

    def forward(self, x_BASH: Tensor, position_BS: Tensor) -> Tensor:
        cos, sin = (self.cos_sin[..., i][position_BS].unsqueeze(1) for i in (0, 1))
        first, second = x_BASH[..., ::2], x_BASH[..., 1::2]
        out = torch.empty_like(x_BASH)
        out[..., ::2] = first * cos - second * sin
        out[..., 1::2] = first * sin + second * cos
        return out


def softmax(x: Tensor) -> Tensor:
    largest = x.max(dim=-1, keepdim=True)[0]
    exponentials = torch.exp(x - largest)
    return exponentials / exponentials.sum(dim=-1, keepdim=True)


def attend(q_BASH: Tensor, k_BASH: Tensor, v_BASH: Tensor, mask: Tensor) -> Tensor:
    scores = torch.einsum("...qh,...kh->...qk", q_BASH, k_BASH) / math.sqrt(q_BASH.shape[-1])
    scores = scores.masked_fill(~mask.expand(scores.shape), float("-inf"))
    return torch.einsum("...qk,...kh->...qh", softmax(scores), v_BASH)


class Attention(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        size = shape.hidden_size
        self.query, self.key, self.value, self.output = (Linear(size, size) for _ in range(4))
        self.num_heads, self.rotary = shape.num_heads, Rotary(shape.seq_len, size // shape.num_heads)

    def forward(self, x_BSD: Tensor) -> Tensor:
        q, k, v = self.query(x_BSD), self.key(x_BSD), self.value(x_BSD)
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in (q, k, v))
        batch_size, seq_len, _ = x_BSD.shape
        position_BS = torch.arange(seq_len, device=x_BSD.device).expand(batch_size, -1)
        q = self.rotary(q, position_BS)
        k = self.rotary(k, position_BS)
        mask = torch.tril(torch.ones(seq_len, seq_len, device=x_BSD.device)) == 0
        mask = ~mask
        y_BSD = attend(q, k, v, mask).transpose(1, 2).flatten(2)
        return self.output(y_BSD)


class FeedForward(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.gate = Linear(shape.hidden_size, shape.ff_size)
        self.down = Linear(shape.ff_size, shape.hidden_size)
        self.up = Linear(shape.hidden_size, shape.ff_size)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(x)
        return self.down(gate * torch.sigmoid(gate) * self.up(x))


class Block(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.norm_1, self.attention = RMSNorm(shape.hidden_size), Attention(shape)
        self.norm_2, self.feed_forward = RMSNorm(shape.hidden_size), FeedForward(shape)

    def forward(self, x: Tensor) -> Tensor:
        h = self.attention(self.norm_1(x))
        x = x + h
        h = self.norm_2(x)
        h = self.feed_forward(h)
        return x + h


class LanguageModel(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(shape.vocab_size, shape.hidden_size))
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.num_layers))
        self.norm, self.head = RMSNorm(shape.hidden_size), Linear(shape.hidden_size, shape.vocab_size)

    def forward(self, ids_BS: Tensor) -> Tensor:
        x = self.embedding[ids_BS]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def cross_entropy(logits_BSV: Tensor, targets_BS: Tensor) -> Tensor:
    logits = logits_BSV.flatten(0, 1)
    shifted = logits - logits.max(dim=-1, keepdim=True)[0]
    sums = torch.exp(shifted).sum(dim=-1)
    rows = torch.arange(len(logits), device="cpu")
    return (torch.log(sums) - shifted[rows, targets_BS.flatten()]).mean()


class AdamW(torch.optim.Optimizer):
    """AdamW in place, with the root of the second moment as its one temporary."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self) -> None:
        for weight in self.param_groups[0]["params"]:
            state = self.state[weight]
            if not state:
                state["m"], state["v"] = torch.zeros_like(weight), torch.zeros_like(weight)
            state["m"].mul_(0.9).add_(weight.grad, alpha=0.1)
            state["v"].mul_(0.999).addcmul_(weight.grad, weight.grad, value=0.001)
            denominator = state["v"].sqrt() + 1e-8
            weight.addcdiv_(state["m"], denominator, value=-1e-3).mul_(0.99)


def first_step(shape: Shape):
    """The first training step of a process, for ``trace_memory``; the targets are the inputs."""

    def build():
        model = LanguageModel(shape).to("cuda")
        optimizer = AdamW(model.parameters())
        ids = torch.randint(0, shape.vocab_size, (shape.batch_size, shape.seq_len), device="cuda")
        kept: list[Tensor] = []

        def step():
            logits = model(ids)
            loss = cross_entropy(logits, ids)
            kept.extend((logits, loss))
            loss.backward()
            optimizer.step()

        return step

    return build
