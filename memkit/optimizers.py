"""The optimizers, one record each: what it keeps for a parameter, what its step allocates, how it is made.

Whoever needs to know an optimizer reads its record. The formula takes the states and the rule of the temporaries from
it, and the program takes the class. A new optimizer is a record of its own, passed as ``OptimizerConfig(record=...)``;
if none of the rules in ``memkit.formula.update.RULES`` describes its step, it brings a rule, or says ``TRACE_IT``.

Source: ``_init_group`` in torch.optim's SGD and Adam (2.13).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from memkit.units import as_one_of

IMPLEMENTATIONS = ("foreach", "for-loop", "fused")
HOSTS = ("never", "always", "unless fused")
"""When a state stays in the host's memory."""

TRACE_IT = "trace it"
"""A step that no formula describes is refused there, and a trace tells the bytes."""


@dataclass(frozen=True, kw_only=True)
class State:
    """One tensor that an optimizer keeps for a parameter, by torch's key in ``optimizer.state``.

    ``is_scalar``: one number, and not one for each of the parameter's. ``dtype`` left empty is that of the recipe's
    moments. A subclass with ``tensors_of`` of its own keeps something else: few bits, rows and columns.
    """

    role: str
    is_scalar: bool = False
    dtype: str = ""
    is_moment: bool = True
    on_host: str = "never"

    def __post_init__(self):
        as_one_of("on_host", self.on_host, HOSTS)

    def tensors_of(
        self, shape: tuple[int, ...], moment_dtype: str
    ) -> tuple[tuple[str, tuple[int, ...], str], ...]:
        """What is kept for a parameter of this shape, each as (role, shape, dtype)."""
        return ((self.role, () if self.is_scalar else shape, self.dtype or moment_dtype),)

    def is_in_host(self, role: str, count: int, implementation: str) -> bool:
        """Whether the host's memory has what it keeps as ``role`` for a parameter of so many values."""
        return self.on_host == "always" or (
            self.on_host == "unless fused" and implementation != "fused"
        )


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """One optimizer. ``made_by`` is ``module:class`` and ``arguments`` what it takes beside the learning rate.

    ``temporaries`` is the rule of each implementation it offers, by its name in ``memkit.formula.update.RULES``.
    ``has_argument`` says whether the class takes ``foreach`` and ``fused``.
    """

    name: str
    states: tuple[State, ...]
    temporaries: Mapping[str, str] = field(hash=False)
    made_by: str
    arguments: Mapping = field(default_factory=dict, hash=False)
    has_argument: bool = True

    @property
    def implementations(self) -> tuple[str, ...]:
        """Those that it offers."""
        return tuple(self.temporaries)

    @property
    def estimated(self) -> tuple[str, ...]:
        """Its implementations whose step the formula knows."""
        return tuple(each for each, rule in self.temporaries.items() if rule != TRACE_IT)

    @property
    def roles(self) -> tuple[str, ...]:
        """Names of the states that are moments."""
        return tuple(state.role for state in self.states if state.is_moment)

    def keywords(self, implementation: str) -> dict[str, object]:
        """What its class takes beside the learning rate to step in this way."""
        if not self.has_argument:
            return dict(self.arguments)
        way = (
            {"fused": True}
            if implementation == "fused"
            else {"foreach": implementation == "foreach"}
        )
        return {**self.arguments, **way}

    def states_of(self, shape: tuple[int, ...], kind: str) -> "Optimizer":
        """The optimizer that keeps states for a parameter of this shape and kind: itself."""
        return self

    def shared_by(self, counts: Iterable[int]) -> tuple[tuple[str, tuple[int, ...], str], ...]:
        """What is kept once for all tensors, of so many values each, as (role, shape, dtype): nothing."""
        return ()


STEP = State(role="step", is_scalar=True, dtype="float32", is_moment=False, on_host="unless fused")
FIRST, SECOND = State(role="exp_avg"), State(role="exp_avg_sq")
MOMENTUM = State(role="momentum_buffer")
ON_LISTS = {"foreach": "all at once", "for-loop": "root and denominator", "fused": "none"}
IN_ONE_KERNEL = dict.fromkeys(IMPLEMENTATIONS, "none")

OPTIMIZERS = {
    optimizer.name: optimizer
    for optimizer in (
        Optimizer(name="SGD", states=(), temporaries=IN_ONE_KERNEL, made_by="torch.optim:SGD"),
        Optimizer(
            name="SGD momentum",
            states=(MOMENTUM,),
            temporaries=IN_ONE_KERNEL,
            made_by="torch.optim:SGD",
            arguments={"momentum": 0.9},
        ),
        Optimizer(
            name="AdamW",
            states=(STEP, FIRST, SECOND),
            temporaries=ON_LISTS,
            made_by="torch.optim:AdamW",
        ),
    )
}
"""By name, those of chapters 00 to 06. Nothing is added to it: another record is passed as it is."""
