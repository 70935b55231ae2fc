"""Ways to run parts of the forward twice, each a record with the line of code that asks for it.

A ``Strategy`` cuts the model's L blocks into regions and says which of them are run again in the backward,
what a policy keeps of them, and by which of PyTorch's implementations. What a strategy stores and costs
follows from the record alone: ``memkit.recomputation``. The record is played twice, on purpose: on paper by
``formula.model``, in torch by ``program.transformer``.
"""

from collections.abc import Callable
from dataclasses import dataclass

from memkit.units import as_one_of, as_whole_number, check_fields

SCOPES = ("nothing", "blocks", "core", "host")
"""What is treated: nothing; whole blocks run again; only the attention core does; saved tensors move to the host."""

OPS = ("mm", "addmm", "bmm", "attention", "gelu", "silu")
"""Operations that a policy may save. ``attention`` is any fused kernel; a linear layer is ``addmm`` with a bias and
``mm`` without."""

KERNELS = "flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu"
TORCH_NAMES = {op: (op,) for op in OPS}
TORCH_NAMES["attention"] = tuple(f"_scaled_dot_product_{name}" for name in KERNELS)
"""What each of ``OPS`` is called in ``torch.ops.aten``. Which attention kernel runs depends on dtype, device and card,
so a policy that is to work everywhere names all of them; the ``math`` fallback is no kernel, but ``bmm`` and others."""


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """One way to trade FLOPs for bytes.

    ``group_size`` blocks make one region; every ``period``-th region is run again. ``num_segments`` above 0
    makes so many equal regions instead, of which the last is not run again. ``saved_ops``: operations whose
    outputs a policy keeps, of linear layers each second one only if ``saves_every_second``. ``stops_early``
    and ``is_reentrant`` choose between PyTorch's implementations.

    Raises: ValueError: an unknown scope or operation, a size below 1, a policy in the reentrant implementation.
    """

    name: str
    code: str
    scope: str = "blocks"
    group_size: int = 1
    period: int = 1
    num_segments: int = 0
    saved_ops: tuple[str, ...] = ()
    saves_every_second: bool = False
    stops_early: bool = True
    is_reentrant: bool = False

    def __post_init__(self):
        check_fields(self, "scope", as_one_of, SCOPES)
        check_fields(self, "group_size period", as_whole_number, 1)
        check_fields(self, "num_segments", as_whole_number)
        for op in self.saved_ops:
            as_one_of("saved_ops", op, OPS)
        if self.is_reentrant and self.saved_ops:
            raise ValueError(f"saved_ops={self.saved_ops!r} needs the non-reentrant checkpoint")

    def regions(self, num_layers: int) -> tuple[tuple[range, bool], ...]:
        """The model's blocks in order as (blocks, are run again).

        >>> [(len(blocks), again) for blocks, again in sequential(4).regions(24)]
        [(6, True), (6, True), (6, True), (6, False)]
        """
        starts = range(0, num_layers, self.group_size)
        if self.num_segments:
            num_segments = min(self.num_segments, num_layers)
            size = num_layers // num_segments
            starts = range(0, size * num_segments, size)
        end = len(starts) - bool(self.num_segments) if self.scope == "blocks" else 0
        cuts = enumerate(map(range, starts, [*starts[1:], num_layers]))
        return tuple((blocks, n < end and n % self.period == 0) for n, blocks in cuts)

    def policy(self) -> Callable[[str], bool]:
        """Says of each operation of a region in turn, by its name in ``OPS``, whether what it puts out is kept."""
        num_linears = 0

        def saves(op: str) -> bool:
            nonlocal num_linears
            is_linear = op in ("mm", "addmm")
            num_linears += is_linear
            is_skipped = self.saves_every_second and is_linear and num_linears % 2 == 0
            return op in self.saved_ops and not is_skipped

        return saves


def checkpoint_line(run: str, more: str = "") -> str:
    """The call to ``torch.utils.checkpoint`` that a reader would write."""
    return f"x = checkpoint({run}, x, use_reentrant=False{more})"


NONE = Strategy(name="none", scope="nothing", code="x = block(x)")
FULL = Strategy(name="full", code=checkpoint_line("block"))
FULL_NO_STOP = Strategy(
    name="full, no early stop",
    stops_early=False,
    code=checkpoint_line("block", ", early_stop=False"),
)
FULL_REENTRANT = Strategy(
    name="full, reentrant",
    is_reentrant=True,
    stops_early=False,
    code="x = checkpoint(block, x, use_reentrant=True)",
)
CORE = Strategy(
    name="attention core", scope="core", code="y = checkpoint(core, q, k, v, use_reentrant=False)"
)
HOST = Strategy(
    name="offload", scope="host", code="with save_on_cpu(pin_memory=True):\n    x = block(x)"
)


def every(period: int) -> Strategy:
    """Every ``period``-th block runs again."""
    as_whole_number("period", period, 1)
    code = f"if number % {period} == 0:\n    {checkpoint_line('block')}\nelse:\n    x = block(x)"
    return Strategy(name=f"1 block in {period}", period=period, code=code)


def groups(group_size: int, name: str = "") -> Strategy:
    """Regions of ``group_size`` blocks; the input of each is kept, and all run again."""
    code = (
        f"for start in range(0, len(model.blocks), {group_size}):\n"
        f"    group = nn.Sequential(*model.blocks[start : start + {group_size}])\n    {checkpoint_line('group')}"
    )
    return Strategy(name=name or f"groups of {group_size}", group_size=group_size, code=code)


def square_root_groups(num_layers: int) -> Strategy:
    """√L blocks a region, as Chen et al. 2016 have it."""
    size = round(as_whole_number("num_layers", num_layers, 1) ** 0.5)
    return groups(size, name="√L groups")


def sequential(num_segments: int) -> Strategy:
    """``checkpoint_sequential``: equal segments, of which the last is never run again."""
    as_whole_number("num_segments", num_segments, 1)
    code = f"x = checkpoint_sequential(model.blocks, {num_segments}, x, use_reentrant=False)"
    name = f"checkpoint_sequential, {num_segments} segments"
    return Strategy(name=name, num_segments=num_segments, code=code)


def policy(name: str, *saved_ops: str, saves_every_second: bool = False) -> Strategy:
    """Blocks run again, but what ``saved_ops`` put out is kept (selective activation checkpointing)."""
    names = [name for op in saved_ops if op in OPS for name in TORCH_NAMES[op]]
    ops = "".join(f"    torch.ops.aten.{name}.default,\n" for name in names)
    code = f"saved_ops = [\n{ops}]\n{EVERY_SECOND if saves_every_second else ONE_LIST}\n"
    code += checkpoint_line("block", ", context_fn=context_fn")
    how = {"saved_ops": saved_ops, "saves_every_second": saves_every_second}
    return Strategy(name=name, code=code, **how)


ONE_LIST = "context_fn = partial(create_selective_checkpoint_contexts, saved_ops)"
EVERY_SECOND = """linear_ops = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]

def context_fn():  # called once for each region
    linears = []
    def policy(ctx, op, *args, **kwargs):
        linears.extend([op] * (op in linear_ops))
        if op in saved_ops and (op not in linear_ops or len(linears) % 2 == 1):
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE
    return create_selective_checkpoint_contexts(policy)
"""

SAVE_ATTENTION = policy("save attention", "attention")
SAVE_PRODUCTS = policy("save attention and products", "attention", "mm", "addmm")
SAVE_EVERY_SECOND = policy(
    "save every second product", "attention", "mm", "addmm", saves_every_second=True
)
POLICIES = SAVE_PRODUCTS, SAVE_EVERY_SECOND, SAVE_ATTENTION


RECOMPUTATIONS = {"none": NONE, "selective": CORE, "full": FULL}
"""The three that a setup may call by a name. ``full``: each block keeps its input and is run again in the backward
(torch.utils.checkpoint, non-reentrant). ``selective``: only the attention core (scores, softmax, weighted sum) is
run again (Korthikanti et al. 2022)."""


def all_strategies(num_layers: int) -> tuple[Strategy, ...]:
    """Every strategy of the book, for a model of so many layers."""
    whole = FULL, FULL_NO_STOP, FULL_REENTRANT, every(2), every(3)
    return (NONE, CORE, *POLICIES, *whole, square_root_groups(num_layers), sequential(4), HOST)
