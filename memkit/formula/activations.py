"""Activations: what the forward of ``memkit.program.transformer`` leaves for the backward, tensor by tensor.

A formula for activation memory is a sum over tensors, and this module writes the sum out: every coefficient
is made of named lines. Which tensors autograd keeps depends on the device. CUDA's autocast runs softmax in
float32, its dropout keeps one byte a value, its RMSNorm is one kernel; the CPU does otherwise.
``setup.device`` says which.

Autocast costs memory in three ways. The residual stream stays float32. Every linear layer casts its input for
itself, so query, key and value keep three copies of one tensor. And the casts of the weights stay until the
backward: they are no activations, ``autocast_casts`` gives them apart.

Attention keeps query, key and value whichever way it is computed. Written out it also keeps the weights of
every head, so its memory grows with the square of the sequence. The fused kernels keep one float32 number per
query and head in their place, the log-sum-exp, and compute the weights again in the backward.

Not counted: numbers that Python hands to an operation (8 B of host memory each), such as the 1/√d of
attention.
"""

from dataclasses import replace

from memkit.formula.ledger import Kept, Ledger, distinct, kept
from memkit.setup.training import TrainingSetup
from memkit.units import as_kind


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

COMPUTE_DTYPES = ("float32", "bfloat16", "float16")


def block_ledger(setup: TrainingSetup) -> Ledger:
    """What one transformer block keeps from forward to backward, its recomputation taken into account.

    >>> from memkit.setup.models import GPT2_LARGE
    >>> from memkit.setup.recipes import PURE_BF16
    >>> setup = TrainingSetup(
    ...     model=GPT2_LARGE, precision=PURE_BF16, micro_batch_size=8, attention="stored", dropout=0.1
    ... )
    >>> round(block_ledger(setup).per_sbh)  # 34 + 5as/h of Korthikanti et al. 2022
    114
    """
    as_kind("setup", setup, TrainingSetup)
    _check(setup)
    model, precision = setup.model, setup.precision
    if setup.recomputation == "full":
        residual = precision.weight_dtype
        lines = [kept(setup, "block input", "checkpoint", "b s h", residual, section="checkpoint")]
    else:
        lines = [
            *norm_lines(setup, "norm 1"),
            *linear_inputs(setup, "norm 1 output", 1 if model.fuses_qkv else 3, "attention"),
            *core_ledger(setup),
            *dropout_mask(setup, "attention dropout mask", "attention"),
            *norm_lines(setup, "norm 2"),
            *linear_inputs(setup, "norm 2 output", 2 if model.mlp == "swiglu" else 1, "mlp"),
            *mlp_lines(setup),
            *dropout_mask(setup, "mlp dropout mask", "mlp"),
        ]
    if setup.recomputation != "none" and setup.device == "cpu":  # it is in the host's memory
        lines.append(kept(setup, "random number state", "checkpoint", "5056", "uint8", section="checkpoint"))
    return _ledger(setup, "one block", lines)


def outside_ledger(setup: TrainingSetup) -> Ledger:
    """What stays outside the blocks: token ids, the tables that all blocks share, final norm, head and
    loss."""
    _check(setup)
    precision, model = setup.precision, setup.model
    loss_dtype = "float32" if precision.uses_autocast or setup.upcasts_logits else precision.compute_dtype
    lines = [kept(setup, "token ids", "token embedding", "b s", "int64", section="embedding")]
    if model.position == "learned":
        lines.append(kept(setup, "positions", "position embedding", "s", "int64", section="embedding"))
    if setup.dropout:
        mask = mask_dtype(setup, precision.weight_dtype)
        lines.append(kept(setup, "embedding dropout mask", "dropout", "b s h", mask, section="embedding"))
    if model.position == "rotary":
        for name in ("cosines", "sines"):
            lines.append(kept(setup, name, "every block", "s d", precision.compute_dtype, section="shared"))
    if setup.attention == "stored":
        lines.append(kept(setup, "causal mask", "every block", "s s", "bool", section="shared"))
    lines += [
        *norm_lines(setup, "final norm"),
        *linear_inputs(setup, "final norm output", 1, "head"),
        kept(setup, "log-probabilities", "log_softmax", "b s v", loss_dtype, section="loss"),
        kept(setup, "target ids", "nll_loss", "b s", "int64", section="loss"),
        kept(setup, "number of targets", "nll_loss", "", loss_dtype, section="loss"),
        kept(setup, "loss", "the training loop", "", loss_dtype, section="loss"),
        kept(setup, "gradient of the loss, 1", "backward()", "", loss_dtype, section="loss"),
    ]
    return _ledger(setup, "outside the blocks", lines)


def activation_ledger(setup: TrainingSetup) -> Ledger:
    """All that one micro-batch's forward has left when the backward starts: every block and the outside."""
    blocks = block_ledger(setup).times(setup.model.num_layers)
    return _ledger(setup, "activations", [*blocks.lines, *outside_ledger(setup).lines])


def activation_bytes(setup: TrainingSetup) -> int:
    """Bytes of activations in memory when the backward starts, L · block + outside, as the device rounds
    them.

    >>> from memkit.setup.models import LLAMA_3_8B
    >>> from memkit.setup.recipes import PURE_BF16
    >>> activation_bytes(TrainingSetup(model=LLAMA_3_8B, precision=PURE_BF16, seq_len=8192)) // 2**20  # MiB
    44154
    """
    return activation_ledger(as_kind("setup", setup, TrainingSetup)).held_bytes


def norm_lines(setup: TrainingSetup, name: str) -> list[Kept]:
    """What a norm keeps beside its output: its input (the residual stream) and a number or two per token."""
    dtype, is_cuda = setup.precision.weight_dtype, setup.device == "cuda"
    section = "final norm" if name == "final norm" else "norms"

    def line(what: str, op: str, axes: str, dtype: str) -> Kept:
        return kept(setup, f"{name} {what}", op, axes, dtype, section=section)

    if setup.model.norm == "layernorm":
        statistics = "float32" if is_cuda else dtype
        return [
            line("input", "layer_norm", "b s h", dtype),
            line("mean", "layer_norm", "b s 1", statistics),
            line("1/deviation", "layer_norm", "b s 1", statistics),
        ]
    if setup.uses_fused_norm and is_cuda:
        return [line("input", "rms_norm", "b s h", dtype), line("1/rms", "rms_norm", "b s 1", "float32")]
    # Several operations, on a float32 copy of the input unless it is float32 already.
    normalised = "float32" if setup.uses_fused_norm else dtype  # PythonRMSNorm casts back before it scales
    return [
        line("input" if dtype == "float32" else "input, cast to float32", "pow, mul", "b s h", "float32"),
        line("1/rms", "rsqrt, mul", "b s 1", "float32"),
        line("normalised", "mul by the weight", "b s h", normalised),
    ]


def linear_inputs(setup: TrainingSetup, name: str, num_linears: int, section: str) -> list[Kept]:
    """The input that ``num_linears`` linear layers keep: one tensor, or under autocast one cast for each."""
    dtype, count = setup.precision.compute_dtype, 1
    if setup.precision.uses_autocast:
        name, count = f"{name}, cast to {dtype}", num_linears
    return [kept(setup, name, "linear", "b s h", dtype, section=section, count=count)]


def mlp_lines(setup: TrainingSetup) -> list[Kept]:
    """What lies between the MLP's linear layers, the input of the last one included."""
    dtype = setup.precision.compute_dtype

    def line(name: str, op: str, dtype: str = dtype) -> Kept:
        return kept(setup, name, op, "b s f", dtype, section="mlp")

    if setup.model.mlp == "swiglu":
        return [
            line("gate", "silu"),
            line("silu(gate)", "mul"),
            line("up", "mul"),
            line("silu(gate) · up", "linear"),
        ]
    if setup.uses_fused_gelu:
        return [line("GELU input", "gelu"), line("GELU output", "linear")]
    wide = dtype
    if setup.precision.uses_autocast and setup.device == "cuda":
        wide = "float32"  # CUDA's autocast runs pow in float32, and what follows it inherits that
    return [
        line("GELU input" if wide == dtype else "GELU input, cast to float32", "pow", wide),
        line("tanh", "tanh", wide),
        line("1 + tanh", "mul", wide),
        line("half the GELU input", "mul"),
        line("GELU output" if wide == dtype else f"GELU output, cast to {dtype}", "linear"),
    ]


def dropout_mask(setup: TrainingSetup, name: str, section: str) -> list[Kept]:
    """The mask that dropout after a linear layer keeps, if there is dropout."""
    if not setup.dropout:
        return []
    mask = mask_dtype(setup, setup.precision.compute_dtype)
    return [kept(setup, name, "dropout", "b s h", mask, section=section)]


def _ledger(setup: TrainingSetup, title: str, lines: list[Kept]) -> Ledger:
    sbh = setup.seq_len * setup.micro_batch_size * setup.model.hidden_size
    return Ledger(title=title, lines=tuple(lines), sbh=sbh, device=setup.device)


def _check(setup: TrainingSetup) -> None:
    compute, weights = setup.precision.compute_dtype, setup.precision.weight_dtype
    if compute not in COMPUTE_DTYPES:
        raise ValueError(f"compute_dtype={compute!r} is not one of {', '.join(COMPUTE_DTYPES)}")
    if setup.precision.uses_autocast and weights != "float32":
        raise ValueError(f"weight_dtype={weights!r} under autocast; only float32 is known there")


def autocast_casts(setup: TrainingSetup, phase: str = "backward") -> Ledger:
    """The low-precision copies of parameters that autocast makes: temporary, yet as long-lived as
    activations.

    ``phase="backward"``: the copies alive when the backward starts, one of each linear weight whose forward
    is not run again. ``phase="forward"``: the copies alive at the end of the autocast region. Its cache still
    holds one of each linear weight and bias, recomputed or not. A tied head is cast like any other,
    embeddings are not.

    Raises: ValueError: ``phase`` is another.
    """
    _check(setup)
    if phase not in ("forward", "backward"):
        raise ValueError(f"phase={phase!r} is not one of forward, backward")
    dtype, lines = setup.precision.compute_dtype, []
    blocks = {"section": "blocks", "count": setup.model.num_layers}
    if setup.precision.uses_autocast:
        for name, axes, has_bias in _block_linears(setup):
            if phase == "forward" or setup.recomputation != "full":
                lines.append(kept(setup, f"{name} weight", "linear", axes, dtype, **blocks))
            if phase == "forward" and has_bias:
                lines.append(kept(setup, f"{name} bias", "autocast cache", axes.split()[0], dtype, **blocks))
        lines.append(kept(setup, "head weight", "linear", "v h", dtype, section="head"))
    return _ledger(setup, f"casts by autocast, {phase}", lines)


def autocast_cast_bytes(setup: TrainingSetup) -> int:
    """Bytes of autocast's weight copies alive when the backward starts, two per weight; no activations."""
    return autocast_casts(setup).held_bytes


def _block_linears(setup: TrainingSetup) -> list[tuple[str, str, bool]]:
    model = setup.model
    qkv = [("query", "ad h"), ("key", "kd h"), ("value", "kd h")]
    if model.fuses_qkv:
        qkv = [("qkv", "(a+2k)d h")]
    gate = [("gate", "f h", model.has_mlp_bias)] if model.mlp == "swiglu" else []
    return [
        *((name, axes, model.has_qkv_bias) for name, axes in qkv),
        ("output", "h ad", model.has_output_bias),
        *gate,
        ("up", "f h", model.has_mlp_bias),
        ("down", "h f", model.has_mlp_bias),
    ]
