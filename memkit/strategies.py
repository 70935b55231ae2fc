"""Ways to run parts of the forward twice: what each keeps, what it costs, and the line of code that asks for it.

A ``Strategy`` cuts the model's L blocks into regions. A region that is run again keeps its input, and beyond it what
the strategy's policy saves; every other block keeps its whole ledger. So, with r regions run again and n blocks that
are not::

    stored bytes = r · (block input + outputs saved by the policy) + n · block ledger

The price is counted in FLOPs of matrix products, the forward of what is run again. PyTorch stops a recomputation once
the last kept tensor is there, so that the last product of a region runs only if a dropout after it keeps a mask.
"""

from dataclasses import dataclass, replace

from memkit.activations import block_ledger, outside_ledger
from memkit.attention_memory import attention_kernel, core_ledger
from memkit.ledger import Kept, Ledger, axis_sizes, kept
from memkit.training import TrainingSetup
from memkit.units import as_whole_number

SCOPES = ("nothing", "blocks", "core", "host")
"""What is treated: nothing; whole blocks run again; only the attention core does; saved tensors move to the host."""

OPS = ("mm", "addmm", "bmm", "attention", "gelu", "silu")
"""Operations that a policy may save. ``attention`` is any fused kernel; a linear layer is ``addmm`` with a bias and
``mm`` without."""

TORCH_NAMES = {"attention": "_scaled_dot_product_flash_attention"} | {op: op for op in OPS if op != "attention"}


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """One way to trade FLOPs for bytes.

    ``group_size`` blocks make one region; every ``period``-th region is run again. ``num_segments`` above 0 makes so
    many equal regions instead, of which the last is not run again. ``saved_ops``: operations whose outputs a policy
    keeps, of linear layers each second one only if ``saves_every_second``. ``stops_early`` and ``is_reentrant``
    choose between PyTorch's implementations.

    Raises: ValueError: an unknown scope or operation, a size below 1, a policy in the reentrant implementation.
    """

    name: str
    code: str
    scope: str = "blocks"
    group_size: int = 1
    period: int = 1
    num_segments: int = 0
    saved_ops: tuple[str, ...] = ()
    saves_every_second: bool = False
    stops_early: bool = True
    is_reentrant: bool = False

    def __post_init__(self):
        if self.scope not in SCOPES:
            raise ValueError(f"scope={self.scope!r} is not one of {', '.join(SCOPES)}")
        for name in ("group_size", "period"):
            object.__setattr__(self, name, as_whole_number(name, getattr(self, name), 1))
        unknown = [op for op in self.saved_ops if op not in OPS]
        if unknown:
            raise ValueError(f"saved_ops={unknown[0]!r} is not one of {', '.join(OPS)}")
        if self.is_reentrant and self.saved_ops:
            raise ValueError(f"saved_ops={self.saved_ops!r} needs the non-reentrant checkpoint")

    def regions(self, num_layers: int) -> tuple[tuple[range, bool], ...]:
        """The model's blocks in order as (blocks, are run again).

        >>> [(len(blocks), again) for blocks, again in sequential(4).regions(24)]
        [(6, True), (6, True), (6, True), (6, False)]
        """
        starts = range(0, num_layers, self.group_size)
        if self.num_segments:
            size = num_layers // min(self.num_segments, num_layers)
            starts = range(0, size * min(self.num_segments, num_layers), size)
        cuts = [range(start, stop) for start, stop in zip(starts, [*starts[1:], num_layers], strict=True)]
        spared = len(cuts) - 1 if self.num_segments else None
        return tuple(
            (blocks, self.scope == "blocks" and number % self.period == 0 and number != spared)
            for number, blocks in enumerate(cuts)
        )


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

    ``backward`` is what the gradients need; ``recomputed`` what the strategy runs again; ``in_kernel`` what a fused
    attention kernel computes again inside its backward, strategy or not: the scores.
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


def checkpoint_line(run: str, more: str = "") -> str:
    """The call to ``torch.utils.checkpoint`` that a reader would write."""
    return f"x = checkpoint({run}, x, use_reentrant=False{more})"


NONE = Strategy(name="none", scope="nothing", code="x = block(x)")
FULL = Strategy(name="full", code=checkpoint_line("block"))
FULL_NO_STOP = Strategy(
    name="full, no early stop", stops_early=False, code=checkpoint_line("block", ", early_stop=False")
)
FULL_REENTRANT = Strategy(
    name="full, reentrant", is_reentrant=True, stops_early=False, code="x = checkpoint(block, x, use_reentrant=True)"
)
CORE = Strategy(name="attention core", scope="core", code="y = checkpoint(core, q, k, v, use_reentrant=False)")
HOST = Strategy(name="offload", scope="host", code="with save_on_cpu(pin_memory=True):\n    x = block(x)")


def every(period: int) -> Strategy:
    """Every ``period``-th block runs again."""
    code = f"if number % {period} == 0:\n    {checkpoint_line('block')}\nelse:\n    x = block(x)"
    return Strategy(name=f"1 block in {period}", period=period, code=code)


def groups(group_size: int, name: str = "") -> Strategy:
    """Regions of ``group_size`` blocks; the input of each is kept, and all of them run again."""
    code = f"for blocks in batched(model.blocks, {group_size}):\n    {checkpoint_line('nn.Sequential(*blocks)')}"
    return Strategy(name=name or f"groups of {group_size}", group_size=group_size, code=code)


def square_root_groups(num_layers: int) -> Strategy:
    """√L blocks a region, as Chen et al. 2016 have it."""
    size = max(1, round(num_layers**0.5))
    return groups(size, name="√L groups")


def sequential(num_segments: int) -> Strategy:
    """``checkpoint_sequential``: equal segments, of which the last is never run again."""
    code = f"x = checkpoint_sequential(model.blocks, {num_segments}, x, use_reentrant=False)"
    return Strategy(name=f"checkpoint_sequential, {num_segments} segments", num_segments=num_segments, code=code)


def policy(name: str, *saved_ops: str, saves_every_second: bool = False) -> Strategy:
    """Blocks run again, but what ``saved_ops`` put out is kept (selective activation checkpointing)."""
    listed = ", ".join(f"aten.{TORCH_NAMES[op]}.default" for op in saved_ops)
    code = (
        f"context_fn = partial(create_selective_checkpoint_contexts, [{listed}])\n"
        + checkpoint_line("block", ", context_fn=context_fn")
    )
    if saves_every_second:
        code = code.replace("[", "every_second([").replace("]", "])")
    return Strategy(name=name, saved_ops=saved_ops, saves_every_second=saves_every_second, code=code)


SAVE_ATTENTION = policy("save attention", "attention")
SAVE_PRODUCTS = policy("save attention and products", "attention", "mm", "addmm")
SAVE_EVERY_SECOND = policy("save every second product", "attention", "mm", "addmm", saves_every_second=True)


def all_strategies(num_layers: int) -> tuple[Strategy, ...]:
    """Every strategy of the book, for a model of so many layers."""
    return (
        NONE, CORE, SAVE_PRODUCTS, SAVE_EVERY_SECOND, SAVE_ATTENTION, FULL, FULL_NO_STOP, FULL_REENTRANT,
        every(2), every(3), square_root_groups(num_layers), sequential(4), HOST,
    )  # fmt: skip


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

    >>> from memkit.models import GPT2_LARGE
    >>> from memkit.recipes import PURE_BF16
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
