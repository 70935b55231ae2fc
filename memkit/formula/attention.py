"""Attention as operations on a tape: projections, rotation, and the core in the form that the device's kernel has.

Most of the small lines here are layout. A projection gives [b, s, a·d], the core wants [b, a, s, d]. Seen as
a view that costs nothing, but a batched matrix product (bmm) wants [b·a, s, d] in one piece, and then it is a
copy.
"""

from memkit.formats.dtypes import dtype_bits
from memkit.formula.activations import attention_kernel
from memkit.formula.kernels import efficient_backward_buffers, flash_backward_buffers
from memkit.formula.layers import LayerSchedule
from memkit.formula.tape import NEW, SAME, Value
from memkit.units import round_up


class AttentionSchedule(LayerSchedule):
    """Writes an attention layer on the tape."""

    tables: dict[str, Value]  # what all blocks share: the causal mask, the rotary tables

    @property
    def kernel(self) -> str:
        """``stored``, ``flash``, ``efficient`` or ``math``."""
        return attention_kernel(self.setup)

    @property
    def copies_heads(self) -> bool:
        """Whether [b, s, a, d] has to be copied to become [b·a, s, d]."""
        return min(self.setup.micro_batch_size, self.model.num_heads) > 1

    @property
    def padded_head_dim(self) -> int:
        """The size of a head as the kernel sees it: CUDA's flash kernel wants multiples of 8."""
        pads = self.kernel == "flash" and self.is_cuda
        return round_up(self.model.head_dim, 8) if pads else self.model.head_dim

    @property
    def is_by_heads(self) -> bool:
        """Whether the core's result, and the gradients that leave it, lie in memory as [b, a, s, d]."""
        return self.kernel in ("stored", "math") or self.padded_head_dim != self.model.head_dim

    def attention(self, n: Value) -> Value:
        """Projections, rotation, core, output projection."""
        tape, model = self.tape, self.model
        widths = {"query": model.query_size, "key": model.kv_size, "value": model.kv_size}
        if model.fuses_qkv:
            fused = self.linear(n, "attention.qkv", sum(widths.values()))
            projected = tape.split("split", fused, [self.num_tokens * width for width in widths.values()])
            tape.drop(fused)
        else:
            projected = [self.linear(n, f"attention.{name}", width) for name, width in widths.items()]
        q, k, v = (
            self.as_heads(x, num_heads)
            for x, num_heads in zip(projected, (model.num_heads, model.num_kv_heads, model.num_kv_heads), strict=True)
        )
        if model.position == "rotary":
            flat = q, k
            q, k = self.rotate(q), self.rotate(k)
            tape.drop(*flat)
        if self.setup.recomputation == "selective":
            y = tape.checkpoint(self.core, q, k, v, *self.tables.values())
        else:
            y = self.core(q, k, v)
        merged = self.merge_heads(y)
        out = self.linear(merged, "attention.output", model.hidden_size)
        tape.drop(merged, y, q, k, v, *projected)
        return out

    def as_heads(self, x: Value, num_heads: int) -> Value:
        """A view [b, a, s, d]. A gradient that lies in memory in that order is copied back to [b, s, a·d]."""
        is_copied = self.is_by_heads and num_heads > 1
        return self.tape.run("as heads", [x], None, modes=(NEW if is_copied else SAME,))

    def merge_heads(self, y: Value) -> Value:
        """[b, a, s, d] to [b, s, a·d]: a copy behind a bmm or padding, a view behind a fused kernel."""
        if not self.is_by_heads or self.model.num_heads == 1:
            return self.tape.run("merge", [y], None, modes=(SAME,))
        is_copied_back = self.copies_heads and self.kernel in ("stored", "math")  # for the bmm of the backward
        return self.tape.run("merge", [y], y.count, y.dtype, modes=(NEW if is_copied_back else SAME,))

    def rotate(self, x: Value) -> Value:
        """x · cos + (-right, left) · sin; kept: the two tables."""
        tape, tables = self.tape, self.tables
        left, right = tape.split("chunk", x, [x.count // 2] * 2)
        straight = tape.run("mul", [x], x.count, x.dtype, keeps=[tables["cos"]])
        negative = tape.run("neg", [right], right.count, x.dtype)
        crossed = tape.run("cat", [negative, left], x.count, x.dtype, modes=(SAME, SAME))
        tape.drop(negative)
        turned = tape.run("mul", [crossed], x.count, x.dtype, keeps=[tables["sin"]])
        tape.drop(crossed)
        out = tape.run("add", [straight, turned], x.count, x.dtype, modes=(SAME, SAME))
        tape.drop(straight, turned, left, right)
        return out

    def core(self, q: Value, k: Value, v: Value, *_: Value) -> Value:
        """Scores, softmax and weighted sum."""
        has_groups = self.model.num_heads > self.model.num_kv_heads
        if self.kernel == "math":
            return self.math_core(q, k, v, has_groups)
        repeats = has_groups and self.kernel != "flash"
        if repeats:
            k, v = self.repeat(k, q), self.repeat(v, q)
        out = self.stored_core(q, k, v, repeats) if self.kernel == "stored" else self.fused_core(q, k, v)
        if repeats:
            self.tape.drop(k, v)
        return out

    def repeat(self, x: Value, q: Value) -> Value:
        """Keys or values once for every query head."""
        return self.tape.run("repeat", [x], q.count, x.dtype)

    def fused_core(self, q: Value, k: Value, v: Value) -> Value:
        """One kernel; it keeps its inputs, its output and the log-sum-exp of every row of scores."""
        tape, model, setup = self.tape, self.model, self.setup
        is_flash, head_dim = self.kernel == "flash", model.head_dim
        padded = self.padded_head_dim
        b, a, s = setup.micro_batch_size, model.num_heads, setup.seq_len
        extra = [(b * a * (s if is_flash else round_up(s, 32)), "float32")]
        if is_flash and self.is_cuda:
            extra += [(2, "int64"), (1, "int64")]  # the state of the random numbers
        value_bytes = dtype_bits(q.dtype) // 8
        if is_flash:
            stages = flash_backward_buffers(b, a, model.num_kv_heads, s, padded, value_bytes)
        else:
            stages = efficient_backward_buffers(b, a, s, head_dim, value_bytes)
        inputs = [q, k, v]
        if padded != head_dim:
            inputs = [tape.run("pad", [x], x.count // head_dim * padded, x.dtype) for x in inputs]
        out = tape.run(
            self.kernel, inputs, inputs[0].count, q.dtype, keeps=inputs, keeps_out=True, extra=extra,
            scratch_bytes=self.highest(stages),
        )  # fmt: skip
        if padded == head_dim:
            return out
        tape.drop(*inputs)
        (narrow,) = tape.split("slice", out, [q.count])
        tape.drop(out)
        return narrow

    def stored_core(self, q: Value, k: Value, v: Value, is_repeated: bool) -> Value:
        """softmax(q kᵀ / √d) v, each intermediate result a tensor."""
        tape, num_scores = self.tape, self.num_scores
        scaled = tape.run("1/√d ·", [q], q.count, q.dtype)
        left, right = self.for_bmm(scaled), self.for_bmm(k, is_repeated)
        scores = tape.run("bmm", [left, right], num_scores, q.dtype, keeps=[left, right])
        tape.drop(scaled, left, right)
        masked = tape.run("masked_fill", [scores], num_scores, q.dtype, keeps=[self.tables["mask"]])
        tape.drop(scores)
        weights = self.dropout(self.softmax("softmax", masked))
        narrow, right = tape.cast(weights, q.dtype), self.for_bmm(v, is_repeated)
        out = tape.run("bmm", [narrow, right], q.count, q.dtype, keeps=[narrow, right])
        tape.drop(narrow, right, weights, masked)
        return out

    def math_core(self, q: Value, k: Value, v: Value, has_groups: bool) -> Value:
        """PyTorch's own composite, in float32, which a CPU takes where its kernel cannot: with dropout."""
        tape, num_scores = self.tape, self.num_scores
        casts = [tape.cast(x, "float32") for x in (q, k, v)]
        wide_q, wide_k, wide_v = casts
        scaled = tape.run("√scale ·", [wide_q], q.count, "float32")
        mask = tape.make(self.setup.seq_len**2, "float32")
        if has_groups:
            wide_k, wide_v = self.repeat(wide_k, q), self.repeat(wide_v, q)
        scaled_k = tape.run("√scale ·", [wide_k], q.count, "float32")
        left, right = self.for_bmm(scaled), self.for_bmm(scaled_k, has_groups)
        scores = tape.run("bmm", [left, right], num_scores, "float32", keeps=[left, right])
        tape.drop(left, right, scaled_k)
        weights = self.softmax("softmax", scores)
        tape.drop(scores)
        weights = self.dropout(weights)
        returned = tape.make(num_scores, q.dtype) if q.dtype != "float32" else mask  # a second result, not used
        right = self.for_bmm(wide_v, has_groups)
        product = tape.run("bmm", [weights, right], q.count, "float32", keeps=[weights, right])
        out = tape.cast(product, q.dtype)
        if out is not product:
            tape.drop(product)
        named = (right, weights, scaled, mask, returned, wide_k, wide_v, *casts)
        tape.drop(*(value for value in named if value not in (q, k, v)))
        return out

    @property
    def num_scores(self) -> int:
        """Scores of a micro-batch: b · a · s²."""
        return self.setup.micro_batch_size * self.model.num_heads * self.setup.seq_len**2

    def for_bmm(self, x: Value, is_together: bool = False) -> Value:
        """x as a bmm reads it: a copy, unless its heads lie together already."""
        if self.copies_heads and not is_together:
            return self.tape.run("copy", [x], x.count, x.dtype, modes=(SAME,))
        return self.tape.run("view", [x], None, modes=(SAME,))
