"""The program of fms-acceleration's benchmark, written again in our own words, for ``trace_script``.

A Llama of Hugging Face under its Trainer: bf16 weights, packed batches of 4,096 tokens, reentrant checkpoints,
flash-attention 2, gradients clipped, torch's AdamW. What a row may choose: LoRA and its 4-bit base, autocast
(``bf16: True``), fused kernels for RMSNorm, rotary positions and cross entropy, fused LoRA layers, Liger's loss.

Lifetimes decide the peak, so each class says what it keeps. A fused kernel is an ``autograd.Function`` without values:
it makes the tensors that the Triton kernel is handed, and returns what it writes in place.

Sources: github.com/foundation-model-stack/fms-acceleration at 876e2ed (scripts/benchmarks, plugins/
fused-ops-and-kernels), transformers 4.45.2 and 4.48.1 (modeling_llama.py, modeling_granite.py, loss_utils.py),
peft 0.13.2 (tuners/lora/layer.py, bnb.py), bitsandbytes 0.43.3. Nothing is copied from them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from memkit.models import ModelConfig
from stepscope.experts import num_experts_of

Build = Callable[[], Callable[[], object]]
SEQ_LEN = 4096
TARGETS = ("q", "k", "v", "o")


@dataclass(frozen=True, kw_only=True)
class Program:
    """What of a row decides which tensors are made."""

    model: ModelConfig
    batch: int
    has_adapters: bool = False
    rank: int = 16
    base: str = "bfloat16"
    """``nf4``, ``gptq``: the products of the blocks are held in 4 bits."""
    has_groups: bool = True
    """GPTQ: every 128 inputs of an output share a scale and a zero point; otherwise all of them do."""
    has_float_norms: bool = False
    """peft's own preparation for 4-bit training leaves the norms in float32."""
    is_autocast: bool = False
    fuses_norm: bool = False
    fuses_rotary: bool = False
    fuses_adapters: bool = False
    loss: str = "plain"
    """``plain``, ``fused`` (gradient written into the logits), ``liger`` (in chunks, logits never whole)."""
    rebinds_logits: bool = False
    """transformers 4.45 gives the float32 logits the name of the 16-bit ones, 4.48 holds both."""
    scales_hidden: bool = False
    """Granite multiplies embeddings and branches and divides logits."""
    repeats_keys: bool = False
    """Mistral in transformers 4.45 repeats keys and values for every query head."""
    num_ranks: int = 1
    """More than one: FSDP1, see ``build``."""

    @property
    def is_in_4_bits(self) -> bool:
        """Whether the products of the blocks are."""
        return self.base != "bfloat16"

    @property
    def adapter_dtype(self) -> torch.dtype:
        """FSDP's mixed precision computes with adapters in 16 bits; everywhere else they are float32."""
        return torch.bfloat16 if self.is_autocast and self.num_ranks > 1 else torch.float32

    @property
    def shard_dtype(self) -> torch.dtype:
        """Accelerate copies the trained shards to float32 where ``bf16: True`` (accelerate#2674); adapters are so."""
        return torch.float32 if self.is_autocast or self.has_adapters else torch.bfloat16

    @property
    def num_gradient_shards(self) -> int:
        """Adapters with fused kernels are left out of FSDP: each rank has all of them, and all their gradients."""
        return 1 if self.fuses_adapters else self.num_ranks


class FastNorm(torch.autograd.Function):
    """Keeps its input and one number a row; the backward writes into the gradient it is given."""

    @staticmethod
    def forward(ctx, x, weight):
        y = torch.empty_like(x)
        inverse = torch.empty(x.numel() // x.shape[-1], dtype=torch.float32, device=x.device)
        ctx.save_for_backward(x, weight, inverse)
        return y

    @staticmethod
    def backward(ctx, dy):
        return dy, None


class FastRotary(torch.autograd.Function):
    """Turns in place, forward and backward."""

    @staticmethod
    def forward(ctx, x):
        return x.view(x.shape)

    @staticmethod
    def backward(ctx, dy):
        return dy.reshape(dy.shape)


class FastCrossEntropy(torch.autograd.Function):
    """One loss and one log-sum a row; the backward writes into the logits."""

    @staticmethod
    def forward(ctx, logits, labels):
        rows, vocab = logits.shape
        losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
        chunks = -(-vocab // 65536)
        sums = torch.empty(rows * chunks, dtype=torch.float32, device=logits.device)
        if chunks > 1:
            sums = torch.logsumexp(sums.view(rows, chunks), 1)
        ctx.save_for_backward(logits, sums, labels)
        return losses

    @staticmethod
    def backward(ctx, dlosses):
        return ctx.saved_tensors[0], None


class LigerLoss(torch.autograd.Function):
    """The head and the loss chunk by chunk; gradients of input and weight are made in the forward."""

    @staticmethod
    def forward(ctx, x, weight, labels):
        rows, width = x.shape
        chunks = -(-weight.shape[0] // width)
        size = 1 << (-(-rows // chunks) - 1).bit_length()
        weight_gradient = torch.zeros_like(weight) if weight.requires_grad else None
        x_gradient = torch.zeros_like(x)
        losses = torch.zeros(rows, dtype=torch.float32, device=x.device)
        for start in range(0, rows, size):
            part = x[start : start + size]
            logits = part @ weight.t()
            logits = logits.float()
            logits = logits.to(x.dtype)
            scaled = logits * 1.0
            x_gradient[start : start + size] = scaled @ weight
            if weight_gradient is not None:
                torch.addmm(weight_gradient, logits.t(), part, out=weight_gradient)
        ctx.save_for_backward(x_gradient, weight_gradient)
        return losses.sum()

    @staticmethod
    def backward(ctx, _):
        return *ctx.saved_tensors, None


def unpacked(codes: "FourBits") -> torch.Tensor:
    """A 4-bit weight in 16 bits; its scales are unpacked first and live as long as the call."""
    if not codes.is_gptq:
        scales = torch.empty(codes.num_scales, dtype=torch.float32, device=codes.codes.device)
        scales += 0.0
    return torch.empty(codes.shape, dtype=torch.bfloat16, device=codes.codes.device)


class FourBitProduct(torch.autograd.Function):
    """bitsandbytes' product: keeps the codes, and unpacks them again in the backward."""

    @staticmethod
    def forward(ctx, x, codes):
        ctx.codes = codes
        return F.linear(x, unpacked(codes), None if codes.bias is None else codes.bias.to(x.dtype))

    @staticmethod
    def backward(ctx, dy):
        return torch.matmul(dy, unpacked(ctx.codes)), None


class FourBits(nn.Module):
    """A weight in NF4 with double quantization, or in GPTQ's groups, which have a scale and a zero point."""

    def __init__(self, inputs: int, outputs: int, has_bias: bool, program: Program):
        super().__init__()
        count, kind = inputs * outputs, torch.float32 if program.has_float_norms else torch.bfloat16
        self.shape = (outputs, inputs)
        self.num_scales = -(-count // 64)
        self.is_gptq = program.base == "gptq"
        held = {"codes": (count // 2, torch.uint8)}
        if self.is_gptq:
            groups = count // 128 if program.has_groups else outputs
            held |= {
                "scales": (groups, torch.float16),
                "zeros": (groups // 2, torch.uint8),
                "groups": (inputs, torch.int32),
            }
        else:
            held |= {
                "scales": (self.num_scales, torch.uint8),
                "offset": (1, torch.float32),
                "scales_of_scales": (-(-self.num_scales // 256), torch.float32),
                "code": (16, torch.float32),
            }
        for name, (size, dtype) in held.items():
            self.register_buffer(name, torch.empty(size, dtype=dtype, device="cuda"))
        self.bias = (
            nn.Parameter(torch.empty(outputs, dtype=kind, device="cuda")) if has_bias else None
        )

    def forward(self, x):
        kind = x.dtype
        if self.bias is not None and self.bias.dtype != kind:
            self.bias.data = self.bias.data.to(kind)
        y = FourBitProduct.apply(x.to(torch.bfloat16), self)
        return y.to(kind)


class Adapted(nn.Module):
    """LoRA beside a product, as peft writes it: the input is copied to float32 unless it is that already."""

    def __init__(self, base: nn.Module, inputs: int, outputs: int, program: Program):
        super().__init__()
        self.base, self.is_four_bits, kind = base, program.is_in_4_bits, program.adapter_dtype
        self.a = nn.Linear(inputs, program.rank, bias=False, device="cuda", dtype=kind)
        self.b = nn.Linear(program.rank, outputs, bias=False, device="cuda", dtype=kind)

    def forward(self, x):
        y = self.base(x)
        kind = y.dtype
        if self.is_four_bits:
            y = y.clone()
            if not torch.is_autocast_enabled("cuda"):
                x = x.to(self.a.weight.dtype)
            added = self.b(self.a(F.dropout(x, 0.1)))
            added = added.to(kind) if not torch.is_autocast_enabled("cuda") else added
            added = added * 1.0
            return y + added
        x = x.to(self.a.weight.dtype)
        y = y + self.b(self.a(F.dropout(x, 0.1))) * 1.0
        return y.to(kind)


class FusedAdapted(torch.autograd.Function):
    """Unsloth's fused LoRA products on one input: ``weights`` gives codes, A and B of each, one after another."""

    @staticmethod
    def forward(ctx, x, layers, *weights):
        flat, outs, dropped = x.view(-1, x.shape[-1]), [], []
        for layer, (a, b) in zip(layers, pairs(weights), strict=True):
            out = torch.matmul(flat, unpacked(layer.base).t())
            small = F.dropout(flat, 0.1)
            dropped.append(small)
            out += (small @ a.t().to(x.dtype)) @ (1.0 * b.t().to(x.dtype))
            if layer.base.bias is not None:
                out += layer.base.bias
            outs.append(out.view(*x.shape[:-1], -1))
        ctx.layers = layers
        ctx.save_for_backward(x, *weights, *dropped)
        return tuple(outs)

    @staticmethod
    def backward(ctx, *gradients):
        x, *saved = ctx.saved_tensors
        num = len(ctx.layers)
        weights, dropped = saved[: 2 * num], saved[2 * num :]
        kind, flat, made = x.dtype, x.reshape(-1, x.shape[-1]), []
        gradients = [each.reshape(-1, each.shape[-1]) for each in gradients]
        for small, dy, (a, b) in zip(dropped, gradients, pairs(weights), strict=True):
            a, b = a.t().to(kind), b.t().to(kind)
            da = small.t() @ (dy @ b.t())
            db = (a.t() @ small.t()) @ dy
            da *= 1.0
            db *= 1.0
            made += [da.t().to(weights[0].dtype), db.t().to(weights[0].dtype)]
        dx = None
        for layer, small, dy, (a, b) in zip(
            ctx.layers, dropped, gradients, pairs(weights), strict=True
        ):
            whole = unpacked(layer.base)
            if dx is None:
                # Three products at once write into the input's memory; one alone makes a tensor.
                dx = torch.matmul(dy, whole, out=flat) if num > 1 else dy @ whole
            else:
                dx += dy @ whole
            del whole
            dx += (small != 0) * (dy @ b.to(kind) @ (1.0 * a.to(kind)))
        return dx.view(x.shape), None, *made


def pairs(weights):
    """A and B of each layer."""
    return list(zip(weights[::2], weights[1::2], strict=True))


class Norm(nn.Module):
    """Llama's RMSNorm: float32 in between, the 16-bit product with the weight at the end."""

    def __init__(self, program: Program):
        super().__init__()
        kind = torch.float32 if program.has_float_norms else torch.bfloat16
        self.weight = nn.Parameter(
            torch.empty(program.model.hidden_size, dtype=kind, device="cuda")
        )
        self.is_fused = program.fuses_norm

    def forward(self, x):
        if self.is_fused:
            return FastNorm.apply(x, self.weight)
        kind = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + 1e-5)
        return self.weight * x.to(kind)


class Experts(nn.Module):
    """Mixtral's experts, one after another, each on its tokens; the router's choice has no values here.

    Every expert is given the same number of tokens. What all of them keep hangs on the sum alone, which is fixed.
    """

    def __init__(self, program: Program):
        super().__init__()
        model, self.model = program.model, program.model
        h, inner = model.hidden_size, model.expert_size

        def product(inputs, outputs, is_packed=program.is_in_4_bits):
            if is_packed:
                return FourBits(inputs, outputs, False, program)
            return nn.Linear(inputs, outputs, bias=False, device="cuda", dtype=torch.bfloat16)

        # GPTQ leaves it in 16 bits
        self.router = product(h, model.num_experts, program.base == "nf4")
        self.each = nn.ModuleList(
            nn.ModuleList([product(h, inner), product(h, inner), product(inner, h)])
            for _ in range(model.num_experts)
        )

    def forward(self, hidden):
        model, shape = self.model, hidden.shape
        hidden = hidden.view(-1, shape[-1])
        scores = F.softmax(self.router(hidden), dim=1, dtype=torch.float)
        scores, chosen = torch.topk(scores, model.experts_per_token, dim=-1)
        scores /= scores.sum(dim=-1, keepdim=True)
        scores = scores.to(hidden.dtype)
        total = torch.zeros_like(hidden)
        mask = F.one_hot(chosen, num_classes=model.num_experts).permute(2, 1, 0)
        num_tokens = len(hidden) * model.experts_per_token // model.num_experts
        for gate, up, down in self.each:
            place, token = (
                torch.zeros(num_tokens, dtype=torch.int64, device="cuda") for _ in range(2)
            )
            given = hidden[None, token].reshape(-1, shape[-1])
            made = down(F.silu(gate(given)) * up(given)) * scores[token, place, None]
            total.index_add_(0, token, made.to(hidden.dtype))
        del mask
        return total.reshape(shape)


class Block(nn.Module):
    """A decoder layer."""

    def __init__(self, program: Program):
        super().__init__()
        model, self.program = program.model, program
        h = model.hidden_size
        heads = model.query_size
        kv = model.kv_size
        inner = model.intermediate_size
        mlp = {"gate": (h, inner), "up": (h, inner), "down": (inner, h)}
        sizes = {
            "q": (h, heads),
            "k": (h, kv),
            "v": (h, kv),
            "o": (heads, h),
            **({} if num_experts_of(model) else mlp),
        }
        has_biases = dict.fromkeys("qkv", model.has_qkv_bias) | {"o": model.has_output_bias}
        has_biases |= dict.fromkeys(("gate", "up", "down"), model.has_mlp_bias)
        self.products = nn.ModuleDict()
        for name, (inputs, outputs) in sizes.items():
            has_bias = has_biases[name]
            if program.is_in_4_bits:
                base = FourBits(inputs, outputs, has_bias, program)
            else:
                base = nn.Linear(
                    inputs, outputs, bias=has_bias, device="cuda", dtype=torch.bfloat16
                )
            if program.has_adapters and name in TARGETS:
                base = Adapted(base, inputs, outputs, program)
            self.products[name] = base
        self.before, self.between = Norm(program), Norm(program)
        self.experts = Experts(program) if num_experts_of(model) else None

    def forward(self, x, cos, sin):
        program, model, products = self.program, self.program.model, self.products
        residual = x
        n = self.before(x)
        y = self.attention(n, cos, sin, products, model, program)
        del n
        y = y * 0.22 if program.scales_hidden else y
        x = residual + y
        residual = x
        n = self.between(x)
        y = (
            self.experts(n)
            if self.experts
            else products["down"](F.silu(products["gate"](n)) * products["up"](n))
        )
        del n
        y = y * 0.22 if program.scales_hidden else y
        return residual + y

    def attention(self, n, cos, sin, products, model, program):
        shape = (*n.shape[:2], -1, model.head_dim)
        if program.fuses_adapters:
            three = [products[name] for name in "qkv"]
            q, k, v = FusedAdapted.apply(
                n, three, *(each for one in three for each in (one.a.weight, one.b.weight))
            )
        else:
            q, k, v = products["q"](n), products["k"](n), products["v"](n)
        q, k, v = (each.view(shape).transpose(1, 2) for each in (q, k, v))
        if program.fuses_rotary:
            q, k = (FastRotary.apply(each.transpose(1, 2)).transpose(1, 2) for each in (q, k))
        else:
            q, k = rotated(q, k, cos, sin)
        if program.repeats_keys:
            k, v = (repeated(each, model.num_heads // model.num_kv_heads) for each in (k, v))
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        if q.dtype == torch.float32:
            q, k, v = (each.to(torch.bfloat16) for each in (q, k, v))
        y = torch.ops.aten._flash_attention_forward(
            q, k, v, None, None, q.shape[1], k.shape[1], 0.0, True, False
        )[0]
        y = y.reshape(*n.shape[:2], -1).contiguous()
        o = products["o"]
        return (
            FusedAdapted.apply(y, [o], o.a.weight, o.b.weight)[0]
            if program.fuses_adapters
            else o(y)
        )


def rotated(q, k, cos, sin):
    """Rotary positions in transformers' five operations."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    q_turned = (q * cos) + (half_turned(q) * sin)
    k_turned = (k * cos) + (half_turned(k) * sin)
    return q_turned, k_turned


def repeated(x, times: int):
    """Every key head as often as query heads share it, in memory of its own."""
    batch, heads, length, width = x.shape
    return (
        x[:, :, None]
        .expand(batch, heads, times, length, width)
        .reshape(batch, heads * times, length, width)
    )


def half_turned(x):
    """The two halves changed, the first negated."""
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-second, first), dim=-1)


class Llama(nn.Module):
    """Embedding, blocks under reentrant checkpoints, norm, head and loss."""

    def __init__(self, program: Program):
        super().__init__()
        self.program, model = program, program.model
        self.embedding = nn.Embedding(
            model.vocab_size, model.hidden_size, device="cuda", dtype=torch.bfloat16
        )
        # of FSDP's blocks one at a time is whole
        one, is_shared = Block(program), program.num_ranks > 1
        self.blocks = nn.ModuleList(
            [one, *(one if is_shared else Block(program) for _ in range(model.num_layers - 1))]
        )
        codes = [buffer for name, buffer in one.named_buffers() if name.endswith(".codes")]
        self.kept = []
        self.shapes = {tensor: tensor.shape for tensor in (*one.parameters(), *codes)}
        if is_shared:
            self.release()
        self.norm = Norm(program)
        self.head = nn.Linear(
            model.hidden_size, model.vocab_size, bias=False, device="cuda", dtype=torch.bfloat16
        )
        if model.ties_embeddings:
            self.head.weight = self.embedding.weight
        self.register_buffer("frequencies", torch.empty(model.head_dim // 2, device="cuda"))
        if program.has_adapters:
            for name, parameter in self.named_parameters():
                parameter.requires_grad_(".a." in name or ".b." in name)

    def forward(self, ids, labels):
        program = self.program
        x = self.embedding(ids)
        if program.has_adapters:
            x.requires_grad_(True)  # a checkpoint whose input wants no gradient would train nothing
        x = x * 12.0 if program.scales_hidden else x
        cos, sin = (
            torch.empty(1, ids.shape[1], program.model.head_dim, dtype=x.dtype, device=x.device)
            for _ in range(2)
        )
        for block in self.blocks:
            x = checkpoint(
                self.on_ranks if program.num_ranks > 1 else block, x, cos, sin, use_reentrant=True
            )
        x = self.norm(x)
        if program.loss == "liger":
            x = x[..., :-1, :].contiguous()
            return LigerLoss.apply(
                x.view(-1, x.shape[-1]), self.head.weight, labels[..., 1:].contiguous().view(-1)
            )
        logits = self.head(x)
        logits = logits / 16.0 if program.scales_hidden else logits
        if program.rebinds_logits:
            logits = logits.float()
        return self.loss(logits, labels)

    def on_ranks(self, x, cos, sin):
        """A block of which each rank keeps a share: whole only while it runs."""
        block = self.blocks[0]
        self.gather()
        if not torch.is_grad_enabled():
            x = block(x, cos, sin)
            self.release()
            return x
        if self.program.has_adapters:
            # FSDP1 hooks a block's inputs where its weights are frozen, and unhooks them after the whole backward:
            # until then each block's input lives, and its gradient with it.
            self.kept.append(x)
        x.register_hook(lambda _: self.end_of_backward(block))
        return block(x, cos, sin)

    def end_of_backward(self, block):
        """A block's gradients become this rank's share of them, in the dtype that the optimizer reads."""
        trained = [parameter for parameter in block.parameters() if parameter.requires_grad]
        size = sum(parameter.numel() for parameter in trained) // self.program.num_gradient_shards
        self.kept.append(torch.empty(size, dtype=self.program.shard_dtype, device="cuda"))
        for parameter in trained:
            parameter.grad = None
        self.release()

    def gather(self):
        """The weights of a block, whole."""
        for tensor, shape in self.shapes.items():
            if tensor.numel() == 0:
                tensor.data = torch.empty(shape, dtype=tensor.dtype, device="cuda")

    def release(self):
        """Nothing whole any more; the share stands elsewhere."""
        for tensor in self.shapes:
            tensor.data = torch.empty(0, dtype=tensor.dtype, device="cuda")

    def loss(self, logits, labels):
        logits = logits.float()
        shifted = logits[..., :-1, :].contiguous()
        targets = labels[..., 1:].contiguous().view(-1)
        shifted = shifted.view(-1, shifted.shape[-1])
        if self.program.loss == "fused":
            losses = FastCrossEntropy.apply(shifted, targets)
            return losses.sum() / torch.count_nonzero(targets != -100)
        return F.cross_entropy(shifted, targets)


def build_on_ranks(program: Program, shard_bytes: int) -> Build:
    """One rank of FSDP1 up to the end of the backward, ``shard_bytes`` of weights and states beside it.

    The root (embedding, norm, head) is whole from the forward on, one block at a time is: they share their memory.
    """

    def make():
        model, alive = Llama(program).train(), {}
        alive["shards"] = torch.empty(shard_bytes, dtype=torch.uint8, device="cuda")

        def step():
            shape = (program.batch, SEQ_LEN)
            alive["batch"] = [
                torch.zeros(shape, dtype=torch.int64, device="cpu").to("cuda") for _ in range(3)
            ]
            ids, _, labels = alive["batch"]
            with torch.autocast("cuda", torch.bfloat16, enabled=program.is_autocast):
                loss = model(ids, labels)
            loss.backward()
            model.kept.clear()
            for parameter in model.parameters():
                parameter.grad = None

        return step

    return make


def build(program: Program) -> Build:
    """The step that Trainer takes: batch, forward, backward, clip, AdamW, gradients to None."""

    def make():
        model = Llama(program).train()
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=1e-5, foreach=True)
        alive = {}

        def step():
            shape = (program.batch, SEQ_LEN)
            alive["batch"] = [
                torch.zeros(shape, dtype=torch.int64, device="cpu").to("cuda") for _ in range(3)
            ]
            ids, _, labels = alive["batch"]
            with torch.autocast("cuda", torch.bfloat16, enabled=program.is_autocast):
                loss = model(ids, labels)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0, foreach=True)
            optimizer.step()
            model.zero_grad()

        return step

    return make
