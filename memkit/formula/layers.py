"""The layers of ``memkit.program.transformer`` as operations on a tape: linear, norm, dropout, MLP.

Read it beside ``memkit/program/transformer.py``: a method here stands for the module of that name there, and
``drop`` stands where a Python name goes out of scope. What is written is PyTorch's own doing: a linear layer
keeps its input and its weight, a product keeps both factors, an addition nothing. Under autocast each linear
layer casts its input for itself and each weight once.
"""

from collections.abc import Iterable

from memkit.formula.activations import mask_dtype
from memkit.formula.kernels import Stages, row_sum_buffers, sum_buffers
from memkit.formula.parameters import Parameter
from memkit.formula.tape import FULL, NEW, SAME, SUM, Tape, Value
from memkit.setup.training import TrainingSetup


class LayerSchedule:
    """Writes single layers on the tape. A method leaves its arguments to the caller unless it says otherwise."""

    def __init__(self, setup: TrainingSetup, tape: Tape):
        self.setup, self.tape, self.model = setup, tape, setup.model
        self.dtype, self.weight_dtype = setup.precision.compute_dtype, setup.precision.weight_dtype
        self.is_cuda = setup.device == "cuda"
        self.widens = setup.precision.uses_autocast and self.is_cuda  # CUDA's autocast: pow, softmax in float32
        self.num_tokens = setup.tokens_per_micro_batch
        self.parameters: dict[str, Value] = {}

    def add_parameters(self, parameters: Iterable[Parameter]) -> list[Value]:
        """New tensors under these names; a block's replace those of the block before."""
        added = {parameter.name: Value(parameter.count, self.weight_dtype) for parameter in parameters}
        self.parameters |= added
        return list(added.values())

    def highest(self, stages: Stages) -> int:
        """Bytes of a CUDA kernel's own buffers, in the stage where they are largest."""
        sizes = [sum(self.tape.round_up(size) for size in buffers) for buffers in stages]
        return max(sizes, default=0) if self.is_cuda else 0

    def parameters_of(self, name: str) -> list[Value]:
        """Weight and, where there is one, bias of a layer."""
        names = (f"{name}.weight", f"{name}.bias")
        return [self.parameters[name] for name in names if name in self.parameters]

    def linear(self, x: Value, name: str, width: int) -> Value:
        """x Wᵀ + b, ``width`` values a token; kept: the input and the weight, under autocast their casts."""
        tape = self.tape
        weights = [tape.cast_weight(weight, self.dtype) for weight in reversed(self.parameters_of(name))][::-1]
        x_cast = tape.cast(x, self.dtype)  # last: C++ evaluates arguments from the right
        out = tape.run(
            "linear", [x_cast, *weights], self.num_tokens * width, self.dtype, keeps=[x_cast, weights[0]],
            modes=(NEW, NEW, SUM)[: 1 + len(weights)], sends_views=True,
            sum_scratch_bytes=self.highest(row_sum_buffers(self.num_tokens, width)) if len(weights) > 1 else 0,
        )  # fmt: skip
        if x_cast is not x:
            tape.drop(x_cast)
        return out

    def add(self, x: Value, y: Value) -> Value:
        """x + y; drops y."""
        mode = SUM if y.count < x.count else SAME
        sum_scratch = self.highest(row_sum_buffers(x.count // y.count, y.count))
        out = self.tape.run("add", [x, y], x.count, x.dtype, modes=(SAME, mode), sum_scratch_bytes=sum_scratch)
        self.tape.drop(y)
        return out

    def dropout(self, x: Value) -> Value:
        """Drops x where there is dropout; without, the result is x."""
        if not self.setup.dropout:
            return x
        mask = (x.count, mask_dtype(self.setup, x.dtype))
        out = self.tape.run("dropout", [x], x.count, x.dtype, extra=[mask])
        self.tape.drop(x)
        return out

    def softmax(self, name: str, x: Value) -> Value:
        """softmax or log_softmax; CUDA's autocast wants float32, which from float16 is one kernel without a cast."""
        is_one_kernel = self.widens and x.dtype == "float16"
        wide = self.tape.cast(x, "float32") if self.widens and not is_one_kernel else x
        dtype = "float32" if self.widens else x.dtype
        out = self.tape.run(name, [wide], x.count, dtype, keeps_out=True)
        if wide is not x:
            self.tape.drop(wide)
        return out

    def norm(self, name: str, x: Value) -> Value:
        """LayerNorm or RMSNorm as one kernel, or RMSNorm in single operations."""
        weights = self.parameters_of(name)
        if self.model.norm == "layernorm":
            statistics = (self.num_tokens, "float32" if self.is_cuda else self.weight_dtype)
            keeps, extra = [x, weights[0]], [statistics, statistics]
            return self.tape.run("layer_norm", [x, *weights], x.count, x.dtype, keeps=keeps, extra=extra)
        if self.setup.uses_fused_norm and self.is_cuda:
            keeps, extra = [x, weights[0]], [(self.num_tokens, "float32")]
            return self.tape.run("rms_norm", [x, *weights], x.count, x.dtype, keeps=keeps, extra=extra)
        return self.rms_norm_in_steps(weights[0], x)

    def rms_norm_in_steps(self, weight: Value, x: Value) -> Value:
        """x / √(mean x² + ε) in float32, scaled by the weight; one tensor a step."""
        tape = self.tape
        wide = tape.cast(x, "float32")
        square = self.power(wide)
        mean = tape.run("mean", [square], self.num_tokens, "float32")
        tape.drop(square)
        inverse = tape.run("rsqrt", [mean], self.num_tokens, "float32", keeps_out=True)
        tape.drop(mean)
        width = self.model.hidden_size
        along = self.highest(sum_buffers([(width, 1)], [(self.num_tokens, width)]))
        keeps, modes = [wide, inverse], (NEW, FULL)
        y = tape.run("mul", keeps, x.count, "float32", keeps=keeps, modes=modes, sum_scratch_bytes=along)
        tape.drop(inverse)
        if wide is not x:
            tape.drop(wide)
        casts_first = not self.setup.uses_fused_norm  # PythonRMSNorm; torch's own composite scales first
        for casts in (casts_first, not casts_first):
            before = y
            if casts:
                y = tape.cast(y, x.dtype)
            else:
                keeps, modes, down = [weight, y], (FULL, NEW), self.highest(row_sum_buffers(self.num_tokens, width))
                y = tape.run("mul", keeps, y.count, y.dtype, keeps=keeps, modes=modes, sum_scratch_bytes=down)
            if y is not before:
                tape.drop(before)
        return y

    def power(self, x: Value) -> Value:
        """A power of x. Its backward computes exponent · x^(exponent - 1) in two temporaries."""
        scratch_bytes = 2 * self.tape.round_up(x.num_bytes)
        return self.tape.run("pow", [x], x.count, x.dtype, keeps=[x], scratch_bytes=scratch_bytes)

    def mlp(self, n: Value) -> Value:
        """Linear, GELU, linear; or the gated form of Llama."""
        tape, width = self.tape, self.model.intermediate_size
        if self.model.mlp == "swiglu":
            gate = self.linear(n, "mlp.gate", width)
            silu = tape.run("silu", [gate], gate.count, gate.dtype, keeps=[gate])
            tape.drop(gate)
            up = self.linear(n, "mlp.up", width)
            y = tape.run("mul", [silu, up], up.count, up.dtype, keeps=[silu, up])
            tape.drop(silu, up)
        else:
            up = self.linear(n, "mlp.up", width)
            if self.setup.uses_fused_gelu:
                y = tape.run("gelu", [up], up.count, up.dtype, keeps=[up])
            else:
                y = self.gelu_in_steps(up)
            tape.drop(up)
        out = self.linear(y, "mlp.down", self.model.hidden_size)
        tape.drop(y)
        return out

    def gelu_in_steps(self, x: Value) -> Value:
        """0.5 x (1 + tanh(c (x + 0.044715 x³))), one tensor a step."""
        tape, count = self.tape, x.count
        half = tape.run("0.5 ·", [x], count, x.dtype)
        base = tape.cast(x, "float32") if self.widens else x
        cube = self.power(base)
        if base is not x:
            tape.drop(base)
        small = tape.run("0.044715 ·", [cube], count, cube.dtype)
        tape.drop(cube)
        inner = tape.run("add", [x, small], count, small.dtype, modes=(SAME, SAME))
        tape.drop(small)
        argument = tape.run("c ·", [inner], count, inner.dtype)
        tape.drop(inner)
        tanh = tape.run("tanh", [argument], count, argument.dtype, keeps_out=True)
        tape.drop(argument)
        more = tape.run("1 +", [tanh], count, tanh.dtype, modes=(SAME,))
        tape.drop(tanh)
        modes = (FULL if self.widens else NEW, NEW)  # the gradient of the half is float32 before it is cast
        out = tape.run("mul", [half, more], count, more.dtype, keeps=[half, more], modes=modes)
        tape.drop(half, more)
        return out
