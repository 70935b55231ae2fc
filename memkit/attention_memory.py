"""What attention keeps for the backward: s × s weights for every head, or a fused kernel's few numbers.

Every way keeps query, key and value. Written out, attention also keeps the weights of every head, so its
memory grows with the square of the sequence. The fused kernels keep one float32 number per query and head in
their place, the log-sum-exp, and compute the weights again in the backward.
"""

from dataclasses import replace

from memkit.ledger import Kept, distinct, kept
from memkit.training import TrainingSetup


def attention_kernel(setup: TrainingSetup) -> str:
    """The kernel that runs: ``stored``, ``flash``, ``efficient`` or ``math``.

    CUDA's flash kernel has no float32 and no head above 256: PyTorch takes the memory-efficient one. The CPU's
    flash kernel has no dropout: PyTorch takes its math path, which computes in float32 whatever the model's dtype.
    """
    if setup.uses_efficient_kernel:
        return "efficient"
    if setup.attention == "flash" and setup.device == "cpu" and setup.dropout:
        return "math"
    return setup.attention


def mask_dtype(setup: TrainingSetup, dtype: str) -> str:
    """The dtype of a dropout mask: one byte a value on CUDA, a factor in the input's ``dtype`` on the CPU."""
    return "bool" if setup.device == "cuda" else dtype


def core_inputs(setup: TrainingSetup) -> dict[str, Kept]:
    """Query, key and value as the attention core receives them; views of one storage are equal lines."""
    model, dtype = setup.model, setup.precision.compute_dtype
    fused = kept(setup, "query, key and value, one storage", "attention", "b s (a+2k)d", dtype)
    inputs = {
        "query": kept(setup, "query", "attention", "b s ad", dtype),
        "key": kept(setup, "key", "attention", "b s kd", dtype),
        "value": kept(setup, "value", "attention", "b s kd", dtype),
    }
    if model.fuses_qkv:
        inputs["value"] = fused
    if model.position == "rotary":
        inputs["query"] = replace(inputs["query"], name="rotated query")
        inputs["key"] = replace(inputs["key"], name="rotated key")
    elif model.fuses_qkv:
        inputs["query"] = inputs["key"] = fused
    return inputs


def core_ledger(setup: TrainingSetup) -> tuple[Kept, ...]:
    """What stays between the qkv projection and the output projection, the latter's input included.

    With selective recomputation the core's inputs and its output stay: the core runs again in the backward.
    """
    inputs = core_inputs(setup)
    kernel = attention_kernel(setup)
    if setup.recomputation == "selective":
        lines = distinct(replace(line, op="checkpoint") for line in inputs.values())
    elif kernel == "stored":
        lines = _stored(setup, inputs)
    elif kernel == "math":
        lines = _math(setup, inputs)
    else:
        lines = _fused(setup, inputs, kernel)
    return tuple(replace(line, section="attention") for line in (*lines, _output(setup)))


def _batched_heads(setup: TrainingSetup, inputs: dict[str, Kept], name: str) -> Kept:
    """Key or value as the batched matrix product (bmm) reads it: [b·a, s, d].

    With b > 1 and a > 1 a part of the fused qkv tensor must be copied into that shape. With b = 1 or a = 1
    reshape returns a view, and the view keeps the whole of query, key and value alive.
    """
    model, dtype = setup.model, setup.precision.compute_dtype
    is_view = inputs[name].axes == "b s (a+2k)d"
    if model.num_heads > model.num_kv_heads:
        return kept(setup, f"{name}, repeated for each head", "bmm", "b a s d", dtype)
    if is_view and min(setup.micro_batch_size, model.num_heads) > 1:
        return kept(setup, f"{name}, copied for bmm", "bmm", "b a s d", dtype)
    return replace(inputs[name], op="bmm")


def _stored(setup: TrainingSetup, inputs: dict[str, Kept]) -> tuple[Kept, ...]:
    dtype = setup.precision.compute_dtype
    is_wide = setup.precision.uses_autocast and setup.device == "cuda"  # it runs softmax in float32
    softmax_dtype = "float32" if is_wide else dtype
    also = "" if is_wide or setup.dropout else "bmm"
    lines = [
        kept(setup, "query, scaled", "bmm", "b a s d", dtype),
        _batched_heads(setup, inputs, "key"),
        _batched_heads(setup, inputs, "value"),
        kept(setup, "softmax output", "softmax", "b a s s", softmax_dtype, shared_with=also),
    ]
    if setup.dropout:
        mask = mask_dtype(setup, softmax_dtype)
        lines.append(kept(setup, "softmax dropout mask", "dropout", "b a s s", mask))
    if is_wide:
        lines.append(kept(setup, f"attention weights, cast to {dtype}", "bmm", "b a s s", dtype))
    elif setup.dropout:
        lines.append(kept(setup, "softmax dropout output", "bmm", "b a s s", dtype))
    return distinct(lines)


def _math(setup: TrainingSetup, inputs: dict[str, Kept]) -> tuple[Kept, ...]:
    value = kept(setup, "value, float32", "bmm", "b a s d", "float32")
    if setup.precision.compute_dtype == "float32":
        value = _batched_heads(setup, inputs, "value")
    return (
        kept(setup, "query, scaled, float32", "bmm", "b a s d", "float32"),
        kept(setup, "key, scaled, float32", "bmm", "b a s d", "float32"),
        value,
        kept(setup, "softmax output", "softmax", "b a s s", "float32"),
        kept(setup, "softmax dropout mask", "dropout", "b a s s", "float32"),
        kept(setup, "softmax dropout output", "bmm", "b a s s", "float32"),
    )


def _fused(setup: TrainingSetup, inputs: dict[str, Kept], kernel: str) -> tuple[Kept, ...]:
    model, dtype = setup.model, setup.precision.compute_dtype
    lines = dict(inputs)
    if kernel == "efficient" and model.num_heads > model.num_kv_heads:
        for name in ("key", "value"):
            lines[name] = kept(setup, f"{name}, repeated for each head", kernel, "b a s d", dtype)
    if _pads_heads(setup):
        for name, heads in (("query", "a"), ("key", "k"), ("value", "k")):
            lines[name] = kept(setup, f"{name}, padded", kernel, f"b {heads} s d↑8", dtype)
        if model.num_heads > 1:
            lines["output"] = kept(setup, "output, padded", kernel, "b a s d↑8", dtype)
    rows = "s↑32" if kernel == "efficient" else "s"
    own = [kept(setup, "log-sum-exp", kernel, f"b a {rows}", "float32")]
    if setup.device == "cuda" and kernel == "flash":  # the efficient kernel's seed and offset are on the host
        own.append(kept(setup, "random number state", kernel, "2", "int64"))
        own.append(kept(setup, "unused seed", kernel, "", "int64"))
    return distinct([*(replace(line, op=kernel) for line in lines.values()), *own])


def _pads_heads(setup: TrainingSetup) -> bool:
    """CUDA's flash kernel wants head sizes that are multiples of 8; PyTorch pads others, and cuts the output."""
    return setup.device == "cuda" and attention_kernel(setup) == "flash" and setup.model.head_dim % 8 != 0


def _output(setup: TrainingSetup) -> Kept:
    dtype = setup.precision.compute_dtype
    if _pads_heads(setup) and setup.model.num_heads == 1:  # one head's output is a view of the padded one
        return kept(setup, "attention output, padded", "linear", "b a s d↑8", dtype)
    return kept(setup, "attention output", "linear", "b s ad", dtype)
