"""CUDA's rules in the ledger against a second model, written here on meta tensors with the explicit ATen
operations.

No CUDA card is needed: meta tensors have shapes and storages, no values. What CUDA would do is written out:
the kernel of each attention, one-byte dropout masks, the fused RMSNorm, and a cast wherever CUDA's autocast
would make one. What autograd then saves is torch's own business. The oracle uses nothing of memkit's tracer,
which is compared last.
"""

import math
import random
import runpy
from dataclasses import dataclass, field, replace

import pytest
import torch
import torch.nn.functional as F
from lab_server import ROOT
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from memkit.formula.activations import (
    activation_bytes,
    activation_ledger,
    autocast_casts,
    block_ledger,
)
from memkit.setup.models import TINY_GPT2
from memkit.setup.recipes import PURE_BF16
from memkit.setup.strategies import CORE, FULL, NONE
from memkit.setup.training import TrainingSetup

aten = torch.ops.aten


class FusedRMSNorm(torch.autograd.Function):
    """Saves what derivatives.yaml says of ``_fused_rms_norm``: input, weight and the float32 1/rms of each row."""

    @staticmethod
    def forward(ctx, x, weight):
        rstd = x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)
        ctx.save_for_backward(x, weight, rstd)
        return torch.empty_like(x)


@dataclass
class Card:
    """Runs the operations of a setup as a CUDA card would, and collects the storages that autograd saves."""

    setup: TrainingSetup
    parameters: list = field(default_factory=list)
    casts: list = field(default_factory=list)
    on_host: list = field(default_factory=list)
    saved: dict = field(default_factory=dict)

    @property
    def compute(self):
        return getattr(torch, self.setup.precision.compute_dtype)

    def parameter(self, *shape):
        weight = torch.empty(shape, device="meta", dtype=getattr(torch, self.setup.precision.weight_dtype))
        self.parameters.append(weight.requires_grad_())
        return weight

    def low(self, x):
        """Autocast's lower-precision list: linear, matmul, attention."""
        return x.to(self.compute) if self.setup.precision.uses_autocast else x

    def wide(self, x):
        """Autocast's float32 list: softmax, log_softmax, norms, pow, nll_loss."""
        return x.float() if self.setup.precision.uses_autocast else x

    def linear(self, x, num_out, has_bias=False):
        weight, bias = self.parameter(num_out, x.shape[-1]), self.parameter(num_out) if has_bias else None
        low_weight = self.low(weight)
        if low_weight is not weight:
            self.casts.append(low_weight)
        return F.linear(self.low(x), low_weight, None if bias is None else self.low(bias))

    def dropout(self, x):
        return aten.native_dropout(x, self.setup.dropout, True)[0] if self.setup.dropout else x

    def norm(self, x):
        weight = self.parameter(x.shape[-1])
        if self.setup.model.norm == "layernorm":
            return aten.native_layer_norm(self.wide(x), [x.shape[-1]], weight, self.parameter(x.shape[-1]), 1e-5)[0]
        if self.setup.uses_fused_norm:
            return FusedRMSNorm.apply(self.wide(x), weight)
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return weight * wide.to(x.dtype)

    def attention(self, q, k, v, mask):
        setup, groups = self.setup, self.setup.model.num_heads // self.setup.model.num_kv_heads
        is_flash = setup.attention == "flash" and q.dtype != torch.float32 and q.shape[-1] <= 256
        if groups > 1 and not is_flash:
            k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        if is_flash:
            return aten._scaled_dot_product_flash_attention(q, k, v, setup.dropout, True)[0]
        if setup.attention != "stored":
            out = aten._scaled_dot_product_efficient_attention(q, k, v, None, True, setup.dropout, True)
            self.on_host += out[2:]  # seed and offset: attention.cu makes them with no device
            return out[0]
        scores = torch.matmul(q * (1 / math.sqrt(q.shape[-1])), k.transpose(-2, -1)).masked_fill(mask, -math.inf)
        return torch.matmul(self.low(self.dropout(torch.softmax(self.wide(scores), -1))), v)

    def block(self, x, shared):
        model, recomputation = self.setup.model, self.setup.recomputation
        y = self.norm(x)
        sizes = [model.query_size, model.kv_size, model.kv_size]
        if model.fuses_qkv:
            q, k, v = self.linear(y, sum(sizes), model.has_qkv_bias).split(sizes, dim=-1)
        else:
            q, k, v = (self.linear(y, size, model.has_qkv_bias) for size in sizes)
        q, k, v = (t.unflatten(-1, (-1, model.head_dim)).transpose(1, 2) for t in (q, k, v))
        if model.position == "rotary":
            q, k = (t * shared["cos"] + torch.cat([-t, t], -1)[..., : model.head_dim] * shared["sin"] for t in (q, k))
        if recomputation == CORE:
            y = checkpoint(self.attention, q, k, v, shared.get("mask"), use_reentrant=False, preserve_rng_state=False)
        else:
            y = self.attention(q, k, v, shared.get("mask"))
        x = x + self.dropout(self.linear(y.transpose(1, 2).flatten(2), model.hidden_size, model.has_output_bias))
        return x + self.dropout(self.mlp(self.norm(x)))

    def mlp(self, x):
        model = self.setup.model
        if model.mlp == "swiglu":
            gate = self.linear(x, model.intermediate_size)
            y = F.silu(gate) * self.linear(x, model.intermediate_size)
            return self.linear(y, model.hidden_size)
        y = self.linear(x, model.intermediate_size, model.has_mlp_bias)
        return self.linear(F.gelu(y), model.hidden_size, model.has_mlp_bias)

    def shared(self):
        model, length, tables = self.setup.model, self.setup.seq_len, {}
        if model.position == "rotary":
            for name in ("cos", "sin"):
                tables[name] = torch.empty(length, model.head_dim, device="meta", dtype=self.compute)
        if self.setup.attention == "stored":
            tables["mask"] = torch.empty(length, length, device="meta", dtype=torch.bool)
        return tables

    def model(self):
        setup, model = self.setup, self.setup.model
        shape = (setup.micro_batch_size, setup.seq_len)
        ids, targets = (torch.empty(shape, device="meta", dtype=torch.int64) for _ in range(2))
        embedding = self.parameter(model.vocab_size, model.hidden_size)
        x = F.embedding(ids, embedding)
        if model.position == "learned":
            positions = torch.empty(setup.seq_len, device="meta", dtype=torch.int64)
            x = x + F.embedding(positions, self.parameter(model.max_seq_len, model.hidden_size))
        x, tables = self.dropout(x), self.shared()
        for _ in range(model.num_layers):
            if setup.recomputation == FULL:
                x = checkpoint(self.block, x, tables, use_reentrant=False, preserve_rng_state=False)
            else:
                x = self.block(x, tables)
        self.keep(*(tables.values() if setup.recomputation != NONE else ()))  # the checkpoints hold them
        logits = self.linear(self.norm(x), model.vocab_size)
        if setup.upcasts_logits:
            logits = logits.float()
        return F.nll_loss(torch.log_softmax(self.wide(logits), -1).flatten(0, 1), targets.flatten()) / 1

    def keep(self, *tensors):
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self.saved[storage._cdata] = (storage, tensor)

    def run(self, function, *args):
        def pack(tensor):
            self.keep(tensor)
            return tensor

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            return function(*args)

    def bytes_kept(self, *apart) -> tuple[int, int]:
        """Bytes of the saved storages on the card, parameters and casts apart: as asked for, in blocks of 512."""
        apart = (*self.parameters, *self.casts, *self.on_host, *apart)
        apart = {tensor.untyped_storage()._cdata for tensor in apart}
        sizes = [storage.nbytes() for key, (storage, _) in self.saved.items() if key not in apart]
        return sum(sizes), sum(-(-size // 512) * 512 for size in sizes)


def cuda(model, precision=PURE_BF16, batch=2, seq=256, attention="flash", **more) -> TrainingSetup:
    more |= {"model": replace(model, num_layers=2), "precision": precision, "attention": attention}
    return TrainingSetup(micro_batch_size=batch, seq_len=seq, **more)


RANDOM_SETUP = runpy.run_path(str(ROOT / "scripts" / "judge_estimate.py"))["random_setup"]


@pytest.mark.parametrize("number", range(120))
def test_a_model_and_a_block_keep_what_cuda_would_save(number):
    try:
        setup = RANDOM_SETUP(random.Random(f"saved {number}"))
    except ValueError:
        return  # heads that no kernel takes
    card = Card(setup)
    loss = card.run(card.model)
    card.keep(loss, torch.ones_like(loss))  # the gradient that loss.backward() makes before anything else
    ledger = activation_ledger(setup)
    assert (ledger.num_bytes, ledger.held_bytes) == card.bytes_kept()
    assert activation_bytes(setup) == ledger.held_bytes
    setup = replace(setup, recomputation="none")
    assert autocast_casts(setup).num_bytes == sum(cast.untyped_storage().nbytes() for cast in card.casts)
    card = Card(setup)
    tables, shape = card.shared(), (setup.micro_batch_size, setup.seq_len, setup.model.hidden_size)
    x = torch.empty(shape, device="meta", dtype=getattr(torch, setup.precision.weight_dtype)).requires_grad_() * 1
    card.run(card.block, x, tables)
    ledger = block_ledger(setup)
    assert (ledger.num_bytes, ledger.held_bytes) == card.bytes_kept(*tables.values())


def test_the_oracle_can_fail():
    """A card that keeps float32 masks, as an unfused dropout would, is told apart."""

    class Unfused(Card):
        def dropout(self, x):
            return x * torch.empty_like(x, requires_grad=False)

    setup = cuda(TINY_GPT2, dropout=0.1)
    card = Unfused(setup)
    card.keep(card.run(card.model))
    assert card.bytes_kept()[0] > activation_ledger(setup).num_bytes
