"""A transformer with a mixture of experts in place of the MLP of some blocks or of all, and its step on paper.

On paper it is the router, the copies of each token, and two grouped products: read it beside ``Experts`` in
``program/job.py``. Beside its input a block keeps e router scores of each token in float32 and, for each of the c
experts that are chosen, the copy, what a gated MLP of width g keeps, what comes out, its weight and its places. With w
bytes for a number of the weights' dtype that is, of each token::

    4 (e + 1)  +  c · ((2h + 4g + 1) w + 4 · 8 + 4)  bytes

So c decides what is kept, and e what stands in weights, gradients and states. The choice moves rows from one expert to
another: on one card no byte depends on it. Left out is what depends on it elsewhere, which has a range. With experts
spread over n cards (expert parallelism), a card has between 1 / n of all copies, if all experts get alike, and all of
them; the fullest card decides. A loop over the experts has temporaries of T · c / e to T rows, those of the largest.
What ``torch.sort`` and CUTLASS take for themselves is left out, as in a trace.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from memkit import models as kit
from memkit.formats.records import tensor_bytes
from memkit.formula.kernels import sort_bytes
from memkit.formula.model import TransformerOperations, addition
from memkit.formula.operations import NEW, SAME, Summed, Tensor, scope
from memkit.formula.parameters import MLP_PARAMETERS, Parameter, model_axes
from memkit.models import MAX_SIZE, QWEN_3, ModelConfig, llama_config
from memkit.units import as_whole_number, check_fields

EXPERTS = "experts"


@dataclass(frozen=True, kw_only=True)
class ExpertsConfig(ModelConfig):
    """With ``num_experts`` the MLP of every block, but for those that ``dense_layers`` names, is so many gated ones of
    width ``expert_size``, of which each token uses ``experts_per_token``.

    >>> from memkit import count_parameters, models
    >>> model = experts_config(models.TINY_LLAMA, num_experts=8, experts_per_token=2, expert_size=64, dense_layers=(0,))
    >>> model.blocks_by_kind
    {'swiglu': 1, 'experts': 3}
    """

    num_experts: int
    experts_per_token: int
    expert_size: int
    dense_layers: tuple[int, ...] = ()

    def __post_init__(self):
        super().__post_init__()
        names = "num_experts experts_per_token expert_size"
        check_fields(self, names, as_whole_number, 1, MAX_SIZE)
        experts = self.num_experts, self.experts_per_token, self.expert_size
        if self.experts_per_token > self.num_experts or (self.hidden_size | self.expert_size) % 8:
            raise ValueError(
                f"experts={experts} and hidden_size={self.hidden_size}: num_experts, at most as many for a token, and "
                "their size; both sizes multiples of 8, as grouped products want them"
            )

    def mlp_of(self, layer: int) -> str:
        """The MLP's own kind, or experts."""
        return self.mlp if layer in self.dense_layers else EXPERTS

    @property
    def blocks_by_kind(self) -> dict[str, int]:
        """Dense ones first."""
        counts = super().blocks_by_kind
        return {kind: counts[kind] for kind in (self.mlp, EXPERTS) if kind in counts}

    @property
    def one_of_each(self) -> "ExpertsConfig":
        kinds = self.blocks_by_kind
        dense = (0,) if self.mlp in kinds else ()
        times = tuple(kinds.values())
        return replace(self, num_layers=len(kinds), dense_layers=dense, block_times=times)

    @property
    def one_block(self) -> "ExpertsConfig":
        return replace(self, num_layers=1, dense_layers=())

    @property
    def more_axes(self) -> dict[str, int]:
        """e experts, c of them chosen for a token, g their width."""
        e, c, g = self.num_experts, self.experts_per_token, self.expert_size
        return {"e": e, "c": c, "g": g, "2g": 2 * g}


def num_experts_of(model: ModelConfig) -> int:
    """How many experts a block has, 0 where it has none."""
    return model.num_experts if isinstance(model, ExpertsConfig) else 0


def experts_config(dense: ModelConfig, **choices) -> ExpertsConfig:
    """The same model with experts."""
    return ExpertsConfig(**vars(dense) | choices)


QWEN_3_30B_A3B = experts_config(
    llama_config("Qwen3-30B-A3B", 48, 2048, 32, 4, 6144, 151936, 40960, **QWEN_3),
    num_experts=128,
    experts_per_token=8,
    expert_size=768,
)

PUBLISHED_MODELS = kit.PUBLISHED_MODELS | {QWEN_3_30B_A3B.name: QWEN_3_30B_A3B}
"""The kit's, and one with experts, by name."""

COPIES, ROUTED = "b s c h", "b s c"  # a token's copies, and one number for each of them


@addition(lambda setup: isinstance(setup.model, ExpertsConfig))
class WithExperts(TransformerOperations):
    """A transformer some of whose blocks have experts."""

    def feed_forward(self, number: int) -> Callable[[Tensor], Tensor]:
        """Experts, where the model has them."""
        has_experts = self.model.mlp_of(number) == EXPERTS
        return self.experts if has_experts else super().feed_forward(number)

    @scope
    def experts(self, n: Tensor) -> Tensor:
        """The weighted sum of what the chosen experts make of each token."""
        self.enter("mlp", "experts")
        x = self.graph.view("flatten", n)
        return self.graph.cast(self.weighted_sum(x, *self.route(x)), n.dtype)

    @scope
    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """softmax in float32, the c largest, and those divided by their sum."""
        graph, op = self.graph, self.graph.op
        scores = self.softmax(
            "softmax", self.linear(x, "mlp.router", "router logits"), "router scores", is_wide=True
        )
        chosen = graph.data(ROUTED, "int64", "chosen experts", "topk")
        weights = op("topk", [scores], ROUTED, name="chosen scores", keeps=[chosen])
        total = op("sum", [weights], "b s 1", name="sum of the chosen scores", ways=(SAME,))
        # The backward of a quotient makes -g, a / b, a / b² and their product before the gradient of a.
        scratch_bytes, c = 2 * self.rounded(weights.num_bytes), self.model.experts_per_token
        ways = (NEW, Summed(self.along_rows(self.num_tokens, c), is_product=True) if c > 1 else NEW)
        parts = [weights, total]
        quotient = op("div", parts, ROUTED, keeps=parts, ways=ways, scratch_bytes=scratch_bytes)
        graph.bind(scores, weights, total)
        return graph.cast(quotient, x.dtype), chosen

    @scope
    def weighted_sum(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """Copies sorted by expert, the experts, and back to the order of the tokens."""
        graph = self.graph
        by_expert = graph.data(ROUTED, "int64", "order of the copies", "sort")
        order = graph.data(ROUTED, "int64", "order of the copies", "sort")
        wide = graph.data(ROUTED, "float32")
        rows = graph.data("e", "float32", kind="histc")
        graph.hold(wide)  # ``histc`` has counted it: the float copy was its argument only
        offsets = graph.data("e", "int32", "last row of each expert", "cumsum")
        self.copy_for_loop(offsets.num_bytes)
        graph.bind(by_expert, order, rows, offsets)
        tokens = graph.data(ROUTED, "int64", "token of each copy")
        y = self.expert_mlp(self.rows(x, tokens, COPIES), offsets)
        factors = [y, self.rows(weights, order, ROUTED, "weight of each copy")]
        ways = (NEW, Summed(self.along_rows(order.count, self.model.hidden_size), is_product=True))
        y = graph.op("mul", factors, COPIES, keeps=factors, ways=ways)
        place = graph.data(ROUTED, "int64", "place of each copy", "empty_like")
        graph.data(ROUTED, "int64", kind="arange")
        graph.bind(y)
        return self.back_in_order(y, place)

    @scope
    def back_in_order(self, y: Tensor, place: Tensor) -> Tensor:
        """The sum of each token's rows. Its gradient is one row seen c times, until it is flattened."""
        c = self.model.experts_per_token
        is_copied = min(c, self.num_tokens) > 1
        back = self.rows(y, place, COPIES, is_expanded=c > 1 and not is_copied)
        back = self.graph.view("unflatten", back, ways=(NEW if is_copied else SAME,))
        return self.graph.op("sum", [back], "b s h", name="experts' output", ways=(SAME,))

    @scope
    def expert_mlp(self, x: Tensor, offsets: Tensor) -> Tensor:
        """The gated MLP, each row by its own expert."""
        both = self.grouped(x, "gate_up", offsets, "b s c 2g", "gate and up")
        gate, up = self.graph.view("chunk", both, ["b s c g"] * 2, (NEW,))
        opened = self.elementwise("silu", "silu(gate)", gate)
        inner = self.elementwise("mul", "silu(gate) · up", opened, up)
        self.graph.bind(gate, inner)
        return self.grouped(inner, "down", offsets, COPIES, "output of each copy")

    def grouped(self, x: Tensor, name: str, offsets: Tensor, axes: str, label: str) -> Tensor:
        """A product of each row by the matrix of its expert. Autocast does not know it."""
        weight = self.parameters[f"mlp.{name}"]
        x = self.graph.cast(x, weight.dtype)
        flops = 2 * self.graph.count(ROUTED) * weight.count // self.model.num_experts
        keeps = [*([x] if weight.needs_grad else ()), weight, offsets]
        how = {"name": label, "by": "grouped product", "keeps": keeps}
        return self.graph.op("_grouped_mm", [x, weight], axes, flops=flops, **how)

    @scope
    def rows(
        self, x: Tensor, index: Tensor, axes: str, name: str = "copies", is_expanded: bool = False
    ) -> Tensor:
        """x[index]. The backward adds into zeros, for which CUDA sorts the index."""
        num_rows = self.num_tokens if x.count < self.graph.count(axes) else index.count
        copied = [tensor_bytes(self.graph.count(axes), x.dtype)] if is_expanded else []
        sorting = sort_bytes(index.count, num_rows - 1)
        scratch_bytes = self.highest([[index.num_bytes] * 4 + copied + [sorting]])
        how = {"name": name, "keeps": [index], "scratch_bytes": scratch_bytes}
        return self.graph.op("index", [x], axes, **how)


def experts_parameters(config: ExpertsConfig) -> list[Parameter]:
    """Router and experts, which are no linear layers."""
    sizes, parameters = model_axes(config), []
    for name, axes in {"router": "e h", "gate_up": "e 2g h", "down": "e h g"}.items():
        shape = tuple(sizes[axis] for axis in axes.split())
        parameters.append(Parameter(name=f"mlp.{name}", shape=shape, kind="experts", axes=axes))
    return parameters


MLP_PARAMETERS[EXPERTS] = experts_parameters
