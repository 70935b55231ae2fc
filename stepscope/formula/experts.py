"""A mixture of experts on paper: the router, the copies of each token, and two grouped products.

Read it beside ``memkit/program/experts.py``. Beside its input a block keeps e router scores of each token in float32
and, for each of the c experts that are chosen, the copy, what a gated MLP of width g keeps, what comes out, its weight
and its places. With w bytes for a number of the weights' dtype that is, of each token::

    4 (e + 1)  +  c · ((2h + 4g + 1) w + 4 · 8 + 4)  bytes

So c decides what is kept, and e what stands in weights, gradients and states. The choice moves rows from one expert to
another: on one card no byte depends on it. Left out is what depends on it elsewhere, which has a range. With experts
spread over n cards (expert parallelism), a card has between 1 / n of all copies, if all experts get alike, and all of
them; the fullest card decides. A loop over the experts has temporaries of T · c / e to T rows, those of the largest.
What ``torch.sort`` and CUTLASS take for themselves is left out, as in a trace.
"""

from memkit.formats.dtypes import tensor_bytes
from memkit.formula.kernels import Stages, sort_bytes
from memkit.formula.layers import MLPS, Layers
from memkit.formula.paper import NEW, SAME, Summed, Tensor
from memkit.formula.parameters import MLP_PARAMETERS, Parameter, model_axes
from stepscope.setup.experts import EXPERTS, ExpertsConfig

COPIES, ROUTED = "b s c h", "b s c"  # a token's copies, and one number for each of them


class ExpertsOnPaper:
    """The experts of one block. What every layer needs is the ``forward``'s."""

    def __init__(self, forward: Layers):
        self.forward = forward

    def __getattr__(self, name: str):
        return getattr(self.forward, name)

    def experts(self, n: Tensor) -> Tensor:
        """The weighted sum of what the chosen experts make of each token."""
        self.enter("mlp", "experts")
        x = self.paper.view("flatten", n)
        return self.paper.cast(self.weighted_sum(x, *self.route(x)), n.dtype)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """softmax in float32, the c largest, and those divided by their sum."""
        paper, run = self.paper, self.paper.run
        scores = self.softmax("softmax", self.router(x), "router scores", is_wide=True)
        chosen = paper.empty(ROUTED, "int64", "chosen experts", "topk")
        weights = run("topk", [scores], ROUTED, name="chosen scores", keeps=[chosen])
        total = run("sum", [weights], "b s 1", name="sum of the chosen scores", ways=(SAME,))
        # The backward of a quotient makes -g, a / b, a / b² and their product before the gradient of a.
        scratch_bytes, c = 2 * paper.round_up(weights.num_bytes), self.model.experts_per_token
        ways = (NEW, Summed(self.along_rows(self.num_tokens, c), is_product=True) if c > 1 else NEW)
        quotient = run("div", [weights, total], ROUTED, keeps=[weights, total], ways=ways, scratch_bytes=scratch_bytes)
        return paper.cast(quotient, x.dtype), chosen

    def router(self, x: Tensor) -> Tensor:
        """A product whose weight is a parameter of its own and no layer's."""
        paper, weight = self.paper, self.parameters["mlp.router"]
        dtype = self.dtype if self.setup.precision.uses_autocast else weight.dtype
        weight = paper.cast(weight, dtype, "mlp.router weight")
        narrow = paper.cast(x, dtype)
        return self.multiply("mm", narrow, weight, [], "router logits", [narrow, weight])

    def weighted_sum(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """Copies sorted by expert, the experts, and back to the order of the tokens."""
        paper = self.paper
        _by_expert, order = (paper.empty(ROUTED, "int64", "order of the copies", "sort") for _ in range(2))
        wide = paper.empty(ROUTED, "float32")
        _rows = paper.empty("e", "float32", op="histc")
        del wide  # ``histc`` has counted it: the float copy was its argument only
        offsets = paper.empty("e", "int32", "last row of each expert", "cumsum")
        if not self.is_cuda:  # the CPU's loop takes one dtype: the numbers are copied
            paper.allocate(offsets.num_bytes)
        y = self.expert_mlp(self.rows(x, paper.empty(ROUTED, "int64", "token of each copy"), COPIES), offsets)
        factors = [y, self.rows(weights, order, ROUTED, "weight of each copy")]
        ways = (NEW, Summed(self.along_rows(order.count, self.model.hidden_size), is_product=True))
        y = paper.run("mul", factors, COPIES, keeps=factors, ways=ways)
        del factors  # the products are made; where nothing is trained, nobody holds them
        place = paper.empty(ROUTED, "int64", "place of each copy", "empty_like")
        paper.empty(ROUTED, "int64", op="arange")
        return self.back_in_order(y, place)

    def back_in_order(self, y: Tensor, place: Tensor) -> Tensor:
        """The sum of each token's rows. Its gradient is one row seen c times, until it is flattened."""
        c = self.model.experts_per_token
        is_copied = min(c, self.num_tokens) > 1
        back = self.rows(y, place, COPIES, is_expanded=c > 1 and not is_copied)
        back = self.paper.view("unflatten", back, ways=(NEW if is_copied else SAME,))
        return self.paper.run("sum", [back], "b s h", name="experts' output", ways=(SAME,))

    def expert_mlp(self, x: Tensor, offsets: Tensor) -> Tensor:
        """The gated MLP, each row by its own expert."""
        both = self.grouped(x, "gate_up", offsets, "b s c 2g", "gate and up")
        gate, up = self.paper.view("chunk", both, ["b s c g"] * 2, (NEW,))
        del both  # the two views hold its storage
        inner = self.by_value("mul", "silu(gate) · up", self.by_value("silu", "silu(gate)", gate), up)
        return self.grouped(inner, "down", offsets, COPIES, "output of each copy")

    def grouped(self, x: Tensor, name: str, offsets: Tensor, axes: str, label: str) -> Tensor:
        """A product of each row by the matrix of its expert. Autocast does not know it."""
        weight = self.parameters[f"mlp.{name}"]
        x = self.paper.cast(x, weight.dtype)
        flops = 2 * self.paper.count(ROUTED) * weight.count // self.model.num_experts
        return self.paper.run(
            "_grouped_mm", [x, weight], axes, name=label, by="grouped product", flops=flops,
            keeps=[*[x] * (weight.source is not None), offsets],
        )

    def rows(self, x: Tensor, index: Tensor, axes: str, name: str = "copies", is_expanded: bool = False) -> Tensor:
        """x[index]. The backward adds into zeros, for which CUDA sorts the index."""
        num_rows = self.num_tokens if x.count < self.paper.count(axes) else index.count
        copied = [tensor_bytes(self.paper.count(axes), x.dtype)] if is_expanded else []
        scratch: Stages = [[index.num_bytes] * 4 + copied + [sort_bytes(index.count, num_rows - 1)]]
        return self.paper.run("index", [x], axes, name=name, keeps=[index], scratch_bytes=self.highest(scratch))


def experts_parameters(config: ExpertsConfig) -> list[Parameter]:
    """Router and experts, which are no linear layers."""
    sizes = model_axes(config)
    return [
        Parameter(
            name=f"mlp.{name}", shape=tuple(sizes[axis] for axis in axes.split()), kind="experts", axes=axes
        )
        for name, axes in {"router": "e h", "gate_up": "e 2g h", "down": "e h g"}.items()
    ]


MLPS[EXPERTS] = lambda forward, n: ExpertsOnPaper(forward).experts(n)
MLP_PARAMETERS[EXPERTS] = experts_parameters
