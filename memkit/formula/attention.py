"""Attention as operations on a tape: projections, rotation, and the core in the form that the device's kernel has.

Attention keeps query, key and value whichever way it is computed. Written out it also keeps the weights of
every head, so its memory grows with the square of the sequence. The fused kernels keep one float32 number per
query and head in their place, the log-sum-exp, and compute the weights again in the backward.

Most of the small lines here are layout. A projection gives [b, s, a·d], the core wants [b, a, s, d]. Seen as
a view that costs nothing, but a batched matrix product (bmm) wants [b·a, s, d] in one piece, and then it is a
copy.
"""

from memkit.formats.dtypes import dtype_bits
from memkit.formula.kernels import efficient_backward_buffers, flash_backward_buffers
from memkit.formula.layers import Page, dropout, linear, softmax
from memkit.formula.tape import NEW, SAME, Value
from memkit.setup.training import TrainingSetup
from memkit.units import round_up

HEADS, SCORES = "b a s d", "b a s s"
PROJECTIONS = {"query": "ad", "key": "kd", "value": "kd"}


def attention_kernel(setup: TrainingSetup) -> str:
    """The kernel that runs: ``stored``, ``flash``, ``efficient`` or ``math``.

    CUDA's flash kernel has no float32 and no head above 256: PyTorch takes the memory-efficient one. The
    CPU's flash kernel has no dropout: PyTorch takes its math path, which computes in float32 whatever the
    model's dtype.
    """
    if setup.uses_efficient_kernel:
        return "efficient"
    if setup.attention == "flash" and setup.device == "cpu" and setup.dropout:
        return "math"
    return setup.attention


def copies_heads(page: Page) -> bool:
    """Whether [b, s, a, d] has to be copied to become [b·a, s, d]."""
    return min(page.setup.micro_batch_size, page.model.num_heads) > 1


def has_one_order(page: Page) -> bool:
    """Whether [b, a, s, d] and [b, s, a, d] are the same order: a sequence of one token."""
    return page.setup.seq_len == 1


def pads_heads(page: Page) -> bool:
    """CUDA's flash kernel wants head sizes that are multiples of 8; PyTorch pads others, and cuts the output."""
    return page.is_cuda and attention_kernel(page.setup) == "flash" and page.model.head_dim % 8 != 0


def is_by_heads(page: Page) -> bool:
    """Whether the core's result, and the gradients that leave it, lie in memory as [b, a, s, d]."""
    return attention_kernel(page.setup) in ("stored", "math") or pads_heads(page)


def attend(page: Page, n: Value) -> Value:
    """Projections, rotation, core, output projection."""
    tape, model, strategy = page.tape, page.model, page.setup.recomputation
    page.enter("attention")
    if "attention.qkv.weight" in page.parameters:
        fused = linear(page, n, "attention.qkv", "query, key and value")
        tape.rename(fused, "query, key and value, one storage")
        projected = tape.split("split", fused, [f"b s {width}" for width in PROJECTIONS.values()])
        tape.drop(fused)
    else:
        projected = [linear(page, n, f"attention.{name}") for name in PROJECTIONS]
    q, k, v = (
        as_heads(page, x, num_heads)
        for x, num_heads in zip(projected, (model.num_heads, model.num_kv_heads, model.num_kv_heads), strict=True)
    )
    if model.position == "rotary":
        flat = q, k
        q, k = rotate(page, q, "rotated query"), rotate(page, k, "rotated key")
        tape.drop(*flat)
    if strategy.scope == "core":
        run = lambda *given: core(page, *given)
        y = tape.checkpoint(run, q, k, v, *page.tables.values(), stops_early=strategy.stops_early)
    else:
        y = core(page, q, k, v)
    merged = merge_heads(page, y)
    out = linear(page, merged, "attention.output")
    tape.drop(merged, y, q, k, v, *projected)
    return out


def as_heads(page: Page, x: Value, num_heads: int) -> Value:
    """A view [b, a, s, d]. A gradient that lies in memory in that order is copied back to [b, s, a·d]."""
    is_copied = is_by_heads(page) and num_heads > 1 and not has_one_order(page)
    return page.tape.run("transpose", [x], None, modes=(NEW if is_copied else SAME,))


def merge_heads(page: Page, y: Value) -> Value:
    """[b, a, s, d] to [b, s, a·d]: a copy behind a bmm or padding, a view behind a fused kernel."""
    if not is_by_heads(page) or page.model.num_heads == 1 or (has_one_order(page) and not pads_heads(page)):
        return page.tape.run("view", [y], None, modes=(SAME,))
    # a gradient in the order of the bmm of the backward is copied
    is_copied_back = copies_heads(page) and attention_kernel(page.setup) in ("stored", "math")
    mode = NEW if is_copied_back else SAME
    return page.tape.run("clone", [y], "b s ad", y.dtype, name="attention output", modes=(mode,))


def rotate(page: Page, x: Value, name: str) -> Value:
    """x · cos + (-right, left) · sin; kept: the two tables."""
    tape, tables = page.tape, page.tables
    left, right = tape.split("chunk", x, [f"{x.axes}/2"] * 2)
    straight = tape.run("mul", [x], x.axes, x.dtype, keeps=[tables["cosines"]])
    negative = tape.run("neg", [right], right.axes, x.dtype)
    crossed = tape.run("cat", [negative, left], x.axes, x.dtype, modes=(SAME, SAME))
    tape.drop(negative)
    turned = tape.run("mul", [crossed], x.axes, x.dtype, keeps=[tables["sines"]])
    tape.drop(crossed)
    out = tape.run("add", [straight, turned], x.axes, x.dtype, name=name, modes=(SAME, SAME))
    tape.drop(straight, turned, left, right)
    return out


def core(page: Page, q: Value, k: Value, v: Value, *_: Value) -> Value:
    """Scores, softmax and weighted sum."""
    kernel, has_groups = attention_kernel(page.setup), page.model.num_heads > page.model.num_kv_heads
    if kernel == "math":
        return math_core(page, q, k, v, has_groups)
    repeats = has_groups and kernel != "flash"
    if repeats:
        k, v = repeat(page, k, "key"), repeat(page, v, "value")
    out = stored_core(page, q, k, v, repeats) if kernel == "stored" else fused_core(page, q, k, v, kernel)
    if repeats:
        page.tape.drop(k, v)
    return out


def repeat(page: Page, x: Value, name: str) -> Value:
    """Keys or values once for every query head."""
    return page.tape.run("repeat", [x], HEADS, x.dtype, name=f"{name}, repeated for each head")


def fused_core(page: Page, q: Value, k: Value, v: Value, kernel: str) -> Value:
    """One kernel; it keeps its inputs, its output and the log-sum-exp of every row of scores."""
    tape, model, setup = page.tape, page.model, page.setup
    b, a, s, d = setup.micro_batch_size, model.num_heads, setup.seq_len, model.head_dim
    value_bytes = dtype_bits(q.dtype) // 8
    extra = [("log-sum-exp", "b a s" if kernel == "flash" else "b a s↑32", "float32")]
    if kernel == "flash":
        stages = flash_backward_buffers(b, a, model.num_kv_heads, s, round_up(d, 8), value_bytes)
    else:
        stages = efficient_backward_buffers(b, a, s, d, value_bytes)
    if kernel == "flash" and page.is_cuda:  # the efficient kernel's seed and offset are on the host
        extra += [("random number state", "2", "int64"), ("unused seed", "", "int64")]
    inputs, name, axes = [q, k, v], "attention output", "b s ad"
    if pads_heads(page):
        heads, name, axes = (("query", "a"), ("key", "k"), ("value", "k")), "output, padded", "b a s d↑8"
        inputs = [
            tape.run("pad", [x], f"b {letter} s d↑8", x.dtype, name=f"{what}, padded")
            for x, (what, letter) in zip(inputs, heads, strict=True)
        ]
    out = tape.run(
        "attention", inputs, axes, q.dtype, name=name, by=kernel, keeps=inputs, keeps_out=True, extra=extra,
        out_by=kernel if pads_heads(page) else "",  # the projection keeps it too, and the ledger names that one
        scratch_bytes=page.highest(stages), flops=2 * product_flops(page),
    )  # fmt: skip
    if not pads_heads(page):
        return out
    tape.drop(*inputs)
    (narrow,) = tape.split("slice", out, [HEADS])
    tape.drop(out)
    return narrow


def product_flops(page: Page) -> int:
    """FLOPs of one of the core's two products, the scores or the weighted sum."""
    return 2 * page.tape.count(SCORES) * page.model.head_dim


def stored_core(page: Page, q: Value, k: Value, v: Value, is_repeated: bool) -> Value:
    """softmax(q kᵀ / √d) v, each intermediate result a tensor."""
    tape, flops = page.tape, product_flops(page)
    scaled = tape.run("mul", [q], HEADS, q.dtype, name="query, scaled")
    left, right = for_bmm(page, scaled, "query, scaled"), for_bmm(page, k, "key", is_repeated)
    scores = tape.run("bmm", [left, right], SCORES, q.dtype, name="scores", keeps=[left, right], flops=flops)
    tape.drop(scaled, left, right)
    masked = tape.run("masked_fill", [scores], SCORES, q.dtype, keeps=[page.tables["causal mask"]])
    tape.drop(scores)
    weights = dropout(page, softmax(page, "softmax", masked, "softmax output"), "softmax")
    narrow, right = tape.cast(weights, q.dtype), for_bmm(page, v, "value", is_repeated)
    if narrow is not weights:
        tape.rename(narrow, f"attention weights, cast to {q.dtype}")
    out = tape.run("bmm", [narrow, right], HEADS, q.dtype, name="weighted sum", keeps=[narrow, right], flops=flops)
    tape.drop(narrow, right, weights, masked)
    return tape.rename(out, "attention output")


def math_core(page: Page, q: Value, k: Value, v: Value, has_groups: bool) -> Value:
    """PyTorch's own composite, in float32, which a CPU takes where its kernel cannot: with dropout."""
    tape, wide, flops = page.tape, "float32", product_flops(page)
    casts = [tape.cast(x, wide) for x in (q, k, v)]
    wide_q, wide_k, wide_v = casts
    scaled = tape.run("mul", [wide_q], HEADS, wide, name="query, scaled, float32")
    mask = tape.make("s s", wide)
    if has_groups:
        wide_k, wide_v = repeat(page, wide_k, "key"), repeat(page, wide_v, "value")
    scaled_k = tape.run("mul", [wide_k], HEADS, wide, name="key, scaled, float32")
    left = for_bmm(page, scaled, "query, scaled, float32")
    right = for_bmm(page, scaled_k, "key, scaled, float32", has_groups)
    scores = tape.run("bmm", [left, right], SCORES, wide, name="scores", keeps=[left, right], flops=flops)
    tape.drop(left, right, scaled_k)
    weights = softmax(page, "softmax", scores, "softmax output")
    tape.drop(scores)
    weights = dropout(page, weights, "softmax")
    returned = tape.make(SCORES, q.dtype) if q.dtype != wide else mask  # a second result, not used
    right = for_bmm(page, wide_v, "value" if q.dtype == wide else "value, float32", has_groups)
    product = tape.run("bmm", [weights, right], HEADS, wide, name="weighted sum", keeps=[weights, right], flops=flops)
    out = tape.cast(product, q.dtype)
    if out is not product:
        tape.drop(product)
    named = (right, weights, scaled, mask, returned, wide_k, wide_v, *casts)
    tape.drop(*(value for value in named if value not in (q, k, v)))
    return tape.rename(out, "attention output")


def for_bmm(page: Page, x: Value, name: str, is_together: bool = False) -> Value:
    """x as a bmm reads it: a copy, unless its heads lie together already."""
    is_whole = x.num_bytes == x.storage.asked_bytes
    if not copies_heads(page) or is_together or (has_one_order(page) and is_whole):
        return page.tape.run("view", [x], None, modes=(SAME,))
    copied = f"{name}, copied for bmm" if name in PROJECTIONS else name
    return page.tape.run("clone", [x], HEADS, x.dtype, name=copied, modes=(SAME,))
