"""The layers of ``memkit.program.transformer`` on paper: linear, norm, dropout, activation functions.

Read it beside ``memkit/program/transformer.py``: a method here stands for the module of that name there, and a name
that goes out of scope there goes out of scope here. Each call of ``paper.run`` says by ``keeps``, ``out_kept_by`` and
``extra`` what PyTorch's operation keeps for its backward: a linear layer keeps its input and its weight, a product
both factors, an addition nothing. Under autocast each linear layer casts its input for itself and each weight once.
"""

from collections.abc import Iterable

from memkit.formats.dtypes import tensor_bytes
from memkit.formula.kernels import Stages, row_sum_buffers, sum_buffers
from memkit.formula.paper import NEW, SAME, Leaf, Paper, Summed, Tensor
from memkit.formula.parameters import Parameter, adapters_of_block, block_parameters, is_in_4_bits, model_axes
from memkit.formula.states import NF4_BLOCK
from memkit.setup.training import TrainingSetup
from memkit.units import ALLOCATOR_BLOCK_BYTES, as_one_of, round_up

RANDOM_STATE_BYTES = 5056
"""The state of the CPU's random number generator (``torch.get_rng_state()``), which every checkpoint keeps."""

COMPUTE_DTYPES = ("float32", "bfloat16", "float16")
NORM_NAMES = {"norm_1": "norm 1", "norm_2": "norm 2", "norm": "final norm"}


def axis_sizes(setup: TrainingSetup) -> dict[str, int]:
    """The number behind every axis that a tensor of the step may have."""
    return model_axes(setup.model) | {
        "b": setup.micro_batch_size, "s": setup.seq_len, "s↑32": round_up(setup.seq_len, 32),
        "1": 1, "2": 2, "5056": 5056, "r": setup.adapter.rank if setup.adapter else 0,
    }  # fmt: skip


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
            axis_sizes(setup), ALLOCATOR_BLOCK_BYTES if self.is_cuda else 1,
            0 if self.is_cuda else RANDOM_STATE_BYTES,  # CUDA's is kept on the host
        )  # fmt: skip
        self.parameters: dict[str, Tensor] = {}
        self.in_4_bits: set[str] = set()
        self.prefix = ""

    def add_parameters(self, parameters: Iterable[Parameter]) -> None:
        """Tensors under these names, in place of those of the block before. Beside adapters all others are frozen."""
        adapter = self.setup.adapter
        for p in parameters:
            dtype = adapter.dtype if p.kind == "adapter" else self.weight_dtype
            is_trained = adapter is None or p.kind == "adapter"
            leaf = Leaf(p, dtype) if is_trained else None
            self.parameters[p.name] = Tensor(p.axes, p.count, dtype, source=leaf)
            if is_in_4_bits(p, adapter):
                self.in_4_bits.add(p.name)

    def add_block(self) -> None:
        """The parameters of a block, its adapters among them."""
        adapter = self.setup.adapter
        self.add_parameters(block_parameters(self.model))
        if adapter is not None:
            self.add_parameters(adapters_of_block(self.model, adapter))

    def enter(self, where: str, section: str = "") -> None:
        """What follows belongs to this module and to this section of a ledger."""
        self.paper.where, self.paper.section = f"{self.prefix}{where}", section or where

    def highest(self, stages: Stages) -> int:
        """Bytes of a CUDA kernel's own buffers, in the stage where they are largest."""
        if not self.is_cuda:
            return 0
        return max((sum(map(self.paper.round_up, buffers)) for buffers in stages), default=0)

    def linear(self, x: Tensor, name: str, label: str = "") -> Tensor:
        """x Wᵀ + b, and what an adapter adds. ``label``: what comes out."""
        if f"{name}.lora_a.weight" in self.parameters:
            return self.with_adapter(x, name, label)
        return self.product(x, name, label)

    def product(self, x: Tensor, name: str, label: str = "") -> Tensor:
        """x Wᵀ + b; kept: the input and the weight, under autocast their casts.

        A frozen weight's gradient is not wanted, so the input is not kept.
        """
        paper, weight, bias = self.paper, self.parameters[f"{name}.weight"], self.parameters.get(f"{name}.bias")
        if f"{name}.weight" in self.in_4_bits:
            return self.product_of_4_bits(x, weight, bias, label or name.rpartition(".")[2])
        dtype = self.dtype if self.setup.precision.uses_autocast else weight.dtype
        short = "head" if weight.axes == "v h" else name.rpartition(".")[2]
        biases = [paper.cast_weight(bias, dtype, f"{short} bias")] if bias else []
        weight = paper.cast_weight(weight, dtype, f"{short} weight")
        narrow = paper.cast(x, dtype)  # last: C++ evaluates arguments from the right
        op, label = "addmm" if biases else "mm", label or name.rpartition(".")[2]
        return self.multiply(op, narrow, weight, biases, label, keeps=[narrow, weight])

    def multiply(self, op: str, x: Tensor, weight: Tensor, biases: list, label: str, **more) -> Tensor:
        """The matrix product itself. A bias' gradient is the sum of the rows of the output's gradient."""
        width = weight.axes.split()[0]
        rows = Summed(self.highest(row_sum_buffers(self.num_tokens, self.paper.count(width)))) if biases else NEW
        return self.paper.run(
            op, [x, weight, *biases], f"b s {width}", x.dtype, name=label, by="linear",
            ways=(NEW, NEW, rows)[: 2 + len(biases)], flops=2 * self.num_tokens * weight.count, **more,
        )  # fmt: skip

    def product_of_4_bits(self, x: Tensor, codes: Tensor, bias: Tensor | None, label: str) -> Tensor:
        """The same with a frozen weight in NF4, which is made wide for the product, and in the backward once more.

        It runs in the dtype that the model was loaded in and gives back its input's, whatever autocast says: no policy
        and no autocast knows ``gemm_4bit``. The scales, which are in 8 bits themselves, are made float32 first.
        Source: ``Linear4bit.forward`` and ``_gemm_4bit_default_impl`` of bitsandbytes 0.50, which its CUDA backend
        takes for long inputs.
        """
        paper = self.paper
        scale_bytes = tensor_bytes(-(-codes.count // NF4_BLOCK), "float32")
        weight_bytes = tensor_bytes(codes.count, self.weight_dtype)
        wide = paper.cast(x, self.weight_dtype)
        # In the backward the weight stands beside the gradient, or with its scales before the gradient is there.
        scratch_bytes = max(weight_bytes, weight_bytes + scale_bytes - wide.edge.num_bytes)
        biases = [bias] if bias else []
        out = self.multiply("gemm_4bit", wide, codes, biases, label, scratch_bytes=scratch_bytes)
        without_mean = paper.allocate(scale_bytes)
        scales = paper.allocate(scale_bytes)
        del without_mean
        paper.allocate(weight_bytes)
        del scales
        return paper.cast(out, x.dtype)

    def with_adapter(self, x: Tensor, name: str, label: str) -> Tensor:
        """W x + (α / r) B A x, of which the second is in the adapter's dtype.

        Kept are A x, and x in that dtype, cast anew for each adapter.

        Source: ``lora.Linear.forward`` of peft 0.21.
        """
        paper, adapter = self.paper, self.setup.adapter
        y = self.product(x, name, label)
        dtype, label = y.dtype, y.storage.block.name
        x = paper.cast(x, adapter.dtype)
        dropped = self.dropout(paper.view("view", x), f"{name} adapter", adapter.dropout)
        thin = self.product(dropped, f"{name}.lora_a", "A x")
        del dropped
        up = self.product(thin, f"{name}.lora_b")
        del thin
        scaled = paper.run("mul", [up], up.axes)
        del up
        wider = dtype if dtype == scaled.dtype else "float32"
        total = paper.run("add", [y, scaled], y.axes, wider, ways=(SAME, SAME), name=label)
        if not self.is_cuda:  # the CPU's loop takes one dtype: what has another is copied first
            paper.allocate(sum(total.edge.num_bytes for each in (y, scaled) if each.dtype != wider))
        del y, scaled
        return paper.rename(paper.cast(total, dtype), label)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """x + y, where y may be one row that is added to all."""
        is_row = y.count < x.count
        rows = Summed(self.highest(row_sum_buffers(x.count // y.count, y.count))) if is_row else SAME
        return self.paper.run("add", [x, y], x.axes, ways=(SAME, rows))

    def dropout(self, x: Tensor, name: str, rate: float | None = None) -> Tensor:
        """x, dropped out unless the rate is 0. The mask is a byte a value on CUDA, a factor in x's dtype on the CPU."""
        if not (self.setup.dropout if rate is None else rate):
            return x
        mask = (f"{name} dropout mask", x.axes, "bool" if self.is_cuda else x.dtype)
        return self.paper.run("dropout", [x], x.axes, name=f"{name} dropout output", extra=[mask])

    def softmax(self, op: str, x: Tensor, name: str) -> Tensor:
        """softmax or log_softmax. CUDA's autocast casts x to float32 first; from float16 one kernel does both."""
        wide = self.paper.cast(x, "float32") if self.widens and x.dtype != "float16" else x
        dtype = "float32" if self.widens else x.dtype
        return self.paper.run(op, [wide], x.axes, dtype, name=name, out_kept_by=op)

    def norm(self, name: str, x: Tensor) -> Tensor:
        """LayerNorm or RMSNorm as one kernel, or RMSNorm in single operations."""
        paper, label = self.paper, NORM_NAMES[name]
        names = (f"{name}.weight", f"{name}.bias")
        weights = [self.parameters[name] for name in names if name in self.parameters]
        self.enter(name, "final norm" if name == "norm" else "norms")
        paper.rename(x, f"{label} input")
        if self.model.norm == "layernorm":
            dtype = "float32" if self.is_cuda else self.weight_dtype
            op, statistics = "layer_norm", [(f"{label} mean", "b s 1", dtype), (f"{label} 1/deviation", "b s 1", dtype)]
        elif self.setup.uses_fused_norm and self.is_cuda:
            op, statistics = "rms_norm", [(f"{label} 1/rms", "b s 1", "float32")]
        elif self.setup.uses_fused_norm:  # torch's own composite
            scaled = self.scale(weights[0], self.divide_by_rms(x, label), label)
            return paper.rename(paper.cast(scaled, x.dtype), f"{label} output")
        else:  # PythonRMSNorm
            wide = self.divide_by_rms(x, label)
            return self.scale(weights[0], paper.rename(paper.cast(wide, x.dtype), f"{label} normalised"), label)
        keeps = [x, weights[0]]
        return paper.run(op, [x, *weights], x.axes, name=f"{label} output", keeps=keeps, extra=statistics)

    def divide_by_rms(self, x: Tensor, label: str) -> Tensor:
        """x / √(mean x² + ε) in float32, one tensor a step."""
        paper, width = self.paper, self.model.hidden_size
        along = self.highest(sum_buffers([(width, 1)], [(self.num_tokens, width)]))
        wide = paper.cast(x, "float32")
        square = self.power(wide)
        mean = paper.run("mean", [square], "b s 1")
        if along:
            paper.allocate(along)
        del square
        inverse = paper.run("rsqrt", [mean], "b s 1", name=f"{label} 1/rms", out_kept_by="rsqrt")
        del mean
        ways = (NEW, Summed(along, is_product=True))
        return paper.run("mul", [wide, inverse], x.axes, name=f"{label} normalised", keeps=[wide, inverse], ways=ways)

    def scale(self, weight: Tensor, x: Tensor, label: str) -> Tensor:
        """x, each column times its own weight."""
        down = self.highest(row_sum_buffers(self.num_tokens, self.model.hidden_size))
        factors, ways = [weight, x], (Summed(down, is_product=True), NEW)
        return self.paper.run(
            "mul", factors, x.axes, x.dtype, name=f"{label} output", by="mul by the weight", keeps=factors, ways=ways
        )

    def power(self, x: Tensor) -> Tensor:
        """A power of x. Its backward computes exponent · x^(exponent - 1) in two temporaries."""
        scratch_bytes = 2 * self.paper.round_up(x.edge.num_bytes)
        return self.paper.run("pow", [x], x.axes, keeps=[x], scratch_bytes=scratch_bytes)

    def mlp(self, n: Tensor) -> Tensor:
        """Linear, GELU, linear; or the gated form of Llama."""
        self.enter("mlp")
        if self.model.mlp == "swiglu":
            return self.linear(self.times(self.silu(self.linear(n, "mlp.gate")), self.linear(n, "mlp.up")), "mlp.down")
        return self.linear(self.gelu(self.paper.rename(self.linear(n, "mlp.up"), "GELU input")), "mlp.down")

    def silu(self, gate: Tensor) -> Tensor:
        """x · sigmoid(x)."""
        return self.paper.run("silu", [gate], gate.axes, name="silu(gate)", keeps=[gate])

    def times(self, gate: Tensor, up: Tensor) -> Tensor:
        """The product of the two branches of a gated MLP."""
        return self.paper.run("mul", [gate, up], up.axes, name="silu(gate) · up", keeps=[gate, up])

    def gelu(self, x: Tensor) -> Tensor:
        """x Φ(x)."""
        return self.paper.run("gelu", [x], x.axes, name="GELU output", keeps=[x])
