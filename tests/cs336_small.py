"""A third student's model of the same course, small, and the run whose autocast region never ends.

One ``autocast`` encloses three whole training steps, backward and optimizer too: the weights' casts of the first
forward stay in the cache to the end, and every later step multiplies with them. The softmax takes its exponential
twice, rotary angles lie in the host's memory and are copied up for each use, and the mask is a float32 matrix.
It was written from the repository's own text (github.com/NiuHuangxiaozi/assignment2-systems, commit 9d868b9b14,
MIT), in other words. Shapes as in ``cs336_model.py``.
"""

import math

import torch
from cs336_model import Embedding, FeedForward, Linear, Shape, autocast
from torch import Tensor, nn

SMALL = Shape(num_layers=4, hidden_size=512, num_heads=16, ff_size=1344, batch_size=10, seq_len=200)
MAX_SEQ_LEN = 256


class RMSNorm(nn.Module):
    def __init__(self, hidden_size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size, device="cuda"))

    def forward(self, x: Tensor) -> Tensor:
        dtype, x = x.dtype, x.to(torch.float32)
        root = torch.sqrt(torch.mean(x**2, dim=-1, keepdim=True) + 1e-5)
        normed = x / root * self.weight
        return normed.to(dtype)


class Rotary(nn.Module):
    """Angles in the host's memory."""

    def __init__(self, head_size: int):
        super().__init__()
        frequencies = 10_000.0 ** -(torch.arange(0, head_size, 2, device="cpu") / head_size)
        angles = torch.outer(torch.arange(MAX_SEQ_LEN, device="cpu"), frequencies)
        self.register_buffer("sin", angles.sin(), persistent=False)
        self.register_buffer("cos", angles.cos(), persistent=False)

    def forward(self, x_BASH: Tensor) -> Tensor:
        places = torch.arange(x_BASH.shape[-2], device="cpu")
        sin, cos = (table[places].to("cuda").unsqueeze(-1) for table in (self.sin, self.cos))
        pairs = x_BASH.unflatten(-1, (-1, 2))
        first = cos * pairs[..., :1] - sin * pairs[..., 1:]
        second = sin * pairs[..., :1] + cos * pairs[..., 1:]
        return torch.cat([first, second], dim=-1).flatten(-2)


def softmax(x: Tensor) -> Tensor:
    largest, _ = torch.max(x, dim=-1, keepdim=True)
    return torch.exp(x - largest) / torch.sum(torch.exp(x - largest), dim=-1, keepdim=True)


def attend(q_BASH: Tensor, k_BASH: Tensor, v_BASH: Tensor, mask_SS: Tensor) -> Tensor:
    mask_SS = mask_SS.to("cuda")
    products = torch.einsum("...qh,...kh->...qk", q_BASH, k_BASH)
    scores = products / torch.sqrt(torch.tensor(q_BASH.shape[-1], device="cuda"))
    masked = scores.masked_fill_(~mask_SS.bool(), -math.inf)
    weights = softmax(masked)
    return torch.einsum("...qk,...kh->...qh", weights, v_BASH)


class Attention(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        size = shape.hidden_size
        self.num_heads, self.rotary = shape.num_heads, Rotary(size // shape.num_heads)
        self.query, self.key, self.value, self.output = (Linear(size, size) for _ in range(4))

    def forward(self, x_BSD: Tensor) -> Tensor:
        q = self.query(x_BSD)
        k = self.key(x_BSD)
        v = self.value(x_BSD)
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in (q, k, v))
        q = self.rotary(q)
        k = self.rotary(k)
        seq_len = x_BSD.shape[1]
        mask = torch.tril(torch.ones(seq_len, seq_len, device="cpu"))
        y = attend(q, k, v, mask)
        y = y.transpose(1, 2).flatten(2)
        return self.output(y)


class Block(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.norm_1, self.norm_2 = RMSNorm(shape.hidden_size), RMSNorm(shape.hidden_size)
        self.attention, self.feed_forward = Attention(shape), FeedForward(shape)

    def forward(self, x: Tensor) -> Tensor:
        normed_1 = self.norm_1(x)
        attended = self.attention(normed_1)
        between = attended + x
        normed_2 = self.norm_2(between)
        fed = self.feed_forward(normed_2)
        return fed + between


class LanguageModel(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.embedding = Embedding(shape.vocab_size, shape.hidden_size)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.num_layers))
        self.norm, self.head = RMSNorm(shape.hidden_size), Linear(shape.hidden_size, shape.vocab_size)

    def forward(self, ids_BS: Tensor) -> Tensor:
        x = self.embedding(ids_BS)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.head(x)


def cross_entropy(logits_BV: Tensor, targets_B: Tensor) -> Tensor:
    largest, _ = torch.max(logits_BV, dim=-1, keepdim=True)
    sums = torch.sum(torch.exp(logits_BV - largest), dim=-1, keepdim=True)
    log_softmax = logits_BV - largest - torch.log(sums)
    one_hot = torch.zeros_like(log_softmax)
    one_hot.scatter_(-1, targets_B.unsqueeze(-1), 1)
    return -torch.sum(one_hot * log_softmax) / len(logits_BV)


class Adam(torch.optim.Optimizer):
    """New moments and new weights in place of the old ones; the moments stand from the start."""

    def __init__(self, parameters):
        super().__init__(parameters, {})
        for weight in self.param_groups[0]["params"]:
            self.state[weight] = {"m": torch.zeros_like(weight.data), "v": torch.zeros_like(weight.data)}

    def step(self) -> None:
        for weight in self.param_groups[0]["params"]:
            state = self.state[weight]
            grad = weight.grad.data
            m = 0.9 * state["m"] + 0.1 * grad
            state["m"] = m
            v = 0.999 * state["v"] + 0.001 * grad**2
            state["v"] = v
            weight.data = weight.data - 1e-3 * (m / (torch.sqrt(v) + 1e-8))
            weight.data = weight.data - 0.0 * weight.data


def full(x: Tensor, dim: int) -> Tensor:
    """``x[:]`` along one dimension; the torch that ran took it as an operation, whose backward fills zeros."""
    return torch.ops.aten.slice.Tensor(x, dim, 0, x.shape[dim])


def three_steps(shape: Shape, is_autocast: bool):
    """The whole program for ``trace_memory``, as one step of ours; logits and loss stand until the next."""

    def build():
        with torch.device("cuda"):
            model = LanguageModel(shape)
        optimizer = Adam(model.parameters())
        ids = torch.randint(0, shape.vocab_size, (shape.batch_size, shape.seq_len), device="cpu").to("cuda")
        targets = torch.randint(0, shape.vocab_size, (shape.batch_size,), device="cpu").to("cuda")

        def step():
            with autocast(is_autocast):
                for _ in range(3):
                    optimizer.zero_grad()
                    logits = model(ids)
                    last = full(full(logits, 0).select(1, -1), 1)
                    loss = cross_entropy(last, targets)
                    loss.backward()
                    optimizer.step()

        return step

    return build
