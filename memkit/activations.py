"""Activations: what the forward of ``memkit.transformer`` leaves in memory for the backward, tensor by tensor.

A formula for activation memory is a sum over tensors, and this module writes the sum out: no coefficient stands here
that is not a named line. Which tensors autograd keeps depends on the device. CUDA's autocast runs norms, softmax and
loss in float32, its dropout keeps one byte a value, its RMSNorm is one kernel; the CPU does otherwise. Setups say
which: ``device="cuda"`` or ``"cpu"``.

Under autocast three rules cost the most. The residual stream stays float32. Every linear layer casts its input to the
low precision for itself, so query, key and value keep three copies of one tensor. And the casts of the weights
themselves stay until the backward: they are no activations and are given apart, by ``autocast_casts``.
"""

from memkit.attention_memory import core_ledger, mask_dtype
from memkit.ledger import Kept, Ledger, kept
from memkit.training import TrainingSetup

COMPUTE_DTYPES = ("float32", "bfloat16", "float16")


def block_ledger(setup: TrainingSetup) -> Ledger:
    """What one transformer block keeps from forward to backward, its recomputation taken into account.

    >>> from memkit.models import GPT2_LARGE
    >>> from memkit.recipes import PURE_BF16
    >>> setup = TrainingSetup(model=GPT2_LARGE, precision=PURE_BF16, micro_batch_size=8, attention="stored", dropout=0.1)
    >>> round(block_ledger(setup).per_sbh)  # 34 + 5as/h of Korthikanti et al. 2022
    114
    """
    _check(setup)
    if setup.recomputation == "full":
        lines = [kept(setup, "block input", "checkpoint", "b s h", setup.precision.weight_dtype, section="checkpoint")]
    else:
        lines = [
            *norm_lines(setup, "norm 1"),
            *linear_inputs(setup, "norm 1 output", "b s h", 1 if setup.model.fuses_qkv else 3, "attention"),
            *core_ledger(setup),
            kept(setup, "attention output", "output linear", "b s ad", setup.precision.compute_dtype, section="attention"),
            *dropout_mask(setup, "attention dropout mask", "attention"),
            *norm_lines(setup, "norm 2"),
            *linear_inputs(setup, "norm 2 output", "b s h", 2 if setup.model.mlp == "swiglu" else 1, "mlp"),
            *mlp_lines(setup),
            *dropout_mask(setup, "mlp dropout mask", "mlp"),
        ]
    if setup.recomputation != "none" and setup.device == "cpu":  # on CUDA this state is in the host's memory, too
        lines.append(kept(setup, "random number state", "checkpoint", "5056", "uint8", section="checkpoint"))
    return _ledger(setup, "one block", lines)


def outside_ledger(setup: TrainingSetup) -> Ledger:
    """What stays outside the blocks: token ids, embeddings' dropout, tables all blocks share, final norm, head, loss."""
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
            lines.append(kept(setup, name, "rotation of every block", "s d", precision.compute_dtype, section="shared"))
    if setup.attention == "stored":
        lines.append(kept(setup, "causal mask", "masked_fill of every block", "s s", "bool", section="shared"))
    lines += [
        *norm_lines(setup, "final norm"),
        *linear_inputs(setup, "final norm output", "b s h", 1, "head"),
        kept(setup, "log-probabilities", "log_softmax", "b s v", loss_dtype, section="loss", shared_with="nll_loss"),
        kept(setup, "target ids", "nll_loss", "b s", "int64", section="loss"),
        kept(setup, "number of targets", "nll_loss", "", loss_dtype, section="loss"),
        kept(setup, "loss", "the training loop", "", loss_dtype, section="loss"),
    ]
    return _ledger(setup, "outside the blocks", lines)


def activation_ledger(setup: TrainingSetup) -> Ledger:
    """All that the forward of one micro-batch leaves at the moment the backward starts: every block and the outside."""
    blocks = block_ledger(setup).times(setup.model.num_layers)
    return _ledger(setup, "activations", [*blocks.lines, *outside_ledger(setup).lines])


def activation_bytes(setup: TrainingSetup) -> int:
    """Bytes of activations in memory when the backward starts: L · block + outside, each tensor as the device rounds it."""
    return activation_ledger(setup).held_bytes


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


def linear_inputs(setup: TrainingSetup, name: str, axes: str, num_linears: int, section: str) -> list[Kept]:
    """The input that ``num_linears`` linear layers keep: one tensor, or under autocast a cast for each of them."""
    dtype = setup.precision.compute_dtype
    if not setup.precision.uses_autocast:
        return [kept(setup, name, "linear", axes, dtype, section=section)]
    return [kept(setup, f"{name}, cast to {dtype}", "linear", axes, dtype, section=section, count=num_linears)]


def mlp_lines(setup: TrainingSetup) -> list[Kept]:
    """What lies between the MLP's linear layers, the input of the last one included."""
    dtype = setup.precision.compute_dtype

    def line(name: str, op: str, dtype: str = dtype) -> Kept:
        return kept(setup, name, op, "b s f", dtype, section="mlp")

    if setup.model.mlp == "swiglu":
        return [
            line("gate", "silu"), line("silu(gate)", "mul"), line("up", "mul"), line("silu(gate) · up", "down linear"),
        ]  # fmt: skip
    if setup.uses_fused_gelu:
        return [line("GELU input", "gelu"), line("GELU output", "down linear")]
    wide = dtype
    if setup.precision.uses_autocast and setup.device == "cuda":
        wide = "float32"  # CUDA's autocast runs pow in float32, and what follows it inherits that
    return [
        line("GELU input" if wide == dtype else "GELU input, cast to float32", "pow", wide),
        line("tanh", "tanh", wide),
        line("1 + tanh", "mul", wide),
        line("half the GELU input", "mul"),
        line("GELU output" if wide == dtype else f"GELU output, cast to {dtype}", "down linear"),
    ]


def dropout_mask(setup: TrainingSetup, name: str, section: str) -> list[Kept]:
    """The mask that dropout after a linear layer keeps, if there is dropout."""
    if not setup.dropout:
        return []
    return [kept(setup, name, "dropout", "b s h", mask_dtype(setup, setup.precision.compute_dtype), section=section)]


def _ledger(setup: TrainingSetup, title: str, lines: list[Kept]) -> Ledger:
    sbh = setup.seq_len * setup.micro_batch_size * setup.model.hidden_size
    return Ledger(title=title, lines=tuple(lines), sbh=sbh, device=setup.device)


def _check(setup: TrainingSetup) -> None:
    precision = setup.precision
    if precision.compute_dtype not in COMPUTE_DTYPES:
        raise ValueError(f"compute_dtype={precision.compute_dtype!r} is not one of {', '.join(COMPUTE_DTYPES)}")
    if precision.uses_autocast and precision.weight_dtype != "float32":
        raise ValueError(
            f"weight_dtype={precision.weight_dtype!r} with compute_dtype={precision.compute_dtype!r}: autocast is known "
            "for float32 weights"
        )


def autocast_casts(setup: TrainingSetup, phase: str = "backward") -> Ledger:
    """The low-precision copies of parameters that autocast makes: temporary, yet as long-lived as activations.

    ``phase="backward"``: the copies alive when the backward starts, one of every linear weight whose forward is not
    run again. ``phase="forward"``: those alive at the end of the autocast region, where its cache still holds the copy
    of every linear weight and bias, recomputed or not. A tied head is cast like any other; embeddings are not cast.
    Empty without autocast.

    Raises: ValueError: ``phase`` is another.
    """
    _check(setup)
    if phase not in ("forward", "backward"):
        raise ValueError(f"phase={phase!r} is not one of forward, backward")
    model, dtype = setup.model, setup.precision.compute_dtype
    lines: list[Kept] = []
    if setup.precision.uses_autocast:
        if phase == "forward" or setup.recomputation != "full":
            for name, axes, has_bias in _block_linears(setup):
                lines.append(kept(setup, f"{name} weight", "linear", axes, dtype, section="blocks", count=model.num_layers))
                if has_bias and phase == "forward":
                    bias = axes.split()[0]
                    lines.append(kept(setup, f"{name} bias", "autocast", bias, dtype, section="blocks", count=model.num_layers))
        lines.append(kept(setup, "head weight", "linear", "v h", dtype, section="head"))
    return _ledger(setup, f"casts by autocast, {phase}", lines)


def autocast_cast_bytes(setup: TrainingSetup) -> int:
    """Bytes of autocast's weight copies alive when the backward starts: 2 per linear weight. Not part of activations."""
    return autocast_casts(setup).held_bytes


def _block_linears(setup: TrainingSetup) -> list[tuple[str, str, bool]]:
    model = setup.model
    qkv = [("qkv", "(a+2k)d h")] if model.fuses_qkv else [("query", "ad h"), ("key", "kd h"), ("value", "kd h")]
    gate = [("gate", "f h", model.has_mlp_bias)] if model.mlp == "swiglu" else []
    return [
        *((name, axes, model.has_qkv_bias) for name, axes in qkv),
        ("output", "h ad", model.has_output_bias),
        *gate,
        ("up", "f h", model.has_mlp_bias),
        ("down", "h f", model.has_mlp_bias),
    ]
