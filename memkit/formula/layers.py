"""The layers of ``memkit.program.transformer`` as operations on a tape: linear, norm, dropout, MLP.

Read it beside ``memkit/program/transformer.py``: a function here stands for the module of that name there, and
``drop`` stands where a Python name goes out of scope. What is written is PyTorch's own doing: a linear layer
keeps its input and its weight, a product keeps both factors, an addition nothing. Under autocast each linear
layer casts its input for itself and each weight once. Functions leave their arguments to the caller unless
they say otherwise.
"""

from collections.abc import Iterable

from memkit.formula.adapters import adapters_of_block, is_in_4_bits
from memkit.formula.kernels import Stages, row_sum_buffers, sum_buffers
from memkit.formula.ledger import axis_sizes
from memkit.formula.parameters import Parameter, block_parameters
from memkit.formula.states import NF4_BLOCK, held_bytes
from memkit.formula.tape import FULL, NEW, SAME, SUM, Tape, Value
from memkit.setup.training import TrainingSetup
from memkit.units import as_one_of

RANDOM_STATE_BYTES = 5056
"""The state of the CPU's random number generator (``torch.get_rng_state()``), which every checkpoint keeps."""

COMPUTE_DTYPES = ("float32", "bfloat16", "float16")
NORM_NAMES = {"norm_1": "norm 1", "norm_2": "norm 2", "norm": "final norm"}


class Page:
    """What a layer needs to know to be written: the setup, the tape, the parameters, the tables that blocks share.

    Raises: ValueError: a dtype that no torch program computes in.
    """

    def __init__(self, setup: TrainingSetup):
        _check(setup)
        self.setup, self.model = setup, setup.model
        self.dtype, self.weight_dtype = setup.precision.compute_dtype, setup.precision.weight_dtype
        self.is_cuda = setup.device == "cuda"
        self.widens = setup.precision.uses_autocast and self.is_cuda  # CUDA's autocast: pow, softmax in float32
        self.num_tokens = setup.tokens_per_micro_batch
        state_bytes = 0 if self.is_cuda else RANDOM_STATE_BYTES  # CUDA's is kept on the host
        self.tape = Tape(lambda size: held_bytes(size, setup.device), state_bytes, axis_sizes(setup))
        self.parameters: dict[str, Value] = {}
        self.tables: dict[str, Value] = {}  # the causal mask, the rotary tables
        self.names: list[Value] = []  # what the program holds until its forward returns
        self.new_parameters: list[Value] = []  # of the blocks that are written
        self.prefix = ""
        self.in_4_bits: set[str] = set()
        self.records: dict[str, Parameter] = {}

    def add_parameters(self, parameters: Iterable[Parameter]) -> list[Value]:
        """New tensors under these names; a block's replace those of the block before. All but adapters are frozen."""
        adapter, added = self.setup.adapter, {}
        for p in parameters:
            is_adapter = p.kind == "adapter"
            dtype = adapter.dtype if is_adapter else self.weight_dtype
            added[p.name] = Value(p.count, dtype, needs_grad=is_adapter or adapter is None, axes=p.axes, name=p.name)
            if is_in_4_bits(p, adapter):
                self.in_4_bits.add(p.name)
            self.records[p.name] = p
        self.parameters |= added
        return list(added.values())

    def add_block(self) -> list[Value]:
        """The parameters of a block, its adapters among them."""
        adapter = self.setup.adapter
        adapters = adapters_of_block(self.model, adapter) if adapter else ()
        return self.add_parameters((*block_parameters(self.model), *adapters))

    def parameters_of(self, name: str) -> list[Value]:
        """Weight and, where there is one, bias of a layer."""
        names = (f"{name}.weight", f"{name}.bias")
        return [self.parameters[name] for name in names if name in self.parameters]

    def enter(self, where: str, section: str = "") -> None:
        """What follows belongs to this module and to this section of a ledger."""
        self.tape.where, self.tape.section = f"{self.prefix}{where}", section or where

    def highest(self, stages: Stages) -> int:
        """Bytes of a CUDA kernel's own buffers, in the stage where they are largest."""
        sizes = [sum(self.tape.round_up(size) for size in buffers) for buffers in stages]
        return max(sizes, default=0) if self.is_cuda else 0


def linear(page: Page, x: Value, name: str, label: str = "") -> Value:
    """x Wᵀ + b, and what an adapter adds. ``label``: what comes out."""
    out = product(page, x, name, label)
    return with_adapter(page, x, out, name) if f"{name}.lora_a.weight" in page.parameters else out


def product(page: Page, x: Value, name: str, label: str = "") -> Value:
    """x Wᵀ + b; kept: the input and the weight, under autocast their casts.

    A frozen weight's gradient is not wanted, so the input is not kept. A weight in 4 bits is made 16 bits wide for the
    product, in the backward once more.
    """
    tape, label = page.tape, label or name.rpartition(".")[2]
    weight, *bias = page.parameters_of(name)
    is_in_4_bits = f"{name}.weight" in page.in_4_bits
    dtype = page.dtype if page.setup.precision.uses_autocast or is_in_4_bits else weight.dtype
    width = tape.count(weight.axes.split()[0])
    short = "head" if weight.axes == "v h" else name.rpartition(".")[2]
    biases = [tape.cast_weight(value, dtype, f"{short} bias") for value in bias]
    made = four_bits_to(page, weight, dtype) if is_in_4_bits else [tape.cast_weight(weight, dtype, f"{short} weight")]
    x_cast = tape.cast(x, dtype)  # last: C++ evaluates arguments from the right
    scratch = 0
    if is_in_4_bits:  # the 16-bit weight beside the gradient, or with its scales before the gradient is there
        wide, scales = made[0].num_bytes, sum(value.num_bytes for value in made[1:])
        scratch = max(wide, wide + scales - x_cast.num_bytes)
    out = tape.run(
        "addmm" if bias else "mm", [x_cast, made[0], *biases], f"b s {weight.axes.split()[0]}", dtype, name=label,
        by="linear", keeps=[x_cast] if is_in_4_bits else [x_cast, made[0]], modes=(NEW, NEW, SUM)[: 2 + len(bias)],
        sends_views=True, scratch_bytes=scratch,
        sum_scratch_bytes=page.highest(row_sum_buffers(page.num_tokens, width)) if bias else 0,
        flops=2 * page.num_tokens * weight.count,
    )  # fmt: skip
    if x_cast is not x:
        tape.drop(x_cast)
    frozen = [(cast, value) for cast, value in zip((*biases, *made[:1]), (*bias, weight), strict=True)]
    tape.drop(*(cast for cast, value in frozen if cast is not value and not value.needs_grad), *made[1:])
    return out


def four_bits_to(page: Page, weight: Value, dtype: str) -> list[Value]:
    """The weight in ``dtype`` and, where the scales are in 8 bits themselves, the scales in float32.

    Source: ``_gemm_4bit_default_impl`` of bitsandbytes 0.50, which its CUDA backend takes for long inputs.
    """
    tape, num_scales = page.tape, -(-weight.count // NF4_BLOCK)
    scales = []
    if page.setup.adapter.double_quantises:
        without_mean = tape.make(num_scales, "float32", op="dequantize_blockwise")
        scales = [tape.make(num_scales, "float32", op="add")]
        tape.drop(without_mean)
    return [tape.make(weight.axes, dtype, op="dequantize_4bit"), *scales]


def with_adapter(page: Page, x: Value, y: Value, name: str) -> Value:
    """y + (α / r) B A x, in the adapter's dtype; drops y. Kept: A x, and x in that dtype, cast anew for each adapter.

    Source: ``lora.Linear.forward`` of peft 0.21.
    """
    tape, adapter = page.tape, page.setup.adapter
    wide = tape.cast(x, adapter.dtype)
    dropped = dropout(page, tape.run("view", [wide], None, modes=(SAME,)), f"{name} adapter", adapter.dropout)
    thin = product(page, dropped, f"{name}.lora_a", "A x")
    tape.drop(dropped)
    up = product(page, thin, f"{name}.lora_b")
    tape.drop(thin)
    scaled = tape.run("mul", [up], up.axes, up.dtype)
    tape.drop(up)
    out = tape.run("add", [y, scaled], y.axes, wider(y.dtype, scaled.dtype), modes=(SAME, SAME), name=y.storage.name)
    tape.drop(y, scaled)
    narrow = tape.cast(out, y.dtype)
    if narrow is not out:
        tape.drop(out)
        tape.rename(narrow, y.storage.name)
    if wide is not x:
        tape.drop(wide)
    return narrow


def wider(first: str, second: str) -> str:
    """The dtype of a sum of two: float32 wherever the two differ."""
    return first if first == second else "float32"


def add(page: Page, x: Value, y: Value) -> Value:
    """x + y; drops y."""
    mode = SUM if y.count < x.count else SAME
    sum_scratch = page.highest(row_sum_buffers(x.count // y.count, y.count))
    out = page.tape.run("add", [x, y], x.axes, x.dtype, modes=(SAME, mode), sum_scratch_bytes=sum_scratch)
    page.tape.drop(y)
    return out


def dropout(page: Page, x: Value, name: str, rate: float | None = None) -> Value:
    """Drops x where there is dropout; without, the result is x. The mask is one byte a value on CUDA, a factor in
    x's dtype on the CPU."""
    if not (page.setup.dropout if rate is None else rate):
        return x
    mask = (f"{name} dropout mask", x.axes, "bool" if page.is_cuda else x.dtype)
    out = page.tape.run("dropout", [x], x.axes, x.dtype, name=f"{name} dropout output", extra=[mask])
    page.tape.drop(x)
    return out


def softmax(page: Page, op: str, x: Value, name: str) -> Value:
    """softmax or log_softmax; CUDA's autocast wants float32, which from float16 is one kernel without a cast."""
    tape, is_one_kernel = page.tape, page.widens and x.dtype == "float16"
    wide = tape.cast(x, "float32") if page.widens and not is_one_kernel else x
    out = tape.run(op, [wide], x.axes, "float32" if page.widens else x.dtype, name=name, keeps_out=True)
    if wide is not x:
        tape.drop(wide)
    return out


def norm(page: Page, name: str, x: Value) -> Value:
    """LayerNorm or RMSNorm as one kernel, or RMSNorm in single operations."""
    tape, weights, label = page.tape, page.parameters_of(name), NORM_NAMES[name]
    page.enter(name, "final norm" if name == "norm" else "norms")
    tape.rename(x, f"{label} input")
    if page.model.norm == "layernorm":
        dtype = "float32" if page.is_cuda else page.weight_dtype
        op, statistics = "layer_norm", [(f"{label} mean", "b s 1", dtype), (f"{label} 1/deviation", "b s 1", dtype)]
    elif page.setup.uses_fused_norm and page.is_cuda:
        op, statistics = "rms_norm", [(f"{label} 1/rms", "b s 1", "float32")]
    else:
        return rms_norm_in_steps(page, weights[0], x, label)
    keeps = [x, weights[0]]
    return tape.run(op, [x, *weights], x.axes, x.dtype, name=f"{label} output", keeps=keeps, extra=statistics)


def rms_norm_in_steps(page: Page, weight: Value, x: Value, label: str) -> Value:
    """x / √(mean x² + ε) in float32, scaled by the weight; one tensor a step."""
    tape, width = page.tape, page.model.hidden_size
    wide = tape.cast(x, "float32")
    square = power(page, wide)
    along = page.highest(sum_buffers([(width, 1)], [(page.num_tokens, width)]))
    mean = tape.run("mean", [square], "b s 1", "float32", forward_scratch_bytes=along)
    tape.drop(square)
    inverse = tape.run("rsqrt", [mean], "b s 1", "float32", name=f"{label} 1/rms", keeps_out=True)
    tape.drop(mean)
    keeps, name = [wide, inverse], f"{label} normalised"
    y = tape.run("mul", keeps, x.axes, "float32", name=name, keeps=keeps, modes=(NEW, FULL), sum_scratch_bytes=along)
    tape.drop(inverse)
    if wide is not x:
        tape.drop(wide)
    casts_first = not page.setup.uses_fused_norm  # PythonRMSNorm; torch's own composite scales first
    normalised = y
    for casts in (casts_first, not casts_first):
        before = y
        if casts:
            y = tape.rename(tape.cast(y, x.dtype), name if casts_first else f"{label} output")
        else:
            down = page.highest(row_sum_buffers(page.num_tokens, width))
            y = tape.run(
                "mul", [weight, y], x.axes, y.dtype, name=f"{label} output", by="mul by the weight", keeps=[weight, y],
                modes=(FULL, NEW), sum_scratch_bytes=down,
            )  # fmt: skip
        if y is not before and not (casts_first and before is normalised):
            tape.drop(before)
    tape.drop(normalised)  # Python's name for it lives until the function returns
    return y


def power(page: Page, x: Value) -> Value:
    """A power of x. Its backward computes exponent · x^(exponent - 1) in two temporaries."""
    scratch_bytes = 2 * page.tape.round_up(x.num_bytes)
    return page.tape.run("pow", [x], x.axes, x.dtype, keeps=[x], scratch_bytes=scratch_bytes)


def mlp(page: Page, n: Value) -> Value:
    """Linear, GELU, linear; or the gated form of Llama."""
    tape = page.tape
    page.enter("mlp")
    if "mlp.gate.weight" in page.parameters:
        gate = linear(page, n, "mlp.gate")
        silu = tape.run("silu", [gate], gate.axes, gate.dtype, name="silu(gate)", keeps=[gate])
        tape.drop(gate)
        up = linear(page, n, "mlp.up")
        y = tape.run("mul", [silu, up], up.axes, up.dtype, name="silu(gate) · up", keeps=[silu, up])
        tape.drop(silu, up)
    else:
        up = tape.rename(linear(page, n, "mlp.up"), "GELU input")
        if page.setup.uses_fused_gelu:
            y = tape.run("gelu", [up], up.axes, up.dtype, name="GELU output", keeps=[up])
        else:
            y = gelu_in_steps(page, up)
        tape.drop(up)
    out = linear(page, y, "mlp.down")
    tape.drop(y)
    return out


def gelu_in_steps(page: Page, x: Value) -> Value:
    """0.5 x (1 + tanh(c (x + 0.044715 x³))), one tensor a step."""
    tape, axes = page.tape, x.axes
    half = tape.run("mul", [x], axes, x.dtype, name="half the GELU input")
    base = tape.cast(x, "float32") if page.widens else x
    cube = power(page, base)
    if base is not x:
        tape.drop(base)
    small = tape.run("mul", [cube], axes, cube.dtype)
    tape.drop(cube)
    inner = tape.run("add", [x, small], axes, small.dtype, modes=(SAME, SAME))
    tape.drop(small)
    argument = tape.run("mul", [inner], axes, inner.dtype)
    tape.drop(inner)
    tanh = tape.run("tanh", [argument], axes, argument.dtype, name="tanh", keeps_out=True)
    tape.drop(argument)
    more = tape.run("add", [tanh], axes, tanh.dtype, name="1 + tanh", modes=(SAME,))
    tape.drop(tanh)
    modes = (FULL if page.widens else NEW, NEW)  # the gradient of the half is float32 before it is cast
    out = tape.run("mul", [half, more], axes, more.dtype, name="GELU output", keeps=[half, more], modes=modes)
    tape.drop(half, more)
    return out


def _check(setup: TrainingSetup) -> None:
    compute, weights = setup.precision.compute_dtype, setup.precision.weight_dtype
    as_one_of("compute_dtype", compute, COMPUTE_DTYPES)
    if setup.precision.uses_autocast and weights != "float32":
        raise ValueError(f"weight_dtype={weights!r} under autocast; only float32 is known there")
