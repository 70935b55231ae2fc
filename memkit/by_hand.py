"""What lessons 00 to 06 write in their own cells, in plain torch, as other cells and exercises import it.

Each is the whole mechanism in a screen of code. The rest of the package does the same for more cases: ``trace_memory``
for ``Meter``, ``Transformer`` for ``GPT`` and torchao's ``Float8Linear`` for ``Fp8Product``. A test holds each of them
to the cell that writes it.

    >>> from torch._subclasses.fake_tensor import FakeTensorMode
    >>> with FakeTensorMode(), Meter() as meter:
    ...     two_steps(GPT(**GPT2_LARGE), batch=8, seq=1024)
    >>> round(meter.peak / 2**30, 2)
    35.86
"""

import weakref
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

GPT2_SMALL = {"h": 768, "L": 12, "heads": 12}
GPT2_LARGE = {"h": 1280, "L": 36, "heads": 20}
"""Hidden size, blocks and attention heads, as ``GPT`` takes them."""


class Meter(TorchDispatchMode):
    """Bytes in use, after every operation that PyTorch runs."""

    def __init__(self):
        super().__init__()
        self.alive, self.now, self.peak, self.curve = {}, 0, 0, []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        results = op(*args, **(kwargs or {}))
        for tensor in filter(torch.is_tensor, tree_leaves(results)):
            self.take(tensor.untyped_storage())  # the memory behind the tensor
        return results

    def take(self, storage):
        if storage._cdata not in self.alive:  # else a view: no new memory
            self.alive[storage._cdata] = storage.nbytes()
            self.count(storage.nbytes())
            weakref.finalize(storage, self.free, storage._cdata)

    def free(self, address):  # called when nobody holds it any more
        self.count(-self.alive.pop(address))

    def count(self, num_bytes):
        self.now += num_bytes
        self.peak = max(self.peak, self.now)
        self.curve.append(self.now)


class Block(nn.Module):
    """Attention and MLP, each with its norm before it and its input added after it."""

    def __init__(self, h, heads):
        super().__init__()
        self.norm_1, self.norm_2, self.heads = nn.LayerNorm(h), nn.LayerNorm(h), heads
        self.qkv, self.out = nn.Linear(h, 3 * h), nn.Linear(h, h)
        self.up, self.down = nn.Linear(h, 4 * h), nn.Linear(4 * h, h)

    def forward(self, x):
        qkv = self.qkv(self.norm_1(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.movedim(-3, 0).transpose(2, 3)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class GPT(nn.Module):
    """GPT-2: two tables, L blocks, a norm and a head; called with ids and targets, it returns the loss."""

    def __init__(self, h, L, heads, v=50257, positions=1024, tied=True):
        super().__init__()
        self.words, self.places = nn.Embedding(v, h), nn.Embedding(positions, h)
        self.blocks = nn.Sequential(*(Block(h, heads) for _ in range(L)))
        self.norm, self.head = nn.LayerNorm(h), nn.Linear(h, v, bias=False)
        for table in (self.words, self.places):
            nn.init.normal_(table.weight, std=0.02)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, ids, targets):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def two_steps(model, batch, seq, around=nullcontext, micro_batches=1, optimizer=None):
    """Two training steps with fused AdamW, each of ``micro_batches`` times ``batch`` sequences of ``seq`` tokens."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), fused=True)
    ids = torch.zeros(batch, seq, dtype=torch.long, device=next(model.parameters()).device)
    for _ in range(2):
        for _ in range(micro_batches):
            with around():
                loss = model(ids, ids)
            (loss / micro_batches).backward()
            del loss
        optimizer.step()
        optimizer.zero_grad()


def cast(t, dtype, largest):
    """``t`` times a factor that brings its largest value to ``largest``, in ``dtype``, and the factor."""
    factor = largest / t.abs().max().float()
    return (t.float() * factor).clamp(-largest, largest).to(dtype), factor


class Fp8Product(torch.autograd.Function):
    """y = x Wᵀ with both operands of all three products in FP8; it keeps them as bytes."""

    @staticmethod
    def forward(ctx, x, W):
        (x8, a), (W8, b) = cast(x, torch.float8_e4m3fn, 448), cast(W, torch.float8_e4m3fn, 448)
        ctx.save_for_backward(x8, W8)  # one byte a value
        ctx.factors, ctx.dtype = (a, b), x.dtype
        return ((x8.float() @ W8.float().t()) / (a * b)).to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        (x8, W8), (a, b) = ctx.saved_tensors, ctx.factors
        dy8, c = cast(dy, torch.float8_e5m2, 57344)
        dx = dy8.float() @ W8.float() / (c * b)
        dW = dy8.flatten(0, -2).float().t() @ x8.flatten(0, -2).float() / (c * a)
        return dx.to(ctx.dtype), dW


class Fp8Linear(nn.Linear):
    """A linear layer without bias whose three products run in FP8."""

    def forward(self, x):
        return Fp8Product.apply(x, self.weight)
