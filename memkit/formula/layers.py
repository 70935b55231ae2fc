"""The layers of ``memkit.program.transformer`` on paper: linear, norm, dropout, activation functions.

Read it beside ``memkit/program/transformer.py``: a method here stands for the module of that name there, and a name
that goes out of scope there goes out of scope here. Each call of ``paper.run`` says by ``keeps``, ``out_kept_by`` and
``extra`` what PyTorch's operation keeps for its backward: a linear layer keeps its input and its weight, a product
both factors, an addition nothing. Under autocast each linear layer casts its input for itself and each weight once.
"""

from collections.abc import Callable, Iterable

from memkit.formats.dtypes import tensor_bytes
from memkit.formula.kernels import Stages, row_sum_buffers, sum_buffers
from memkit.formula.paper import NEW, SAME, Leaf, Paper, Summed, Tensor
from memkit.formula.parameters import Parameter, model_axes
from memkit.setup.training import TrainingSetup
from memkit.units import ALLOCATOR_BLOCK_BYTES, as_one_of, round_up

RANDOM_STATE_BYTES = 5056
"""The state of the CPU's random number generator (``torch.get_rng_state()``), which every checkpoint keeps."""

COMPUTE_DTYPES = ("float32", "bfloat16", "float16")

def axis_sizes(setup: TrainingSetup) -> dict[str, int]:
    """The number behind every axis that a tensor of the step may have."""
    return model_axes(setup.model) | {
        "b": setup.micro_batch_size, "s": setup.seq_len, "s↑32": round_up(setup.seq_len, 32),
        "1": 1, "2": 2, "5056": 5056,
    }


class Layers:
    """What every layer needs: the setup, the paper that it is run on, the parameters by name.

    Raises: ValueError: a dtype that no torch program computes in.
    """

    def __init__(self, setup: TrainingSetup):
        self.setup, self.model, precision = setup, setup.model, setup.precision
        as_one_of("compute_dtype", precision.compute_dtype, COMPUTE_DTYPES)
        if precision.uses_autocast and precision.weight_dtype != "float32":
            raise ValueError(f"weight_dtype={precision.weight_dtype!r} under autocast; only float32 is known there")
        self.dtype, self.weight_dtype = precision.compute_dtype, precision.weight_dtype
        self.is_cuda = setup.device == "cuda"
        self.widens = precision.uses_autocast and self.is_cuda  # CUDA's autocast: pow, softmax in float32
        self.num_tokens = setup.tokens_per_micro_batch
        self.paper = Paper(
            self.axis_sizes(setup), ALLOCATOR_BLOCK_BYTES if self.is_cuda else 1,
            0 if self.is_cuda else RANDOM_STATE_BYTES,  # CUDA's is kept on the host
        )
        self.parameters: dict[str, Tensor] = {}
        self.prefix = ""

    @staticmethod
    def axis_sizes(setup: TrainingSetup) -> dict[str, int]:
        """The number behind every axis of a step."""
        return axis_sizes(setup)

    def add_parameters(self, parameters: Iterable[Parameter]) -> None:
        """Tensors under these names, in place of those of the block before; all of them are trained."""
        for p in parameters:
            self.parameters[p.name] = Tensor(p.axes, p.count, self.weight_dtype, source=Leaf(p, self.weight_dtype))

    def enter(self, where: str, section: str = "") -> None:
        """What follows belongs to this module and to this section of a ledger."""
        self.paper.where, self.paper.section = f"{self.prefix}{where}", section or where

    def highest(self, stages: Stages) -> int:
        """Bytes of a CUDA kernel's own buffers, in the stage where they are largest."""
        if not self.is_cuda:
            return 0
        return max((sum(map(self.paper.round_up, buffers)) for buffers in stages), default=0)

    def summed_rows(self, num_rows: int, width: int, is_product: bool = False) -> Summed:
        """How the gradient of one row is made that stands beside all rows: a bias, a norm's weight."""
        return Summed(self.highest(row_sum_buffers(num_rows, width)), is_product)

    def along_rows(self, num_rows: int, width: int) -> int:
        """Scratch of a sum along each of so many rows."""
        return self.highest(sum_buffers([(width, 1)], [(num_rows, width)]))

    def linear(self, x: Tensor, name: str, label: str = "") -> Tensor:
        """x Wᵀ + b; kept: the input and the weight, under autocast their casts. ``label``: what comes out."""
        paper, weight, bias = self.paper, self.parameters[f"{name}.weight"], self.parameters.get(f"{name}.bias")
        short = name.rpartition(".")[2]
        dtype = self.dtype if self.setup.precision.uses_autocast else weight.dtype
        called = "head" if weight.axes == "v h" else short
        biases = [paper.cast(bias, dtype, f"{called} bias")] if bias else []
        weight = paper.cast(weight, dtype, f"{called} weight")
        narrow = paper.cast(x, dtype)  # last: C++ evaluates arguments from the right
        return self.multiply("addmm" if biases else "mm", narrow, weight, biases, label or short, [narrow, weight])

    def multiply(self, op: str, x: Tensor, weight: Tensor, biases: list, label: str, keeps=(), **more) -> Tensor:
        """The matrix product itself. A bias' gradient is the sum of the rows of the output's gradient."""
        width = weight.axes.split()[0]
        ways = (NEW, NEW, *(self.summed_rows(self.num_tokens, bias.count) for bias in biases))
        return self.paper.run(
            op, [x, weight, *biases], f"b s {width}", x.dtype, name=label, by="linear", ways=ways,
            flops=2 * self.num_tokens * weight.count, keeps=keeps, **more,
        )

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """x + y, where y may be one row that is added to all."""
        way = self.summed_rows(x.count // y.count, y.count) if y.count < x.count else SAME
        return self.paper.run("add", [x, y], x.axes, ways=(SAME, way))

    def dropout(self, x: Tensor, name: str, rate: float | None = None) -> Tensor:
        """x, dropped out unless the rate is 0. The mask is a byte a value on CUDA, a factor in x's dtype on the CPU."""
        if not (self.setup.dropout if rate is None else rate):
            return x
        mask = (f"{name} dropout mask", x.axes, "bool" if self.is_cuda else x.dtype)
        return self.paper.run("dropout", [x], x.axes, name=f"{name} dropout output", extra=[mask])

    def softmax(self, op: str, x: Tensor, name: str, is_wide: bool = False) -> Tensor:
        """softmax or log_softmax, in float32 under CUDA's autocast. CUDA's kernel reads float16 without a cast."""
        dtype = "float32" if is_wide or self.widens else x.dtype
        wide = x if self.is_cuda and x.dtype == "float16" else self.paper.cast(x, dtype)
        size = tensor_bytes(x.count, dtype) if self.is_cuda and op == "softmax" else 0  # dy times y
        return self.paper.run(op, [wide], x.axes, dtype, name=name, out_kept_by=op, scratch_bytes=size)

    def norm(self, name: str, x: Tensor) -> Tensor:
        """LayerNorm or RMSNorm as one kernel, or RMSNorm in single operations."""
        paper, label = self.paper, "final norm" if name == "norm" else name.rpartition(".")[2].replace("_", " ")
        names = (f"{name}.weight", f"{name}.bias")
        weights = [self.parameters[name] for name in names if name in self.parameters]
        self.enter(name, "attention" if "." in name else "norms" if name != "norm" else label)
        paper.rename(x, f"{label} input")
        if self.model.norm == "layernorm":
            op, statistics, dtype = "layer_norm", ("mean", "1/deviation"), self.weight_dtype
        elif self.setup.uses_fused_norm and self.is_cuda:
            op, statistics, dtype = "rms_norm", ("1/rms",), "float32"
            x = paper.rename(paper.cast(x, "float32"), f"{label} input") if self.widens else x
        else:
            return self.rms_norm_in_steps(x, weights[0], label)
        rows = f"{x.axes.rpartition(' ')[0]} 1"
        extra = [(f"{label} {each}", rows, "float32" if self.is_cuda else dtype) for each in statistics]
        return paper.run(op, [x, *weights], x.axes, name=f"{label} output", keeps=[x, weights[0]], extra=extra)

    def rms_norm_in_steps(self, x: Tensor, weight: Tensor, label: str) -> Tensor:
        """x / √(mean x² + ε), times a weight for each column; torch's composite casts back after it, ours before."""
        paper = self.paper
        wide, *held = self.divide_by_rms(x, weight.count, label)
        if not self.setup.uses_fused_norm:
            held.clear()  # Python binds the name of x anew; C++ holds both factors longer
        factor = wide if self.setup.uses_fused_norm else paper.cast(wide, x.dtype)
        factors = [weight, paper.rename(factor, f"{label} normalised")]
        wider = weight.dtype if weight.dtype == "float32" else factor.dtype
        scaled = paper.run(
            "mul", factors, x.axes, wider, name=f"{label} output", by="mul by the weight", keeps=factors,
            ways=(self.summed_rows(x.count // weight.count, weight.count, is_product=True), NEW),
        )
        if not self.is_cuda:  # the CPU's loop takes one dtype: what has another is copied
            paper.allocate(sum(tensor_bytes(each.count, wider) for each in factors if each.dtype != wider))
        del wide, factor, factors, held[:1]  # gone but for what the product keeps, when the cast is born
        out = paper.cast(scaled, x.dtype) if self.setup.uses_fused_norm else scaled
        return paper.rename(out, f"{label} output")

    def divide_by_rms(self, x: Tensor, width: int, label: str) -> tuple[Tensor, Tensor, Tensor]:
        """x / √(mean x² + ε) in float32, one tensor a step; and its two factors, x and 1 / √."""
        paper, rows = self.paper, f"{x.axes.rpartition(' ')[0]} 1"
        along = self.along_rows(x.count // width, width)
        wide = paper.cast(x, "float32")
        # The backward of a power computes exponent · x^(exponent - 1) in two temporaries.
        scratch_bytes = 2 * paper.round_up(wide.num_bytes)
        square = paper.run("pow", [wide], x.axes, keeps=[wide], scratch_bytes=scratch_bytes)
        mean = paper.run("mean", [square], rows)
        if along:
            paper.allocate(along)
        del square  # one nested expression in PyTorch: each step dies with the next
        inverse = paper.run("rsqrt", [mean], rows, name=f"{label} 1/rms", out_kept_by="rsqrt")
        del mean
        factors, ways = [wide, inverse], (NEW, Summed(along, is_product=True))
        out = paper.run("mul", factors, x.axes, name=f"{label} normalised", keeps=factors, ways=ways)
        return out, *factors

    def gelu(self, n: Tensor) -> Tensor:
        """Linear, GELU, linear."""
        self.enter("mlp")
        inner = self.by_value("gelu", "GELU output", self.paper.rename(self.linear(n, "mlp.up"), "GELU input"))
        return self.linear(inner, "mlp.down")

    def swiglu(self, n: Tensor) -> Tensor:
        """The gated form of Llama."""
        self.enter("mlp")
        silu = self.by_value("silu", "silu(gate)", self.linear(n, "mlp.gate"))
        inner = self.by_value("mul", "silu(gate) · up", silu, self.linear(n, "mlp.up"))
        del silu  # an argument without a name; the product keeps it, or nobody does
        return self.linear(inner, "mlp.down")

    def by_value(self, op: str, name: str, *inputs: Tensor) -> Tensor:
        """An operation on each value, or each pair of values, that keeps what it reads."""
        return self.paper.run(op, inputs, inputs[-1].axes, name=name, keeps=inputs)


MLPS: dict[str, Callable[[Layers, Tensor], Tensor]] = {"gelu": Layers.gelu, "swiglu": Layers.swiglu}
"""An MLP on paper, by the kind that ``ModelConfig.mlp_of`` names."""
