"""Attention on paper: projections, rotation, and the core in the form that the device's kernel has.

Attention keeps query, key and value whichever way it is computed. Written out it also keeps the weights of
every head, so its memory grows with the square of the sequence. The fused kernels keep one float32 number per
query and head in their place, the log-sum-exp, and compute the weights again in the backward. ``attention_kernel``
says which of these forms runs; ``fused_core`` and ``stored_core`` say by ``keeps``, ``out_kept_by`` and
``extra`` which tensors it keeps. (In a trace nobody says so: ``memkit.tracing.cuda_kernels`` chooses the kernel, and
torch's autograd keeps what that kernel saves.)

Most of the small lines here are layout. A projection gives [b, s, a·d], the core wants [b, a, s, d]. Seen as
a view that costs nothing, but a batched matrix product (bmm) wants [b·a, s, d] in one piece, and then it is a
copy.
"""

from memkit.formats.dtypes import dtype_bits
from memkit.formula.kernels import efficient_backward_buffers, flash_backward_buffers
from memkit.formula.layers import Layers
from memkit.formula.paper import NEW, SAME, Tensor
from memkit.setup.training import TrainingSetup

HEADS, SCORES = "b a s d", "b a s s"
PROJECTIONS = {"query": "ad", "key": "kd", "value": "kd"}


def attention_kernel(setup: TrainingSetup) -> str:
    """The kernel that runs: ``stored``, ``flash`` or ``efficient``.

    CUDA's flash kernel has no float32 and no head above 256: PyTorch takes the memory-efficient one.

    Raises: ValueError: dropout on a CPU, whose flash kernel has none; PyTorch runs a composite of its own then. Heads
    that CUDA's flash kernel does not take as they are; PyTorch pads them to a multiple of 8, and cuts the output.
    """
    kernel = "efficient" if setup.uses_efficient_kernel else setup.attention
    if kernel == "flash" and setup.device == "cpu" and setup.dropout:
        raise ValueError(f"attention='flash' with dropout={setup.dropout} on a CPU has no formula; trace it")
    if kernel == "flash" and setup.device == "cuda" and setup.model.head_dim % 8:
        raise ValueError(f"attention='flash' with head_dim={setup.model.head_dim} has no formula; trace it")
    return kernel


class Attention(Layers):
    """The methods of attention. ``shared`` is what all blocks share, the causal mask and the rotary tables."""

    names_core_output = ""

    def __init__(self, setup: TrainingSetup):
        super().__init__(setup)
        model, self.kernel = setup.model, attention_kernel(setup)
        self.is_grouped = model.num_heads > model.num_kv_heads
        # Whether [b, s, a, d] has to be copied to become [b·a, s, d].
        self.copies_heads = min(setup.micro_batch_size, model.num_heads) > 1
        # Whether the core's result, and the gradients that leave it, lie in memory as [b, a, s, d], and that is another
        # order than [b, s, a, d]: with one token they are the same.
        self.is_by_heads = self.kernel == "stored" and setup.seq_len > 1
        # FLOPs of one of the core's two products, the scores or the weighted sum.
        self.core_flops = 2 * self.paper.count(SCORES) * model.head_dim

    def attention(self, n: Tensor, shared: dict[str, Tensor]) -> Tensor:
        """Projections, rotation, core, output projection."""
        paper, model, strategy = self.paper, self.model, self.setup.recomputation
        self.enter("attention")
        if model.fuses_qkv:
            fused = self.linear(n, "attention.qkv", "query, key and value")
            paper.rename(fused, "query, key and value, one storage")
            q, k, v = paper.view("split", fused, [f"b s {width}" for width in PROJECTIONS.values()], (NEW,))
            del fused  # the three views hold its storage
        else:
            q, k, v = [self.linear(n, f"attention.{name}") for name in PROJECTIONS]
        if model.has_qk_norm:
            q, k = self.head_norm("query", q), self.head_norm("key", k)
            self.enter("attention")
        heads = zip((q, k, v), (model.num_heads, model.num_kv_heads, model.num_kv_heads), strict=True)
        q_heads, k_heads, v_heads = [self.as_heads(x, num_heads) for x, num_heads in heads]
        if model.position == "rotary":
            q_heads = self.rotate(q_heads, shared, "rotated query")
            k_heads = self.rotate(k_heads, shared, "rotated key")
        if strategy.scope == "core":
            y = paper.checkpoint(self.core, q_heads, k_heads, v_heads, shared, stops_early=strategy.stops_early)
        else:
            y = self.core(q_heads, k_heads, v_heads, shared)
        return self.linear(self.merge_heads(y), "attention.output")

    def head_norm(self, name: str, x: Tensor) -> Tensor:
        """RMSNorm of every head."""
        heads = self.paper.view("unflatten", x, [f"b s {PROJECTIONS[name][0]} d"])[0]
        return self.norm(f"attention.{name}_norm", heads)

    def as_heads(self, x: Tensor, num_heads: int) -> Tensor:
        """A view [b, a, s, d]. A gradient that lies in memory in that order is copied back to [b, s, a·d]."""
        return self.paper.view("transpose", x, ways=(NEW if self.is_by_heads and num_heads > 1 else SAME,))

    def merge_heads(self, y: Tensor) -> Tensor:
        """[b, a, s, d] to [b, s, a·d]: a copy behind a bmm, a view behind a fused kernel."""
        if not self.is_by_heads or self.model.num_heads == 1:
            return self.paper.view("view", y)
        # A gradient in the order of the bmm of the backward is copied.
        way = NEW if self.copies_heads else SAME
        return self.paper.run("clone", [y], "b s ad", name="attention output", ways=(way,))

    def rotate(self, x: Tensor, shared: dict[str, Tensor], name: str) -> Tensor:
        """x · cos + (-right, left) · sin; kept: the two tables."""
        run, axes = self.paper.run, x.axes
        left, right = self.paper.view("chunk", x, [f"{axes}/2"] * 2, (NEW,))
        straight = run("mul", [x], axes, keeps=[shared["cosines"]])
        negative = run("neg", [right], right.axes)
        crossed = run("cat", [negative, left], axes, ways=(SAME, SAME))
        del negative  # an argument of `cat`, without a name
        turned = run("mul", [crossed], axes, keeps=[shared["sines"]])
        del crossed  # an argument of the product, without a name
        return run("add", [straight, turned], axes, name=name, ways=(SAME, SAME))

    def core(self, q: Tensor, k: Tensor, v: Tensor, shared: dict[str, Tensor]) -> Tensor:
        """Scores, softmax and weighted sum."""
        if self.is_grouped and self.kernel != "flash":  # which alone reads them as they are
            k, v = self.repeat(k, "key"), self.repeat(v, "value")
        return self.stored_core(q, k, v, shared) if self.kernel == "stored" else self.fused_core(q, k, v)

    def repeat(self, x: Tensor, name: str) -> Tensor:
        """Keys or values once for every query head."""
        return self.paper.run("repeat", [x], HEADS, name=f"{name}, repeated for each head")

    def lower(self, x: Tensor) -> Tensor:
        """What autocast makes of the input of a product."""
        return self.paper.cast(x, self.dtype) if self.setup.precision.uses_autocast else x

    def fused_core(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """One kernel; it keeps its inputs, its output and the log-sum-exp of every row of scores."""
        b, a, s, d = self.setup.micro_batch_size, self.model.num_heads, self.setup.seq_len, self.model.head_dim
        inputs = [self.lower(x) for x in (q, k, v)]
        value_bytes = dtype_bits(inputs[0].dtype) // 8
        if self.kernel == "flash":
            extra = [("log-sum-exp", "b a s", "float32")]
            stages = flash_backward_buffers(b, a, k.count // (b * s * d), s, d, value_bytes)
        else:
            extra = [("log-sum-exp", "b a s↑32", "float32")] * any(x.source for x in inputs)  # for a backward alone
            stages = efficient_backward_buffers(b, a, s, d, value_bytes)
        if self.kernel == "flash" and self.is_cuda:  # the efficient kernel's seed and offset are on the host
            extra += [("random number state", "2", "int64"), ("unused seed", "", "int64")]
        return self.paper.run(
            "attention", inputs, "b s ad", name="attention output", by=self.kernel, keeps=inputs, extra=extra,
            out_kept_by=self.names_core_output,  # the projection keeps it too, and a ledger names that
            scratch_bytes=self.highest(stages), flops=2 * self.core_flops,
        )

    def stored_core(self, q: Tensor, k: Tensor, v: Tensor, shared: dict[str, Tensor]) -> Tensor:
        """softmax(q kᵀ / √d) v, each intermediate result a tensor."""
        scores = self.scores(self.paper.run("mul", [q], HEADS, name="query, scaled"), k)
        scores = self.paper.run("masked_fill", [scores], SCORES, keeps=[shared["causal mask"]])
        weights = self.dropout(self.softmax("softmax", scores, "softmax output"), "softmax")
        narrow = self.paper.cast(weights, scores.dtype)
        if narrow is not weights:
            self.paper.rename(narrow, f"attention weights, cast to {narrow.dtype}")
        factors = [narrow, self.for_bmm(self.lower(v), "value", self.is_grouped)]
        return self.paper.rename(self.bmm(factors, HEADS, "weighted sum"), "attention output")

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """q kᵀ."""
        left, right = self.lower(q), self.lower(k)
        left, right = self.for_bmm(left, q.storage.block.name), self.for_bmm(right, "key", self.is_grouped)
        return self.bmm([left, right], SCORES, "scores")

    def bmm(self, factors: list[Tensor], axes: str, name: str) -> Tensor:
        """A product for every head of every sequence."""
        return self.paper.run("bmm", factors, axes, name=name, keeps=factors, flops=self.core_flops)

    def for_bmm(self, x: Tensor, name: str, is_together: bool = False) -> Tensor:
        """x as a bmm reads it: a copy, unless its heads lie together already, as those of one token do."""
        is_whole = x.num_bytes == x.storage.block.asked_bytes
        if not self.copies_heads or is_together or (self.setup.seq_len == 1 and is_whole):
            return self.paper.view("view", x)
        copied = f"{name}, copied for bmm" if name in PROJECTIONS else name
        return self.paper.run("clone", [x], HEADS, name=copied, ways=(SAME,))
