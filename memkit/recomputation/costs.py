"""What a recomputation strategy keeps and what it costs, by formula.

A region that is run again keeps its input, and beyond it what the strategy's policy saves; every other block
keeps its whole ledger. So, with r regions run again and n blocks that are not::

    stored bytes = r · (block input + outputs saved by the policy) + n · block ledger

The price is counted in FLOPs of matrix products, the forward of what is run again. PyTorch stops a
recomputation once the last kept tensor is there, so that the last product of a region runs only if a dropout
after it keeps a mask.
"""

from dataclasses import dataclass, replace

from memkit.formula.activations import attention_kernel, block_ledger, core_ledger, outside_ledger
from memkit.formula.ledger import Kept, Ledger, axis_sizes, kept
from memkit.setup.strategies import Strategy
from memkit.setup.training import TrainingSetup


@dataclass(frozen=True, kw_only=True)
class Product:
    """An operation of a block that a policy can name: its forward FLOPs and what it puts out."""

    name: str
    op: str
    flops: int
    outputs: tuple[Kept, ...]


@dataclass(frozen=True, kw_only=True)
class Flops:
    """Multiplications and additions in the matrix products of one micro-batch.

    ``backward`` is what the gradients need; ``recomputed`` what the strategy runs again; ``in_kernel`` what a
    fused attention kernel computes again inside its backward, strategy or not: the scores.
    """

    forward: int
    backward: int
    recomputed: int
    in_kernel: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.forward + self.backward + self.recomputed + self.in_kernel

    @property
    def overhead(self) -> float:
        """FLOPs run again ÷ FLOPs of a plain step, which runs nothing again but the kernel's scores."""
        return self.recomputed / (self.total - self.recomputed)


def block_products(setup: TrainingSetup) -> tuple[Product, ...]:
    """The operations of one block that a policy can name, in the order in which they run."""
    model, kernel = setup.model, attention_kernel(setup)
    dtype = setup.precision.compute_dtype
    gate = [("gate", "h", "f", model.has_mlp_bias)] if model.mlp == "swiglu" else []
    projections = [("query", "h", "ad"), ("key", "h", "kd"), ("value", "h", "kd")]
    if model.fuses_qkv:
        projections = [("query, key and value", "h", "(a+2k)d")]
    sizes = axis_sizes(setup)

    def linear(name: str, inputs: str, outputs: str, has_bias: bool) -> Product:
        flops = 2 * setup.tokens_per_micro_batch * sizes[inputs] * sizes[outputs]
        line = kept(setup, f"{name}, put out", "policy", f"b s {outputs}", dtype)
        return Product(name=name, op="addmm" if has_bias else "mm", flops=flops, outputs=(line,))

    activation = kept(setup, "activation, put out", "policy", "b s f", dtype)
    products = [
        *(linear(*sides, model.has_qkv_bias) for sides in projections),
        *_core_products(setup, kernel),
        linear("output", "ad", "h", model.has_output_bias),
        *(linear(*sides) for sides in gate),
    ]
    activates = Product(name="activation", op="silu" if gate else "gelu", flops=0, outputs=(activation,))
    up = linear("up", "h", "f", model.has_mlp_bias)
    products += [activates, up] if gate else [up, activates]
    return (*products, linear("down", "f", "h", model.has_mlp_bias))


def _core_products(setup: TrainingSetup, kernel: str) -> list[Product]:
    """Two batched products, the scores and the weighted sum, or one fused kernel that does both."""
    sizes = axis_sizes(setup)
    flops = 2 * sizes["b"] * sizes["a"] * sizes["s"] ** 2 * sizes["d"]
    dtype = "float32" if kernel == "math" else setup.precision.compute_dtype
    if kernel in ("stored", "math"):
        scores = kept(setup, "scores", "policy", "b a s s", dtype)
        weighted = kept(setup, "weighted sum", "policy", "b a s d", dtype)
        return [
            Product(name="scores", op="bmm", flops=flops, outputs=(scores,)),
            Product(name="weighted sum", op="bmm", flops=flops, outputs=(weighted,)),
        ]
    width = "d↑8" if setup.device == "cuda" and kernel == "flash" else "d"
    own = [line for line in core_ledger(setup) if line.op == kernel and line.dtype in ("int64", "float32")]
    own = [line for line in own if line.axes.split()[:1] != ["b"] or line.axes.split()[-1] in ("s", "s↑32")]
    outputs = (kept(setup, "attention, put out", "policy", f"b a s {width}", dtype), *own)
    return [Product(name="attention", op="attention", flops=2 * flops, outputs=outputs)]


def saved_products(setup: TrainingSetup, strategy: Strategy) -> tuple[Product, ...]:
    """The products whose outputs the strategy's policy keeps."""
    found, num_linears = [], 0
    for product in block_products(setup):
        is_linear = product.op in ("mm", "addmm")
        num_linears += is_linear
        is_skipped = strategy.saves_every_second and is_linear and num_linears % 2 == 0
        if product.op in strategy.saved_ops and not is_skipped:
            found.append(product)
    return tuple(found)


def blocks_ledger(setup: TrainingSetup, strategy: Strategy) -> Ledger:
    """What all L blocks keep from forward to backward under a strategy, on the device.

    >>> from memkit.setup.models import GPT2_LARGE
    >>> from memkit.setup.strategies import FULL, NONE, every
    >>> from memkit.setup.recipes import PURE_BF16
    >>> setup = TrainingSetup(model=GPT2_LARGE, precision=PURE_BF16, micro_batch_size=8)
    >>> [round(blocks_ledger(setup, way).per_sbh / 36, 1) for way in (NONE, every(2), FULL)]
    [32.1, 17.0, 2.0]
    """
    _check(setup)
    plain = block_ledger(replace(setup, recomputation="selective" if strategy.scope == "core" else "none"))
    empty = replace(plain, title=f"{setup.model.num_layers} blocks, {strategy.name}", lines=())
    if strategy.scope == "host":
        return empty
    region = block_ledger(replace(setup, recomputation="full")).lines
    saved = [line for product in saved_products(setup, strategy) for line in product.outputs]
    cuts = strategy.regions(setup.model.num_layers)
    num_regions = sum(again for _, again in cuts)
    num_again = sum(len(blocks) for blocks, again in cuts if again)
    lines = [replace(line, count=num_regions * line.count) for line in region]
    lines += [replace(line, count=num_again * line.count, section="policy") for line in saved]
    lines += [replace(line, count=(setup.model.num_layers - num_again) * line.count) for line in plain.lines]
    return replace(empty, lines=tuple(line for line in lines if line.count))


def stored_bytes(setup: TrainingSetup, strategy: Strategy) -> int:
    """Bytes of activations on the device when the backward starts: all blocks and the outside.

    Offloaded blocks take the tables that all of them share along.
    """
    outside = outside_ledger(setup)
    if strategy.scope == "host":
        outside = replace(outside, lines=tuple(line for line in outside.lines if line.section != "shared"))
    return blocks_ledger(setup, strategy).held_bytes + outside.held_bytes


def step_flops(setup: TrainingSetup, strategy: Strategy) -> Flops:
    """FLOPs of one micro-batch's forward and backward, and of what the strategy runs again.

    A product costs 2 FLOPs a multiplication in the forward and twice that in the backward.
    """
    _check(setup)
    model, products = setup.model, block_products(setup)
    block = sum(product.flops for product in products)
    fused = sum(product.flops for product in products if product.op == "attention")
    head = 2 * setup.tokens_per_micro_batch * model.hidden_size * model.vocab_size
    forward = model.num_layers * block + head
    in_kernel = model.num_layers * fused // 2
    again = _flops_run_again(setup, strategy)
    return Flops(forward=forward, backward=2 * forward, recomputed=again, in_kernel=in_kernel)


def _flops_run_again(setup: TrainingSetup, strategy: Strategy) -> int:
    products, num_layers = block_products(setup), setup.model.num_layers
    if strategy.scope == "core":
        core = [product for product in products if product.op in ("bmm", "attention")]
        needed = core[:-1] if core[-1].op == "bmm" and strategy.stops_early else core
        return num_layers * sum(product.flops for product in needed)
    saved = {product.name for product in saved_products(setup, strategy)}
    block = sum(product.flops for product in products if product.name not in saved)
    last = 0
    if strategy.stops_early and not setup.dropout and products[-1].name not in saved:
        last = products[-1].flops
    return sum(len(blocks) * block - last for blocks, again in strategy.regions(num_layers) if again)


def _check(setup: TrainingSetup) -> None:
    if setup.recomputation != "none":
        raise ValueError(f"recomputation={setup.recomputation!r}: a strategy needs a setup with 'none'")
