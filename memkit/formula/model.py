"""The list of operations of ``memkit.program.transformer``, from the token ids to the loss.

Read it beside that module: a method here writes what the module of that name there runs. Each call of ``graph.op``
says what PyTorch's operation keeps for its backward: a linear layer its input and its weight, a product both factors,
an addition nothing. Under ``scope`` a method's arguments, and what it says it ``bind``s, are held until it returns, as
the names of the real function are.

Most of the small lines of attention are layout. A projection gives [b, s, a·d], the core wants [b, a, s, d]. Seen as a
view that costs nothing, but a batched matrix product (bmm) wants [b·a, s, d] in one piece, and then it is a copy.

``model_of`` puts together what a setup asks for: a transformer, and each addition that is asked for. An addition is a
subclass of ``TransformerOperations`` that writes or walks the list in another way: RMSNorm in single operations, the
CPU's rules. Another package adds its own with ``addition``; the formula itself names none of those.
"""

from collections.abc import Callable
from functools import lru_cache
from itertools import groupby

from memkit.formats.records import dtype_bits, tensor_bytes
from memkit.formula.kernels import (
    Stages,
    efficient_backward_buffers,
    embedding_backward_buffers,
    flash_backward_buffers,
    sum_buffers,
)
from memkit.formula.operations import NEW, SAME, Extra, Graph, Region, Summed, Tensor, scope
from memkit.formula.parameters import (
    Parameter,
    block_parameters,
    embedding_parameters,
    model_axes,
    output_parameters,
)
from memkit.models import ModelConfig
from memkit.setup import TrainingSetup
from memkit.strategies import Strategy
from memkit.units import ALLOCATOR_BLOCK_BYTES, as_one_of, round_up

HEADS, SCORES = "b a s d", "b a s s"
PROJECTIONS = {"query": "ad", "key": "kd", "value": "kd"}
NORM_KERNELS = {
    "layernorm": ("layer_norm", ("mean", "1/deviation")),
    "rmsnorm": ("rms_norm", ("1/rms",)),
}
"""The operation of a norm, and the statistics that it keeps of each row."""
COMPUTE_DTYPES = ("float32", "bfloat16", "float16")

Unit = tuple[tuple[tuple[str, ...], bool], ...]
"""Regions in order, each as (the kinds of its blocks' MLPs, whether they run again). A model is a row of units."""


def attention_kernel(setup: TrainingSetup) -> str:
    """The kernel that runs: ``stored``, ``flash`` or ``efficient``.

    CUDA's flash kernel has no float32 and no head above 256: PyTorch takes the memory-efficient one.

    Raises: ValueError: dropout on a CPU, whose flash kernel has none; PyTorch runs a composite of its own then. Heads
    that CUDA's flash kernel does not take as they are; PyTorch pads them to a multiple of 8, and cuts the output.
    """
    kernel = "efficient" if setup.uses_efficient_kernel else setup.attention
    if kernel == "flash" and setup.device == "cpu" and setup.dropout:
        raise ValueError(
            f"attention='flash' with dropout={setup.dropout} on a CPU has no formula; trace it"
        )
    if kernel == "flash" and setup.device == "cuda" and setup.model.head_dim % 8:
        raise ValueError(
            f"attention='flash' with head_dim={setup.model.head_dim} has no formula; trace it"
        )
    return kernel


def units_of(
    strategy: Strategy, model: ModelConfig, is_whole: bool = False, num_first: int = 1
) -> list[tuple[int, Unit]]:
    """The units of blocks in order, each with how often it comes; neighbours in the middle that are equal are one.

    The first ``num_first`` and the last are never joined with others, for their backward frees other tensors: the first
    is the last to need the tables that all share, and the last one's output goes to the final norm.

    >>> from memkit.models import GPT2_SMALL
    >>> from memkit.strategies import every
    >>> units_of(every(2), GPT2_SMALL)[1]
    (4, ((('gelu',), True), (('gelu',), False)))
    """
    regions = [
        (tuple(map(model.mlp_of, blocks)), again)
        for blocks, again in strategy.regions(model.num_layers)
    ]
    period = strategy.period if strategy.scope == "blocks" else 1
    units = [tuple(regions[start : start + period]) for start in range(0, len(regions), period)]
    if is_whole or len(units) < num_first + 3:
        return [(1, unit) for unit in units]
    between = [(len(list(equal)), unit) for unit, equal in groupby(units[num_first:-1])]
    return [*((1, unit) for unit in units[:num_first]), *between, (1, units[-1])]


class TransformerOperations:
    """Writes the list of one micro-batch into ``graph``; ``units`` says how often each unit of blocks comes.

    ``is_whole``: every block is written, none stands for others that are alike. ``addition`` changes it from outside.
    """

    num_first = 1  # units at the start that stand for themselves alone
    block_bytes = ALLOCATOR_BLOCK_BYTES
    random_state_bytes = 0  # of a checkpoint, on the device: CUDA's is kept on the host
    statistics_dtype = "float32"  # of a norm
    # of the flash kernel
    seeds = (Extra("random number state", "2", "int64"), Extra("unused seed", "", "int64"))

    def __init__(self, setup: TrainingSetup, is_whole: bool = False):
        self.setup, self.model, precision = setup, setup.model, setup.precision
        as_one_of("compute_dtype", precision.compute_dtype, COMPUTE_DTYPES)
        if precision.uses_autocast and precision.weight_dtype != "float32":
            raise ValueError(
                f"weight_dtype={precision.weight_dtype!r} under autocast; only float32 is known there"
            )
        self.dtype = precision.compute_dtype
        self.weight_dtype = precision.weight_dtype
        self.autocast = precision.uses_autocast
        self.num_tokens = setup.tokens_per_micro_batch
        self.kernel = attention_kernel(setup)
        self.is_grouped = self.model.num_heads > self.model.num_kv_heads
        # Whether [b, s, a, d] has to be copied to become [b·a, s, d].
        self.copies_heads = min(setup.micro_batch_size, self.model.num_heads) > 1
        # Whether the core's result, and the gradients that leave it, lie in memory as [b, a, s, d], and that is another
        # order than [b, s, a, d]: with one token they are the same.
        self.is_by_heads = self.kernel == "stored" and setup.seq_len > 1
        self.graph = Graph(self.axis_sizes(setup), self.random_state_bytes)
        # of each of the core's two products
        self.core_flops = 2 * self.graph.count(SCORES) * self.model.head_dim
        self.parameters: dict[str, Tensor] = {}
        self.prefix = ""
        self.units = units_of(setup.recomputation, self.model, is_whole, self.num_first)
        self.times = [1, *(times for times, _ in self.units), 1]  # by the number of the unit
        self.write()

    # What an addition may change, beside the layers

    @classmethod
    def axis_sizes(cls, setup: TrainingSetup) -> dict[str, int]:
        """The number behind every axis that a tensor of the step may have."""
        b, s = setup.micro_batch_size, setup.seq_len
        return model_axes(setup.model) | {"b": b, "s": s, "s↑32": round_up(s, 32), "1": 1, "2": 2}

    def tensor_of(self, parameter: Parameter) -> Tensor:
        """A parameter as operations read it."""
        return Tensor(
            parameter.axes, parameter.count, self.weight_dtype, parameter=parameter, needs_grad=True
        )

    def parameters_of_block(self, number: int) -> tuple[Parameter, ...]:
        """Those of the block of this number."""
        return block_parameters(self.model, self.model.mlp_of(number))

    def feed_forward(self, number: int) -> Callable[[Tensor], Tensor]:
        """What comes after the attention of this block."""
        return self.mlp

    def region_of(self, strategy: Strategy) -> Region:
        """A part that runs again, as the strategy has it."""
        return Region(strategy.stops_early, strategy.policy() if strategy.saved_ops else None)

    def mask_dtype(self, x: Tensor) -> str:
        """Of what dropout keeps."""
        return "bool"

    def copy_for_loop(self, num_bytes: int) -> None:
        """What the operation just written copies of inputs in another dtype: nothing, its kernel reads any."""

    def core_output_by(self) -> str:
        """Who keeps a fused core's output, for a ledger: nobody but the projection after it."""
        return ""

    # The model

    def write(self) -> None:
        """From the token ids to the loss, in the order of ``Transformer.forward``."""
        graph, number = self.graph, 0
        self.add_parameters(embedding_parameters(self.model) + output_parameters(self.model))
        self.enter("embedding")
        ids, targets = (
            graph.data("b s", "int64", name, "randint") for name in ("token ids", "target ids")
        )
        graph.named |= {ids: "token embedding", targets: ""}
        x = self.embedding("token_embedding", ids, "b s h")
        if self.model.position == "learned":
            positions = graph.data("s", "int64", "positions", "arange")
            graph.named[positions] = "position embedding"
            x = self.add(x, self.embedding("position_embedding", positions, "s h"))
        x = self.dropout(x, "embedding")
        self.shared = self.tables()
        graph.named |= dict.fromkeys(self.shared.values(), "every block")
        for times, unit in self.units:
            graph.unit += 1
            first = number
            for kinds, is_run_again in unit:
                x = self.blocks(len(kinds), number, is_run_again, x)
                number += len(kinds)
            number += (times - 1) * (number - first)
        graph.unit, self.prefix = graph.unit + 1, ""
        loss = self.loss_of(x, targets)
        # ``Transformer.forward`` returns here; the training loop divides by the number of micro-batches
        graph.hold(x)
        self.loss = graph.op("div", [loss], "", name="loss")
        graph.named[self.loss] = "the training loop"

    def enter(self, where: str, section: str = "") -> None:
        """What follows belongs to this module and to this section of a ledger."""
        self.graph.where, self.graph.section = f"{self.prefix}{where}", section or where

    def add_parameters(self, parameters: tuple[Parameter, ...]) -> None:
        """Tensors under these names, in place of those of the block before."""
        self.parameters |= {p.name: self.tensor_of(p) for p in parameters}

    def embedding(self, name: str, indices: Tensor, axes: str) -> Tensor:
        """A row of the table for every index."""
        table, width = self.parameters[f"{name}.weight"], self.model.hidden_size
        value_bytes = dtype_bits(self.weight_dtype) // 8
        stages = embedding_backward_buffers(indices.count, table.count // width, width, value_bytes)
        size = self.highest(stages)
        return self.graph.op("embedding", [table], axes, keeps=[indices], scratch_bytes=size)

    def tables(self) -> dict[str, Tensor]:
        """What all blocks share: the causal mask, cosines and sines of every angle, computed in float32."""
        data, shared = self.graph.data, {}
        self.graph.section = "shared"
        if self.setup.attention == "stored":
            shared["causal mask"] = data("s s", "bool", "causal mask", "triu_")
        if self.model.position == "rotary":
            half = data("s d/2", "float32")
            angles = data("s d", "float32")
            self.graph.hold(half)  # what ``outer`` made, until its name is bound to the cat
            for name in ("cosines", "sines"):
                shared[name] = data("s d", "float32", name)
                if self.dtype != "float32":
                    wide, shared[name] = shared[name], data("s d", self.dtype, name)
                    self.graph.hold(wide)
            self.graph.hold(angles)
        return shared

    def blocks(self, num_blocks: int, number: int, is_run_again: bool, x: Tensor) -> Tensor:
        """Blocks that are run again in the backward, or are not, ``number`` being the first."""

        def run(x: Tensor, *shared: Tensor) -> Tensor:
            region_input = x  # its name in ``Transformer.forward`` is bound anew when this returns
            for i in range(number, number + num_blocks):
                self.prefix = f"blocks.{i}."
                self.add_parameters(self.parameters_of_block(i))
                x = self.block(x, self.feed_forward(i))
            self.graph.hold(region_input)
            return x

        if not is_run_again:
            return run(x)
        self.prefix, strategy = "", self.setup.recomputation
        self.enter(f"blocks.{number}", "checkpoint")
        arguments = self.graph.rename(x, "block input"), *self.shared.values()
        return self.graph.checkpoint(run, *arguments, region=self.region_of(strategy))

    @scope
    def block(self, x: Tensor, feed_forward: Callable[[Tensor], Tensor]) -> Tensor:
        """x + attention(norm(x)), then the same with what ``feed_forward`` says."""
        y = self.add(x, self.dropout(self.attention(self.norm("norm_1", x)), "attention"))
        return self.add(y, self.dropout(feed_forward(self.norm("norm_2", y)), "mlp"))

    def loss_of(self, x: Tensor, targets: Tensor) -> Tensor:
        """The loss of what the last block puts out."""
        return self.cross_entropy(self.logits(x), targets)

    @property
    def head_name(self) -> str:
        """Of the last layer, which may be the token embedding's own table."""
        return "token_embedding" if self.model.ties_embeddings else "head"

    def logits(self, x: Tensor) -> Tensor:
        """Final norm and head."""
        n = self.norm("norm", x)
        self.enter("head")
        logits = self.linear(n, self.head_name)
        self.enter("loss")
        return self.graph.cast(logits, "float32") if self.setup.upcasts_logits else logits

    @scope
    def cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean over the targets."""
        log_p = self.softmax("log_softmax", logits, "log-probabilities")
        extra = [Extra("number of targets", "", log_p.dtype)]
        return self.graph.op("nll_loss", [log_p], "", keeps=[log_p, targets], extra=extra)

    # Layers

    def highest(self, stages: Stages) -> int:
        """Bytes of a CUDA kernel's own buffers, in the stage where they are largest."""
        return max((sum(map(self.rounded, buffers)) for buffers in stages), default=0)

    def rounded(self, num_bytes: int) -> int:
        """Bytes that the allocator takes for so many."""
        return round_up(num_bytes, self.block_bytes)

    def summed_rows(self, num_rows: int, width: int, is_product: bool = False) -> Summed:
        """How the gradient of one row is made that stands beside all rows: a bias, a norm's weight."""
        stages = sum_buffers([(num_rows, width)], [(width, 1)])
        return Summed(self.highest(stages), is_product)

    def along_rows(self, num_rows: int, width: int) -> int:
        """Scratch of a sum along each of so many rows."""
        return self.highest(sum_buffers([(width, 1)], [(num_rows, width)]))

    @scope
    def linear(self, x: Tensor, name: str, label: str = "") -> Tensor:
        """x Wᵀ + b; kept: the input and the weight, under autocast their casts. ``label``: what comes out."""
        graph = self.graph
        bias = self.parameters.get(f"{name}.bias")
        weight = self.parameters.get(f"{name}.weight") or self.parameters[name]  # a router's
        dtype = self.dtype if self.autocast else weight.dtype
        short = "head" if weight.axes == "v h" else name.rpartition(".")[2]
        biases = [graph.cast(bias, dtype, f"{short} bias")] if bias else []
        weight = graph.cast(weight, dtype, f"{short} weight")
        narrow = graph.cast(x, dtype)  # last: C++ evaluates arguments from the right
        kind, label = "addmm" if biases else "mm", label or name.rpartition(".")[2]
        return self.multiply(kind, narrow, weight, biases, label, keeps=[narrow, weight])

    def multiply(
        self, kind: str, x: Tensor, weight: Tensor, biases: list[Tensor], label: str, **more
    ) -> Tensor:
        """The matrix product itself. A bias' gradient is the sum of the rows of the output's gradient."""
        ways = (NEW, NEW, *(self.summed_rows(self.num_tokens, bias.count) for bias in biases))
        axes, flops = f"b s {weight.axes.split()[0]}", 2 * self.num_tokens * weight.count
        more |= {"name": label, "by": "linear", "ways": ways, "flops": flops}
        return self.graph.op(kind, [x, weight, *biases], axes, x.dtype, **more)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """x + y, where y may be one row that is added to all."""
        way = self.summed_rows(x.count // y.count, y.count) if y.count < x.count else SAME
        return self.graph.op("add", [x, y], x.axes, ways=(SAME, way))

    def dropout(self, x: Tensor, name: str, rate: float | None = None) -> Tensor:
        """x, dropped out unless the rate is 0. The mask is a byte a value."""
        if not (self.setup.dropout if rate is None else rate):
            return x
        mask = Extra(f"{name} dropout mask", x.axes, self.mask_dtype(x))
        return self.graph.op("dropout", [x], x.axes, name=f"{name} dropout output", extra=[mask])

    @scope
    def softmax(self, kind: str, x: Tensor, name: str, is_wide: bool = False) -> Tensor:
        """softmax or log_softmax, in float32 under autocast. The kernel reads float16 without a cast."""
        dtype = "float32" if is_wide or self.autocast else x.dtype
        wide = x if x.dtype == "float16" else self.graph.cast(x, dtype)
        size = tensor_bytes(x.count, dtype) if kind == "softmax" else 0  # dy times y
        more = {"name": name, "out_by": kind, "scratch_bytes": size}
        return self.graph.op(kind, [wide], x.axes, dtype, **more)

    def norm(self, name: str, x: Tensor) -> Tensor:
        """The norm of this name."""
        label = "final norm" if name == "norm" else name.rpartition(".")[2].replace("_", " ")
        names = (f"{name}.weight", f"{name}.bias")
        weights = [self.parameters[name] for name in names if name in self.parameters]
        self.enter(name, "attention" if "." in name else "norms" if name != "norm" else label)
        return self.normalised(self.graph.rename(x, f"{label} input"), weights, label)

    def normalised(self, x: Tensor, weights: list[Tensor], label: str) -> Tensor:
        """LayerNorm or RMSNorm as one kernel, which autocast gives RMSNorm's input in float32."""
        kind, statistics = NORM_KERNELS[self.model.norm]
        if kind == "rms_norm" and self.autocast:
            x = self.graph.cast(x, "float32", f"{label} input")
        rows = f"{x.axes.rpartition(' ')[0]} 1"
        extra = [Extra(f"{label} {each}", rows, self.statistics_dtype) for each in statistics]
        return self.graph.op(
            kind, [x, *weights], x.axes, name=f"{label} output", keeps=[x, *weights], extra=extra
        )

    @scope
    def mlp(self, n: Tensor) -> Tensor:
        """Linear, GELU, linear; or the gated form of Llama."""
        self.enter("mlp")
        if self.model.mlp == "swiglu":
            silu = self.elementwise("silu", "silu(gate)", self.linear(n, "mlp.gate"))
            inner = self.elementwise("mul", "silu(gate) · up", silu, self.linear(n, "mlp.up"))
        else:
            inner = self.elementwise(
                "gelu", "GELU output", self.graph.rename(self.linear(n, "mlp.up"), "GELU input")
            )
        return self.linear(inner, "mlp.down")

    def elementwise(self, kind: str, name: str, *inputs: Tensor) -> Tensor:
        """An operation on each value, or each pair of values, that keeps what it reads."""
        return self.graph.op(kind, inputs, inputs[-1].axes, name=name, keeps=inputs)

    # Attention

    @scope
    def attention(self, n: Tensor) -> Tensor:
        """Projections, rotation, core, output projection."""
        graph, model, strategy = self.graph, self.model, self.setup.recomputation
        self.enter("attention")
        if model.fuses_qkv:
            fused = self.linear(n, "attention.qkv", "query, key and value")
            graph.rename(fused, "query, key and value, one storage")
            q, k, v = graph.view(
                "split", fused, [f"b s {width}" for width in PROJECTIONS.values()], (NEW,)
            )
        else:
            q, k, v = [self.linear(n, f"attention.{name}") for name in PROJECTIONS]
        if model.has_qk_norm:
            projected = q, k
            q, k = self.head_norm("query", q), self.head_norm("key", k)
            graph.hold(*projected)
            self.enter("attention")
        q_heads = self.as_heads(q, model.num_heads)
        k_heads, v_heads = (self.as_heads(x, model.num_kv_heads) for x in (k, v))
        if model.position == "rotary":
            q_heads = self.rotate(q_heads, "rotated query")
            k_heads = self.rotate(k_heads, "rotated key")
        graph.bind(q, k, v, q_heads, k_heads)
        arguments = q_heads, k_heads, v_heads, *self.shared.values()
        if strategy.scope == "core":
            y = graph.checkpoint(self.core, *arguments, region=self.region_of(strategy))
        else:
            y = self.core(*arguments)
        graph.bind(y)
        return self.linear(self.merge_heads(y), "attention.output")

    def head_norm(self, name: str, x: Tensor) -> Tensor:
        """RMSNorm of every head."""
        heads = self.graph.view("unflatten", x, [f"b s {PROJECTIONS[name][0]} d"])[0]
        return self.norm(f"attention.{name}_norm", heads)

    def as_heads(self, x: Tensor, num_heads: int) -> Tensor:
        """A view [b, a, s, d]. A gradient that lies in memory in that order is copied back to [b, s, a·d]."""
        return self.graph.view(
            "transpose", x, ways=(NEW if self.is_by_heads and num_heads > 1 else SAME,)
        )

    def merge_heads(self, y: Tensor) -> Tensor:
        """[b, a, s, d] to [b, s, a·d]: a copy behind a bmm, a view behind a fused kernel."""
        if not self.is_by_heads or self.model.num_heads == 1:
            return self.graph.view("view", y)
        # A gradient in the order of the bmm of the backward is copied.
        way = NEW if self.copies_heads else SAME
        return self.graph.op("clone", [y], "b s ad", name="attention output", ways=(way,))

    def rotate(self, x: Tensor, name: str) -> Tensor:
        """x · cos + (-right, left) · sin; kept: the two tables."""
        op, axes, shared = self.graph.op, x.axes, self.shared
        left, right = self.graph.view("chunk", x, [f"{axes}/2"] * 2, (NEW,))
        straight = op("mul", [x], axes, keeps=[shared["cosines"]])
        crossed = op("cat", [op("neg", [right], right.axes), left], axes, ways=(SAME, SAME))
        turned = op("mul", [crossed], axes, keeps=[shared["sines"]])
        return op("add", [straight, turned], axes, name=name, ways=(SAME, SAME))

    @scope
    def core(self, q: Tensor, k: Tensor, v: Tensor, *shared: Tensor) -> Tensor:
        """Scores, softmax and weighted sum."""
        if self.is_grouped and self.kernel != "flash":  # which alone reads them as they are
            k, v = self.repeat(k, "key"), self.repeat(v, "value")
        return self.stored_core(q, k, v) if self.kernel == "stored" else self.fused_core(q, k, v)

    def repeat(self, x: Tensor, name: str) -> Tensor:
        """Keys or values once for every query head."""
        return self.graph.op("repeat", [x], HEADS, name=f"{name}, repeated for each head")

    def lower(self, x: Tensor) -> Tensor:
        """What autocast makes of the input of a product."""
        return self.graph.cast(x, self.dtype) if self.autocast else x

    @scope
    def fused_core(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """One kernel; it keeps its inputs, its output and the log-sum-exp of every row of scores."""
        b, s, a, d = (self.graph.sizes[axis] for axis in "bsad")
        inputs = [self.lower(x) for x in (q, k, v)]
        value_bytes = dtype_bits(inputs[0].dtype) // 8
        if self.kernel == "flash":
            # the efficient kernel's are on the host
            extra = [Extra("log-sum-exp", "b a s", "float32"), *self.seeds]
            stages = flash_backward_buffers(b, a, k.count // (b * s * d), s, d, value_bytes)
        else:
            needs_grad = any(x.needs_grad for x in inputs)  # it is for a backward alone
            extra = [Extra("log-sum-exp", "b a s↑32", "float32")] if needs_grad else []
            stages = efficient_backward_buffers(b, a, s, d, value_bytes)
        names = {"name": "attention output", "by": self.kernel, "out_by": self.core_output_by()}
        more = {"scratch_bytes": self.highest(stages), "flops": 2 * self.core_flops} | names
        return self.graph.op("attention", inputs, "b s ad", keeps=inputs, extra=extra, **more)

    @scope
    def stored_core(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """softmax(q kᵀ / √d) v, each intermediate result a tensor."""
        graph = self.graph
        scores = self.scores(graph.op("mul", [q], HEADS, name="query, scaled"), k)
        scores = graph.op("masked_fill", [scores], SCORES, keeps=[self.shared["causal mask"]])
        weights = self.dropout(self.softmax("softmax", scores, "softmax output"), "softmax")
        narrow = graph.cast(weights, scores.dtype, f"attention weights, cast to {scores.dtype}")
        graph.bind(scores, weights)
        factors = [narrow, self.for_bmm(self.lower(v), "value", self.is_grouped)]
        return graph.rename(self.bmm(factors, HEADS, "weighted sum"), "attention output")

    @scope
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """q kᵀ."""
        low_q, low_k = self.lower(q), self.lower(k)
        left, right = self.for_bmm(low_q, q.base.name), self.for_bmm(low_k, "key", self.is_grouped)
        self.graph.hold(low_q)
        return self.bmm([left, right], SCORES, "scores")

    def bmm(self, factors: list[Tensor], axes: str, name: str) -> Tensor:
        """A product for every head of every sequence."""
        return self.graph.op("bmm", factors, axes, name=name, keeps=factors, flops=self.core_flops)

    def for_bmm(self, x: Tensor, name: str, is_together: bool = False) -> Tensor:
        """x as a bmm reads it: a copy, unless its heads lie together already, as those of one token do."""
        is_whole = x.num_bytes == x.base.num_bytes
        if not self.copies_heads or is_together or (self.setup.seq_len == 1 and is_whole):
            return self.graph.view("view", x)
        copied = f"{name}, copied for bmm" if name in PROJECTIONS else name
        return self.graph.op("clone", [x], HEADS, name=copied, ways=(SAME,))


ADDITIONS: dict[str, tuple[type[TransformerOperations], Callable[[TrainingSetup], bool]]] = {}
"""By name, each with the setups that get it, beside others that they ask for; a module that is loaded again replaces
its own."""


def addition(is_asked_for: Callable[[TrainingSetup], bool]) -> Callable[[type], type]:
    """For a subclass of ``TransformerOperations``: the setups for which this holds get it."""

    def add(kind: type[TransformerOperations]) -> type[TransformerOperations]:
        ADDITIONS[f"{kind.__module__}.{kind.__qualname__}"] = kind, is_asked_for
        return kind

    return add


@addition(lambda x: x.model.norm == "rmsnorm" and (x.device == "cpu" or not x.uses_fused_norm))
class WithNormInSteps(TransformerOperations):
    """A transformer whose RMSNorm is many operations."""

    @scope
    def normalised(self, x: Tensor, weights: list[Tensor], label: str) -> Tensor:
        """x / √(mean x² + ε), times a weight for each column; torch's composite casts back after it, ours before."""
        (weight,) = weights
        graph, is_composite = self.graph, self.setup.uses_fused_norm
        normalised, wide, inverse = self.divide_by_rms(x, weight.count, label)
        factor = normalised
        if not is_composite:
            factor = graph.cast(normalised, x.dtype, f"{label} normalised")
        factors = [weight, factor]
        wider = weight.dtype if weight.dtype == "float32" else factor.dtype
        rows = self.summed_rows(x.count // weight.count, weight.count, is_product=True)
        names = {"name": f"{label} output", "by": "mul by the weight"}
        out = graph.op("mul", factors, x.axes, wider, keeps=factors, ways=(rows, NEW), **names)
        copied = [each for each in factors if each.dtype != wider]
        self.copy_for_loop(sum(tensor_bytes(each.count, wider) for each in copied))
        graph.hold(normalised, factor)
        if is_composite:  # C++ holds both factors longer; Python binds the name of x anew
            graph.hold(wide)
            graph.bind(inverse)
            out = graph.cast(out, x.dtype, f"{label} output")
        return out

    def divide_by_rms(self, x: Tensor, width: int, label: str) -> tuple[Tensor, Tensor, Tensor]:
        """x / √(mean x² + ε) in float32, one tensor a step; and its two factors, x and 1 / √."""
        graph, rows = self.graph, f"{x.axes.rpartition(' ')[0]} 1"
        along = self.along_rows(x.count // width, width)
        wide = graph.cast(x, "float32")
        # The backward of a power computes exponent · x^(exponent - 1) in two temporaries.
        scratch_bytes = 2 * self.rounded(wide.num_bytes)
        square = graph.op("pow", [wide], x.axes, keeps=[wide], scratch_bytes=scratch_bytes)
        mean = graph.op("mean", [square], rows)
        if along:
            graph.scratch(along)
            graph.hold(square)
        inverse = graph.op("rsqrt", [mean], rows, name=f"{label} 1/rms", out_by="rsqrt")
        factors, ways = [wide, inverse], (NEW, Summed(along, is_product=True))
        out = graph.op("mul", factors, x.axes, name=f"{label} normalised", keeps=factors, ways=ways)
        return out, wide, inverse


RANDOM_STATE_BYTES = 5056
"""The state of the CPU's random number generator (``torch.get_rng_state()``), which every checkpoint keeps."""


@addition(lambda setup: setup.device == "cpu")
class OnCPU(TransformerOperations):
    """A transformer on the CPU: its allocator does not round, its kernels take nothing, its autocast widens nothing."""

    block_bytes, random_state_bytes, seeds = 1, RANDOM_STATE_BYTES, ()

    @classmethod
    def axis_sizes(cls, setup: TrainingSetup) -> dict[str, int]:
        return super().axis_sizes(setup) | {str(RANDOM_STATE_BYTES): RANDOM_STATE_BYTES}

    @property
    def statistics_dtype(self) -> str:
        """Of a LayerNorm; its RMSNorm has no kernel."""
        return self.weight_dtype

    def highest(self, stages: Stages) -> int:
        """Nothing: those buffers are CUDA's."""
        return 0

    def mask_dtype(self, x: Tensor) -> str:
        """Dropout keeps a factor for each value."""
        return x.dtype

    def copy_for_loop(self, num_bytes: int) -> None:
        """The CPU's loop takes one dtype: what has another is copied."""
        self.graph.scratch(num_bytes)

    @scope
    def softmax(self, kind: str, x: Tensor, name: str, is_wide: bool = False) -> Tensor:
        """softmax or log_softmax, in its input's dtype."""
        wide = self.graph.cast(x, "float32" if is_wide else x.dtype)
        return self.graph.op(kind, [wide], x.axes, wide.dtype, name=name, out_by=kind)

    @scope
    def cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Autocast casts for all of it, CUDA's for log_softmax alone."""
        return super().cross_entropy(
            self.graph.cast(logits, "float32") if self.autocast else logits, targets
        )


@lru_cache
def _with_additions(kinds: tuple[type[TransformerOperations], ...]) -> type[TransformerOperations]:
    """A transformer with all of them."""
    return type("Model", (*kinds, TransformerOperations), {}) if kinds else TransformerOperations


def model_class_of(setup: TrainingSetup) -> type[TransformerOperations]:
    """A transformer with the additions that a setup asks for."""
    return _with_additions(tuple(kind for kind, asks in ADDITIONS.values() if asks(setup)))


def model_of(setup: TrainingSetup, is_whole: bool = False) -> TransformerOperations:
    """The list of a setup's operations.

    >>> from memkit.models import TINY_GPT2
    >>> model = model_of(TrainingSetup(model=TINY_GPT2, seq_len=64))
    >>> [op.kind for op in model.graph.operations if op.unit == 1 and not op.is_view][:3]
    ['layer_norm', 'addmm', 'attention']
    """
    return model_class_of(setup)(setup, is_whole)
